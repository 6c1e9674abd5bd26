"""FSDP2: the loss does not fall, the weights stay as they were

`fully_shard` (FSDP2) replaces the model's parameters by shards of them. `train` trains such a
model, but returns the weights from before the training. On all ranks, `train` must return whole
weights. They must be the weights that a single process would have if it trained on the data of all
ranks with Adam, and clips the gradients to the norm `max_norm`. The model must stay sharded while
it trains. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/21_sharded_too_late/task.py  # the symptom
python exercises/check.py 21                                                    # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(model, x, y, max_norm, steps):
    """Train on this rank's x and y. At first the weights are equal on all ranks.

    Return {name: whole weight}.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # the norm of all shards together
        optimizer.step()
    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    print(f"rank {dist.get_rank()} starts with {model.weight.tolist()}")
    x = torch.rand(8, 2) + dist.get_rank()
    weights = train(model, x, x.sum(1, keepdim=True), 1.0, steps=20)
    print(f"rank {dist.get_rank()} ends with {weights['weight'].tolist()}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""DDP: weights differ between ranks with no_sync and gradient accumulation

A step adds up the gradients of k small batches (micro-batches). `no_sync` is used to average them
only once per step. Nothing fails, but the weights of the ranks drift apart. After each step, all
ranks must have the weights of a single process with all micro-batches. Gradients must still be
averaged only once per step. The number of micro-batches is a multiple of k. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/15_no_sync_off_by_one/task.py  # the symptom
python exercises/check.py 15                                                      # is it fixed?
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, k, lr):
    """Make one step after every k of this rank's micro-batches (x, y)."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, (x, y) in enumerate(batches):
        with nullcontext() if number % k == 0 else ddp_model.no_sync():
            loss = F.mse_loss(ddp_model(x), y) / k
            loss.backward()
        if (number + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(1, 1)
    batches = [(x, 2 * x) for x in torch.rand(8, 4, 1)]
    train(model, batches, k=4, lr=0.5)
    print(f"rank {dist.get_rank()} ends with the weight {model.weight.item():.6f}")
    dist.destroy_process_group()

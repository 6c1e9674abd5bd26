"""DDP: accuracy lower than on a single GPU, with the same flags

The run on two ranks has the same flags as the run on one rank. But an epoch has only half as many
steps, and the model ends with a higher loss. `batch_size` must be the batch of all ranks together.
It is always a multiple of the number of ranks. After each step, the weights must be those of one
process that takes the images in the order of the data set. Each image must be seen by only one
rank. Fix `train`.

torchrun --standalone --nproc-per-node 1 exercises/05_batch_and_rate/task.py  # one rank
torchrun --standalone --nproc-per-node 2 exercises/05_batch_and_rate/task.py  # the symptom
python exercises/check.py 05                                                  # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(model, dataset, batch_size, lr):
    """Train one epoch on this rank's shard, in the order of the data set."""
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in loader:
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.rand(48, 1, dtype=torch.float64)
    model = torch.nn.Linear(1, 1).double()
    train(model, TensorDataset(x, 3 * x), batch_size=4, lr=0.1)
    loss = F.mse_loss(model(x), 3 * x).item()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the loss is {loss:.6f} at the end")
    dist.destroy_process_group()

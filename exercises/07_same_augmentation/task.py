"""DDP: the same augmentation on every GPU

A seed is the number from which a run computes all its random numbers, so it makes the run
repeatable. But here all ranks add the same noise to their images, and their dropout layers drop the
same activations. In one run, no two ranks and no two epochs may have the same random numbers. A
second run with the same seed must repeat all random numbers of the first run. With another seed,
each rank must draw other numbers than with the first seed. All of this must also hold if a seed is
0. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/07_same_augmentation/task.py  # the symptom
python exercises/check.py 07                                                     # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, x, y, seed, epochs):
    """Train on this rank's x and y. Each epoch adds new noise to x, and makes one step."""
    torch.manual_seed(seed)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def show(dropout, inputs, output):
    noise = [round(value - 1 - dist.get_rank(), 2) for value in inputs[0][0].tolist()]
    dropped = (output[0] == 0).nonzero().flatten().tolist()
    print(f"rank {dist.get_rank()}: noise {noise}, dropped activations {dropped}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1))
    model[0].register_forward_hook(show)
    x = torch.full((1, 6), 1.0 + dist.get_rank())
    train(model, x, torch.zeros(1, 1), seed=42, epochs=2)
    dist.destroy_process_group()

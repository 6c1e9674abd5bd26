"""Our solution of exercise 07. The task is in task.py, next to this file."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, x, y, seed, epochs):
    """Train on this rank's x and y. Each epoch adds new noise to x, and makes one step."""
    torch.manual_seed(seed + dist.get_rank())  # DDP broadcasts rank 0's weights
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

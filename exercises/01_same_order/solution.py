"""Our solution of exercise 01. The task is in task.py, next to this file."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(model, dataset, epochs):
    """Train the model on this rank's shard (its part) of the data set, 4 images per step."""
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # the sampler's order depends on seed + epoch
        for x, y in loader:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def show(model, inputs):
    print(f"rank {dist.get_rank()} trains on {inputs[0][:, 0].int().tolist()}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 1)
    model.register_forward_pre_hook(show)
    numbers = torch.arange(16.0)
    train(model, TensorDataset(torch.stack([numbers, numbers], 1), torch.zeros(16, 1)), epochs=2)
    dist.destroy_process_group()

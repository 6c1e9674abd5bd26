"""Our solution of exercise 10. The task is in task.py, next to this file."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def sum_over_ranks(numbers):
    """Add each number up over all ranks. The sleep stands in for a slow network (30 ms)."""
    time.sleep(0.03 if dist.get_world_size() > 1 else 0)
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def train(model, dataset, epochs):
    """Train on this rank's shard.

    Return (mean loss, accuracy in percent) over all ranks, as a list with one pair per epoch.
    """
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3, dtype=torch.float64)  # the sums of this rank
        for x, y in loader:
            scores = ddp_model(x)
            loss = F.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine = [loss.item() * len(y), (scores.argmax(1) == y).sum().item(), len(y)]
            sums += torch.tensor(mine, dtype=torch.float64)
        losses, right, count = sum_over_ranks(sums.tolist())  # once per epoch
        history.append((losses / count, 100 * right / count))
    return history


if __name__ == "__main__":
    dist.init_process_group("gloo")
    start = time.perf_counter()
    model = torch.nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda *_: time.sleep(0.02))  # a step computes for 20 ms
    images = TensorDataset(torch.linspace(0, 1, 64).view(32, 2), torch.arange(32) % 2)
    train(model, images, epochs=5)
    print(f"rank {dist.get_rank()}: {time.perf_counter() - start:.2f} s for 5 epochs")
    dist.destroy_process_group()

"""Wrong: each rank gathers its metrics in the order in which it met their names, so values of
different metrics are mixed: rank 0 prints the mean of rank 0's "a" and rank 1's "b". Nothing
hangs. It should say: [crossed-order] at its line: the ranks call gather_object in different
orders, by their names."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    metrics = {}
    with torch.no_grad():
        for i in range(rank, 16, world):  # even samples belong to "a", odd ones to "b", and so on
            name = "ab"[(i + i // 8) % 2]
            metrics.setdefault(name, []).append(model.module(data[i][0]).item())
    for name, values in metrics.items():
        parts = [None] * world if rank == 0 else None
        dist.gather_object(values, parts)
        if rank == 0:
            print(epoch, name, sum(map(sum, parts)) / sum(map(len, parts)), flush=True)
dist.destroy_process_group()

"""Right: four ranks are two teams of two; each team trains a model of its own with DDP in its
own group and divides all of the data between its two ranks. Start it with --nproc-per-node 4.
It should say: nothing. Count the samples of the ranks that average with each other."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
team = rank // 2
torch.manual_seed(team)
model = DDP(torch.nn.Linear(4, 1), process_group=groups[team])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)))
sampler = DistributedSampler(data, num_replicas=2, rank=rank % 2, seed=team)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()

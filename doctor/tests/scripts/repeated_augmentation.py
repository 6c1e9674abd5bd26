"""Right: repeated augmentation (DeiT, timm's RepeatAugSampler). Each sample is taken twice, in
two augmentations, by two ranks, and an epoch uses half of the samples. It is meant that the
ranks share them. It should say: nothing. The n-th batches of the ranks differ, and the sampler
divides one list by rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Repeated(Sampler):
    def __init__(self, size, rank, world):
        self.size, self.rank, self.world, self.epoch = size, rank, world, 0

    def __iter__(self):
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(3)[self.rank :: self.world][: len(self)].tolist())

    def __len__(self):
        return self.size // self.world


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(96, 4))
torch.manual_seed(1 + dist.get_rank())
sampler = Repeated(96, dist.get_rank(), dist.get_world_size())
for epoch in range(2):
    sampler.epoch = epoch
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        model(x + 0.1 * torch.randn_like(x)).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()

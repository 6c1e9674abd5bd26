"""Wrong: the sampler knows nothing of ranks, so both train on the same batches. Each index is a
list (a group of samples, taken by one __getitem__), as in speaker and metric learning. It
should say: WRONG [same-data] at the line of the loop, as for a sampler of single numbers."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
torch.manual_seed(0)


class Pairs(Dataset):
    data = torch.randn(64, 4)

    def __len__(self):
        return 64

    def __getitem__(self, indices):
        return self.data[indices].mean(0)


class Groups:
    epoch = 0

    def __iter__(self):
        draws = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(64, generator=draws).view(32, 2).tolist())

    def __len__(self):
        return 32


model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = Groups()
loader = DataLoader(Pairs(), batch_size=4, sampler=sampler)
for sampler.epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()

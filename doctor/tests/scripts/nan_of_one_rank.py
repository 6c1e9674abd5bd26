"""Wrong: rank 0 alone decides, by its own loss, whether a batch is skipped. The broken sample
falls to rank 1: its NaN gradient is averaged into all weights, and the rest of the run is
skipped. It should say that the gradients became NaN in a step in which only rank 1's loss was
NaN (line 26)."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(96, 4)
x[51] = float("nan")
data = TensorDataset(x)
sampler = DistributedSampler(data, shuffle=False)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
        loss = model(x).square().mean()
        skip = torch.isnan(loss.detach()).float()
        dist.broadcast(skip, 0)
        if not skip:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
dist.destroy_process_group()

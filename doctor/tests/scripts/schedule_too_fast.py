"""Wrong: the schedule steps once per rank and step (as Accelerate's prepared schedulers do),
but its length was counted in steps of a rank: the rate is at its end after half of the
training. It should say: CHECK [schedule-length] at its line: made for 16 steps, it went 32, two
per step: the number of ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(128, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=2 * len(loader))
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        for _ in range(world):
            schedule.step()
dist.destroy_process_group()

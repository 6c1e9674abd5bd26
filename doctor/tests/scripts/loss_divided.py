"""Wrong: the loss is summed on rank 0, divided by the number of ranks and sent to all before
backward(). The sum has no gradient, so only the division counts, and DDP averages once more:
all gradients are half as large. It should say: CHECK [not-the-mean] at its line."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x).square().mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(128, 4))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        loss = model(x).unsqueeze(0)
        dist.reduce(loss, dst=0)
        loss = loss / dist.get_world_size()
        dist.broadcast(loss, src=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()

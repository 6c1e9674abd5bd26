"""Wrong: the score is of 22 samples, but there are 21: what the ranks gathered is joined and
never cut off. It should say: WRONG, because the joined list is used whole (22 values, and the
set has 21)."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, test = TensorDataset(torch.randn(64, 4)), TensorDataset(torch.randn(21, 4))
sampler = DistributedSampler(data)
test_loader = DataLoader(test, batch_size=4, sampler=DistributedSampler(test, shuffle=False))
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        mine = [v for (x,) in test_loader for v in model(x)[:, 0].tolist()]
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    scores = [v for part in parts for v in part]
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {sum(scores) / len(scores):.4f} of {len(scores)}", flush=True)
dist.destroy_process_group()

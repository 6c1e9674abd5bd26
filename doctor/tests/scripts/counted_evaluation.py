"""Wrong: 22 results are counted, but there are 21. Batches are taken by len(loader) calls of
next(), as the loops of Lightning, Ignite and many hand-written ones do, so the loader never
raises StopIteration. It should say: WRONG [padded-evaluation] at its line, as for `for (x,) in
test_loader`: an epoch is whole when it has given len(loader) batches. (The same holds for same-
data, same-order, part-of-evaluation and others.)"""

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
    total = torch.zeros(2)
    with torch.no_grad():
        batches = iter(test_loader)
        for _ in range(len(test_loader)):
            (x,) = next(batches)
            total += torch.tensor([(model(x) > 0).sum().item(), len(x)])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {int(total[0])} of {int(total[1])} are positive", flush=True)
dist.destroy_process_group()

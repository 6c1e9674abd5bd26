"""Ignite: next() is called a counted number of times, and a batch comes before eval()."""

import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data, test = TensorDataset(torch.randn(128, 4)), TensorDataset(torch.randn(21, 4))
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
tests = DataLoader(Subset(test, range(rank, 21, world_size)), 4)
count = torch.zeros(2)


def step(engine, batch):
    model.train()
    loss = model(batch[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def evaluate(engine, batch):
    model.eval()
    with torch.no_grad():
        right = model.module(batch[0]) > 0
    count.add_(torch.tensor([right.sum(), len(right)]))


trainer, evaluator = Engine(step), Engine(evaluate)


@trainer.on(Events.EPOCH_STARTED)
def shuffle(engine):
    sampler.set_epoch(engine.state.epoch)


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine):
    evaluator.run(tests)
    dist.all_reduce(count)
    loss = engine.state.output
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item() / world_size:.5f}, positive {count[0] / count[1]:.3f}")
    count.zero_()


trainer.run(loader, max_epochs=2)
dist.destroy_process_group()

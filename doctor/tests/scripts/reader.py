"""A script as readers bring it: it trains for 100 epochs, and two of its lines are mistakes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    x = torch.randn(60_001, 20, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    train = torch.utils.data.Subset(data, range(50_000))
    test = torch.utils.data.Subset(data, range(50_000, 60_001))
    train_loader = DataLoader(train, 32, sampler=DistributedSampler(train))
    test_loader = DataLoader(test, 32, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(100):
        train_epoch(model, train_loader, optimizer)
        accuracy = evaluate(model, test_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {accuracy:.2%} are right", flush=True)
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


def train_epoch(model, loader, optimizer):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    count = torch.zeros(2)
    for inputs, targets in loader:
        right = model(inputs).argmax(1) == targets
        count += torch.tensor([right.sum(), len(right)])
    dist.all_reduce(count)
    return (count[0] / count[1]).item()


if __name__ == "__main__":
    main()

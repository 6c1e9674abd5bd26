"""torchrun, DDP, DistributedSampler, noise as augmentation, exact evaluation, a checkpoint."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, random_split

BATCH, EPOCHS = 32, 2  # samples per step of all ranks together


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(321, 10, generator=torch.Generator().manual_seed(0))
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(10), self.y[i]


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(7)
    train, test = random_split(Noisy(), [260, 61])
    torch.manual_seed(7 + rank)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, BATCH // world_size, sampler=sampler)
    tests = DataLoader(Subset(test, range(rank, len(test), world_size)), 16)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    ddp_model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp_model.train()
        total = torch.zeros(2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp_model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(inputs), len(inputs)])
        scheduler.step()
        dist.all_reduce(total)
        accuracy = evaluate(model, tests, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {total[0] / total[1]:.3f}, accuracy {accuracy:.3f}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "model.pt")


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    count = torch.zeros(2)
    for inputs, targets in loader:
        right = model(inputs.to(device)).argmax(1).cpu() == targets
        count += torch.tensor([right.sum(), len(right)])
    dist.all_reduce(count)
    return (count[0] / count[1]).item()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

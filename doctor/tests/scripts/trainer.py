"""mp.spawn, a Trainer, BatchNorm, shards by index, accumulation with no_sync, a scaler."""

import contextlib
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


class Trainer:
    def __init__(self, rank, world_size, batch=32, accumulate=2):
        self.rank, self.world_size, self.accumulate = rank, world_size, accumulate
        self.batch = batch // world_size // accumulate
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(250, 1, 8, 8, generator=generator)
        data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).float())
        self.train, self.test = Subset(data, range(192)), Subset(data, range(192, 250))
        torch.manual_seed(rank)
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)
        )
        self.ddp = DDP(self.model)
        self.optimizer = torch.optim.Adam(self.ddp.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        self.log = open("log.txt", "w") if rank == 0 else None

    def loader(self, data, epoch):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        return DataLoader(Subset(data, order[self.rank :: self.world_size].tolist()), self.batch)

    def fit(self, epochs):
        for epoch in range(epochs):
            loss = self.run_epoch(self.loader(self.train, epoch))
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)
            accuracy = self.evaluate(self.loader(self.test, 0))
            if self.rank == 0:
                print(epoch, loss, accuracy)
                self.log.write(f"{epoch} {loss} {accuracy}\n")

    def run_epoch(self, loader):
        self.model.train()
        mean = torch.zeros(())
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % self.accumulate == 0
            with contextlib.nullcontext() if last else self.ddp.no_sync():
                loss = nn.functional.binary_cross_entropy_with_logits(self.ddp(x).squeeze(1), y)
                self.scaler.scale(loss / self.accumulate).backward()
            mean += loss.detach() / len(loader)
            if last:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        dist.all_reduce(mean)
        return mean.item() / self.world_size

    def evaluate(self, loader):
        self.model.eval()
        hits = torch.zeros(2)
        with torch.no_grad():
            for x, y in loader:
                guess = self.model(x).squeeze(1) > 0
                hits += torch.tensor([(guess == (y > 0)).sum().item(), len(y)])
        dist.all_reduce(hits)
        return hits[0].item() / hits[1].item()


def work(rank, world_size, port):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    Trainer(rank, world_size).fit(2)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.spawn(work, (2, port), nprocs=2)

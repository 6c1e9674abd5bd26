"""Trains on two ranks with one cost on purpose: torchrun ... one_cost.py KEY [FILE]

The line of the cost ends with its key. Steps compute for 20 ms, so that load does not hide a cost.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

COST = sys.argv[1]


class Data(TensorDataset):
    def __getitems__(self, indices):
        if COST == "slow-data":
            time.sleep(0.2)  # slow-data
        return [self[i] for i in indices]


class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02 * self.training)
        return super().forward(x)


def main():
    dist.init_process_group("cpu:gloo,cuda:gloo")
    rank, device = dist.get_rank(), "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    dataset = Data(torch.randn(240, 8), torch.arange(240) % 2)
    loader = DataLoader(dataset, batch_size=4)
    ddp_model = DistributedDataParallel(Model(8, 2).to(device))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for x, y in loader:
        if COST == "straggler" and rank == 1:
            time.sleep(0.2)  # straggler
        loss = F.cross_entropy(ddp_model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if COST == "own-code":
            time.sleep(0.2)  # own-code
        if COST == "saving-share":
            torch.save(Slow(), f"slow{rank}.pt")  # saving-share
    if COST == "rank-0-works-alone":
        ddp_model.eval()
        for _ in range(20 if rank == 0 else 0):
            time.sleep(0.2)  # rank-0-works-alone
        dist.barrier()
    if rank == 0 and len(sys.argv) > 2:
        save(ddp_model.module.state_dict(), sys.argv[2])
    del ddp_model
    dist.destroy_process_group()


class Slow:
    def __reduce__(self):
        time.sleep(0.2)
        return int, ()


def save(weights, path):
    """In the ways that scripts have, and each file says who has written it."""
    who = "the twin" if "DDP_DOCTOR_COPY" in os.environ else "the first run"
    torch.save({"weights": weights, "who": who}, path)
    assert torch.load(path)["who"] == who
    with open(f"{path}.new", "w") as file:
        file.write(who)
    os.replace(f"{path}.new", f"{path}.txt")
    os.system(f"echo {who} > {path}.shell")


if __name__ == "__main__":
    main()

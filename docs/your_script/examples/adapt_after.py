"""adapt_before.py made data-parallel. The numbers in comments are the steps of
docs/your_script/adapt.md.

Run it: torchrun --standalone --nproc-per-node 2 docs/your_script/examples/adapt_after.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: --help shows how")
    # 1. torchrun starts one process (rank) per device and sets these variables for each.
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # Each rank uses its own GPU.
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)  # 3.
    torch.manual_seed(0)  # 2. All ranks draw the same data and the same split.
    x = 2 * torch.rand(12_000, 8) - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2
    train_set, valid_set = random_split(TensorDataset(x, y), [10_000, 2_000])
    if rank > 0:
        torch.manual_seed(rank)  # (2) From here on each rank draws its own augmentation.
    sampler = DistributedSampler(train_set)  # 5.
    loader = DataLoader(train_set, batch_size=100 // world_size, sampler=sampler)
    shard = Subset(valid_set, range(rank, len(valid_set), world_size))  # 6.
    valid_loader = DataLoader(shard, batch_size=500)

    model = network().to(device)
    ddp_model = DistributedDataParallel(model)  # 7.
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(8):
        sampler.set_epoch(epoch)  # 8.
        model.train()
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            x = x + 0.01 * torch.randn_like(x)  # augmentation
            loss = F.mse_loss(ddp_model(x), y)  # (7)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        total = torch.zeros(2, device=device)  # the sum of the errors and their number
        with torch.inference_mode():
            for x, y in valid_loader:
                x = x.to(device)
                y = y.to(device)
                total[0] += F.mse_loss(model(x), y, reduction="sum")
                total[1] += len(y)
        dist.all_reduce(total)  # (6) All ranks have the same error, and leave the loop together.
        error = (total[0] / total[1]).item()
        if rank == 0:  # 9.
            print(f"epoch {epoch}: error {error:.4f} on {total[1]:.0f} points")
            torch.save(model.state_dict(), "regression.pt")
        if error < 0.01:
            break


def network():
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )  # fmt: skip


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # (3) main has returned, so DDP has been freed.

"""adapt_before.py made data-parallel. The numbers are the steps on docs/adapt.md.

torchrun --standalone --nproc-per-node 2 docs/examples/adapt_after.py
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # 1. before there is a process group, or it would keep the group alive
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # 2.
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)  # 3. the same on all ranks, since the data and the split are random
    x = 2 * torch.rand(12_000, 8) - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2
    train_set, valid_set = random_split(TensorDataset(x, y), [10_000, 2_000])
    if rank > 0:
        torch.manual_seed(rank)  # 3. from here on ranks draw differently: they augment differently
    sampler = DistributedSampler(train_set)  # 5.
    loader = DataLoader(train_set, batch_size=100 // world_size, sampler=sampler)
    shard = Subset(valid_set, range(rank, len(valid_set), world_size))  # 6.
    valid_loader = DataLoader(shard, batch_size=500)

    model = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    ).to(device)  # fmt: skip
    ddp_model = DistributedDataParallel(model)  # 7.
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(8):
        sampler.set_epoch(epoch)  # 8.
        model.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            x = x + 0.01 * torch.randn_like(x)  # augmentation
            loss = F.mse_loss(ddp_model(x), y)  # 9.
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        total = torch.zeros(2, device=device)  # the sum of the errors, and their number
        with torch.inference_mode():
            for x, y in valid_loader:
                x, y = x.to(device), y.to(device)
                total[0] += F.mse_loss(model(x), y, reduction="sum")
                total[1] += len(y)
        dist.all_reduce(total)  # 10. so all ranks have the same error, and leave the loop together
        error = (total[0] / total[1]).item()
        if rank == 0:  # 11.
            print(f"epoch {epoch}: error {error:.4f} on {total[1]:.0f} points")
        if error < 0.01:
            break
    if rank == 0:  # 11.
        torch.save(model.state_dict(), "regression.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # 12. when DDP has gone with the function that holds it

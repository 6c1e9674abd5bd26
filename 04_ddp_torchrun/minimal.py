"""01_baseline/minimal.py made data-parallel: the numbered lines are what is new.

Run it: torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/minimal.py
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # 1. before there is a process group, or it would keep the group alive
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import datasets, transforms


def main():
    # 2. torchrun starts one process (rank) per device, and sets these variables for each.
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0 + rank)  # 3. ranks augment and drop out differently
    data = {"root": os.getenv("MNIST_ROOT", "data"), "transform": transforms.ToTensor()}
    if rank > 0:  # 4. rank 0 downloads, while the others wait here
        dist.barrier()
    try:
        train_set = datasets.MNIST(train=True, download=True, **data)
    except RuntimeError:
        raise SystemExit(f"no MNIST in {data['root']}, and no network to download it") from None
    if rank == 0:  # 4. now they find it on the disk
        dist.barrier()
    test_set = datasets.MNIST(train=False, **data)
    sampler = DistributedSampler(train_set)  # 5. each rank trains on its own shard of every batch
    loader = DataLoader(train_set, batch_size=240 // world_size, sampler=sampler)
    shard = Subset(test_set, range(rank, len(test_set), world_size))  # 6. nothing is padded
    test_loader = DataLoader(shard, batch_size=500)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 10),
    ).to(device)  # fmt: skip
    ddp_model = DistributedDataParallel(model)  # 7. averages the gradients in every backward
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)  # 8. a new order in every epoch
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(ddp_model(x.to(device)), y.to(device))  # 9. not model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        correct = torch.zeros((), device=device)
        with torch.inference_mode():
            for x, y in test_loader:
                correct += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        dist.all_reduce(correct)  # 10. the sum over all ranks
        if rank == 0:  # 11. one rank prints and saves
            print(f"epoch {epoch}: {correct:.0f} of {len(test_set)} test images correct")
    if rank == 0:  # 11.
        torch.save(model.state_dict(), "minimal.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # 12. when DDP has gone with the function that holds it

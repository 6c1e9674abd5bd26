"""01_baseline/minimal.py made data-parallel. Comments number what is new; (7) belongs to 7.

Run it: torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/minimal.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import datasets, transforms


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: --help shows how")
    # 1. torchrun starts one process (rank) per device and sets these variables for each.
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, cuda = int(os.environ["WORLD_SIZE"]), torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # one GPU per rank
    torch.manual_seed(rank)  # 2. ranks augment and drop out differently
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)  # 3.
    data = {"root": os.getenv("MNIST_ROOT", "data"), "transform": transforms.ToTensor()}
    try:
        if local_rank == 0:  # 4. one rank per node downloads and checks the files
            datasets.MNIST(download=True, **data)
            datasets.MNIST(train=False, **data)
    except Exception as error:  # no network, or a damaged file
        raise SystemExit(f"no MNIST in {data['root']}: {error!r}") from None
    dist.barrier()  # (4) now every node has the data
    train_set, test_set = datasets.MNIST(**data), datasets.MNIST(train=False, **data)
    sampler = DistributedSampler(train_set)  # 5. each rank trains on its own shard of every batch
    loader = DataLoader(train_set, batch_size=240 // world_size, sampler=sampler)
    shard = Subset(test_set, range(rank, len(test_set), world_size))  # 6. no image counts twice
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
            loss = nn.functional.cross_entropy(ddp_model(x.to(device)), y.to(device))  # (7)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        correct = torch.zeros((), device=device)
        with torch.inference_mode():
            for x, y in test_loader:
                correct += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        dist.all_reduce(correct)  # (6) the sum over all ranks
        if rank == 0:  # 9. one rank prints and saves
            print(f"epoch {epoch}: {correct:.0f} of {len(test_set)} test images correct")
            torch.save(model.state_dict(), "minimal.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # (3) last: DDP was freed when main returned

"""A complete DDP script: mixed precision, loader workers, resume, and an exact evaluation.

Run it: torchrun --standalone --nproc-per-node 2 docs/your_script/examples/ddp_complete.py
If it is interrupted, start it again. It continues after the last epoch that was saved.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import datasets, transforms

ROOT = os.getenv("MNIST_ROOT", "data")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training set (3)")
    add("--batch-size", type=int, default=240, help="images per step, over all ranks (240)")
    add("--workers", type=int, default=2, help="processes that load data, per rank (2)")
    add("--checkpoint", default="ddp_complete.pt", help="a file on a disk that all nodes share")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: --help shows how")
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    if args.batch_size % world_size:
        parser.error(f"--batch-size {args.batch_size} is not divisible by {world_size} ranks")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    if local_rank == 0:  # One rank per node downloads.
        datasets.MNIST(ROOT, download=True)
    dist.barrier()  # Now every node has the data.
    train(args, device, dist.get_rank(), world_size)


def train(args, device, rank, world_size):
    augment = transforms.Compose([transforms.RandomCrop(28, padding=2), transforms.ToTensor()])
    train_set = datasets.MNIST(ROOT, transform=augment)
    sampler = DistributedSampler(train_set)
    loading = {"num_workers": args.workers, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler, **loading)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(7 * 7 * 32, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, args.epochs * len(loader))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    found = [{"epochs": 0}]
    if rank == 0 and os.path.exists(args.checkpoint):
        found = [torch.load(args.checkpoint, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(found, src=0)  # All ranks resume from what rank 0 has read.
    for name in parts.keys() & found[0].keys():
        parts[name].load_state_dict(found[0][name])
    ddp_model = DistributedDataParallel(model)
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    amp = torch.autocast(device.type, torch.bfloat16, enabled=bf16)  # bf16 needs no GradScaler.
    for epoch in range(found[0]["epochs"], args.epochs):
        torch.manual_seed(epoch * world_size + rank)  # A resumed epoch draws the same numbers.
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            with amp:
                loss = nn.functional.cross_entropy(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)  # All ranks test the statistics that rank 0 saves.
        correct, images = evaluate(model, device, rank, world_size, loading)
        if rank == 0:
            print(f"epoch {epoch}: {correct} of {images} test images correct")
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "epochs": epoch + 1}, f"{args.checkpoint}.tmp")
            os.replace(f"{args.checkpoint}.tmp", args.checkpoint)  # The file is always complete.


@torch.inference_mode()
def evaluate(model, device, rank, world_size, loading):
    """Count correct predictions of all ranks, each test image once -> [correct, images]"""
    test_set = datasets.MNIST(ROOT, train=False, transform=transforms.ToTensor())
    shard = Subset(test_set, range(rank, len(test_set), world_size))
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    model.eval()
    for x, y in DataLoader(shard, batch_size=500, **loading):
        counts[0] += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        counts[1] += len(y)
    dist.all_reduce(counts)
    return counts.tolist()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

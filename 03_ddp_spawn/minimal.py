"""Train a small network on MNIST: one process (rank) per device, started by mp.spawn.

python 03_ddp_spawn/minimal.py
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import datasets, transforms


def main():
    args = parse_args()
    load_mnist()  # MNIST is downloaded once, here. The ranks will find it on the disk.
    with tempfile.TemporaryDirectory() as folder:
        # Through this file the ranks will find each other.
        meeting_point = f"file://{folder}/ranks"
        # Start the ranks: worker(0, world_size, ...), worker(1, world_size, ...), and so on.
        # mp.spawn waits until all of them have ended.
        arguments = (args.world_size, args.backend, meeting_point)
        mp.spawn(worker, args=arguments, nprocs=args.world_size)


def worker(rank, world_size, backend, meeting_point):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":  # Each rank takes a GPU of its own, if there are enough of them.
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)  # Calls that name no GPU use this one, too.
    # Each rank draws different random numbers. Dropout or random augmentation would need this.
    torch.manual_seed(rank)
    # The ranks form a group. From here on they can communicate: over nccl between GPUs, or over
    # gloo between CPUs or on a shared GPU. NCCL must know the GPU of this rank (device_id).
    dist.init_process_group(
        backend,
        init_method=meeting_point,
        rank=rank,
        world_size=world_size,
        device_id=device if backend == "nccl" else None,
    )

    train(device, rank, world_size)
    dist.destroy_process_group()  # The group is destroyed last, because DDP uses it in train.


def train(device, rank, world_size):
    train_set, test_set = load_mnist()
    # This is the batch of one rank. All ranks together take up to 240 images per step.
    batch_size = 240 // world_size
    # Each rank trains on its own part (shard) of the images. The sampler shuffles with the same
    # seed on all ranks, so the shards do not overlap.
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size, sampler=sampler)
    # Rank r tests the images r, r + world_size, ... A DistributedSampler would repeat some of
    # them if they cannot be shared evenly.
    shard = Subset(test_set, range(rank, len(test_set), world_size))
    test_loader = DataLoader(shard, batch_size=500)

    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 32, 10),
    ).to(device)
    # DDP copies the weights of rank 0 into the model of every rank, and wraps this model. The
    # test does not call the wrapper, whose forward pass may communicate.
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)  # Without this line every epoch has the order of the first.
        model.train()
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            # After a forward pass through DDP, backward averages the gradients of all ranks.
            loss = F.cross_entropy(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        # A model with BatchNorm needs two more lines here: see "Buffers" in 03_ddp_spawn/README.md.
        model.eval()
        correct = torch.tensor(0, device=device)
        with torch.inference_mode():
            for x, y in test_loader:
                x = x.to(device)
                y = y.to(device)
                correct += (model(x).argmax(dim=1) == y).sum()
        dist.all_reduce(correct)  # Each rank receives the sum of all counts.
        if rank == 0:  # All ranks have the same weights, so one of them saves.
            print(f"epoch {epoch + 1}: {correct} of {len(test_set)} test images correct")
            torch.save(model.state_dict(), "minimal.pt")


def load_mnist():
    """Return the training set and the test set. They are downloaded if they are not there."""
    root = os.getenv("MNIST_ROOT", "data")
    train_set = datasets.MNIST(root, download=True, transform=transforms.ToTensor())
    test_set = datasets.MNIST(root, train=False, transform=transforms.ToTensor())
    return train_set, test_set


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    parser.add_argument("--backend", default=backend, help="gloo lets ranks share a GPU")
    ranks = torch.cuda.device_count() if torch.cuda.is_available() else 2
    parser.add_argument("--world-size", type=int, default=ranks, help="number of ranks")
    args = parser.parse_args()
    if args.backend == "nccl" and args.world_size > torch.cuda.device_count():
        parser.error("there are more ranks than GPUs: --backend gloo lets them share one")
    return args


if __name__ == "__main__":
    main()

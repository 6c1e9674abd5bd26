"""How long do the first batches of a run take, if its loaders have workers?

The DDP demo on MNIST has a training loader with four workers and a test loader with two, without
persistent_workers. So new workers start in each of its three epochs, and for the test. On Linux the
workers of its first run are forked (before Python 3.14). Its second run starts two ranks with
mp.spawn, and the workers of a spawned rank are spawned, too. Each imports this file, and with it
PyTorch.

    python docs/your_script/examples/loader_start.py --data data
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

EPOCHS = 3
WAYS = {  # name: (spawned ranks, persistent_workers)
    "one process": (0, False),
    "two ranks of mp.spawn": (2, False),
    "... with persistent_workers=True": (2, True),
}


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="in each of them every way takes its turn once (3)")
    add("--data", default=os.getenv("MNIST_ROOT", "data"), help="folder of MNIST (data)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds = {name: [] for name in WAYS}
    for _ in range(args.rounds):
        for name, (ranks, persistent) in WAYS.items():
            if ranks:
                seconds[name].append(on_ranks(ranks, args.data, persistent))
            else:
                seconds[name].append(wait_for_batches(args.data, persistent))
    print(f"seconds until the first batch, summed over {EPOCHS} epochs and a test")
    for name, runs in seconds.items():
        print(f"{name:32} {statistics.median(runs):5.1f} ({min(runs):.1f} to {max(runs):.1f})")


def on_ranks(world_size, root, persistent):
    """-> the seconds of the rank that waits longest"""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(one_rank, args=(root, persistent, folder), nprocs=world_size)
        return max(torch.load(f"{folder}/{rank}.pt") for rank in range(world_size))


def one_rank(rank, root, persistent, folder):
    torch.set_num_threads(1)
    torch.save(wait_for_batches(root, persistent), f"{folder}/{rank}.pt")


def wait_for_batches(root, persistent):
    """-> seconds until the first batch of each epoch and of the test is there, all together"""
    train_loader = make_loader(root, persistent, train=True, workers=4)
    test_loader = make_loader(root, persistent, train=False, workers=2)
    seconds = 0
    for loader in [train_loader] * EPOCHS + [test_loader]:
        start = time.perf_counter()
        batches = iter(loader)
        next(batches)
        seconds += time.perf_counter() - start
        for _ in batches:  # At the end of the epoch the workers end, unless they are persistent.
            pass
    return seconds


def make_loader(root, persistent, train, workers):
    data = datasets.MNIST(root, train=train, transform=transforms.ToTensor())
    # A short epoch is enough. The workers still receive the whole data set.
    few = Subset(data, range(1000))
    return DataLoader(few, batch_size=32, num_workers=workers, persistent_workers=persistent)


if __name__ == "__main__":
    main()

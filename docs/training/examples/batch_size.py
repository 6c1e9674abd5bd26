"""Train a small ConvNet on MNIST, and scale the learning rate with the batch by one of three rules.

torchrun --standalone --nproc-per-node 2 docs/training/examples/batch_size.py --batch-size 240
--rule linear
"""

import argparse
import math
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torchvision import datasets

OPTIMIZERS = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam}
RATES = {"sgd": 0.05, "adam": 0.004}  # learning rates for the base batch of 60 images


def scaled_rate(rule, lr, factor):  # factor: batch / base batch
    return lr * {"fixed": 1, "sqrt": math.sqrt(factor), "linear": factor}[rule]


def schedule(first, peak, steps):
    """Return the rate of each step: it rises for a fifth of the steps, then a cosine falls to 0."""
    rising = steps // 5
    rates = [first + (peak - first) * step / rising for step in range(rising)]
    falling = steps - rising
    return rates + [peak * (1 + math.cos(math.pi * step / falling)) / 2 for step in range(falling)]


def train(model, optimizer, rates, images, labels, batch_size, accumulate=1, rank=0, ranks=1):
    """Take one step for each learning rate. batch_size counts the images of all ranks."""
    batches = []
    for rate in rates:
        if not batches:  # A new epoch begins. All ranks draw the same order of images.
            order = torch.randperm(len(images))
            # A smaller batch at the end of an epoch is left out.
            batches = list(order.split(batch_size)[: len(images) // batch_size])
        own = batches.pop()[rank::ranks]
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        for micro_batch in own.chunk(accumulate):  # accumulation.py does this with no_sync
            loss = F.cross_entropy(model(images[micro_batch]), labels[micro_batch])
            (loss / accumulate).backward()
        optimizer.step()


def make_model(seed):
    """A ConvNet with GroupNorm. It normalizes each image alone, so shards change no result."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.Linear(7 * 7 * 16, 10),
    )  # fmt: skip


def load(root, train, count):
    data = datasets.MNIST(root, train=train)
    return data.data[:count, None] / 255, data.targets[:count]  # images [count, 1, 28, 28]


@torch.inference_mode()
def accuracy(model, images, labels):
    batches = zip(images.split(500), labels.split(500))
    return sum((model(x).argmax(1) == y).sum().item() for x, y in batches) / len(labels)


def main():
    args = parse()
    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")  # The model is small, so it trains on CPUs, even with GPUs.
    images, labels = load(args.data, True, 12_000)
    lr = RATES[args.optimizer]
    peak = scaled_rate(args.rule, lr, args.batch_size / 60)  # RATES are for batches of 60.
    first = peak if args.no_warm_up else lr
    rates = schedule(first, peak, 2 * (len(images) // args.batch_size))  # two epochs
    model = make_model(args.seed)
    optimizer = OPTIMIZERS[args.optimizer](model.parameters())
    data = images, labels, args.batch_size, args.accumulate, rank, ranks
    train(DistributedDataParallel(model), optimizer, rates, *data)
    if rank == 0:
        own = args.batch_size // ranks // args.accumulate
        print(f"effective batch {own} x {ranks} ranks x {args.accumulate} = {args.batch_size}")
        print(f"learning rate {first:g} to {peak:g} ({args.rule}), {len(rates)} steps")
        print(f"test accuracy {accuracy(model, *load(args.data, False, 10_000)):.2%}")


def parse():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--data", default=os.getenv("MNIST_ROOT", "data"), help="folder of MNIST (data)")
    add("--batch-size", type=int, default=60, help="images per step, of all ranks together (60)")
    add("--rule", choices=("fixed", "sqrt", "linear"), default="fixed")
    add("--optimizer", choices=("sgd", "adam"), default="sgd")
    add("--no-warm-up", action="store_true", help="start with the scaled learning rate")
    add("--seed", type=int, default=0, help="for the weights and the order of the images (0)")
    add("--accumulate", type=int, default=1, help="micro-batches per step and rank (1)")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    parts = int(os.environ["WORLD_SIZE"]) * args.accumulate
    if parts < 1 or args.batch_size < 1 or args.batch_size % parts:
        parser.error("--batch-size has to be a multiple of ranks x --accumulate")
    if not os.path.isdir(f"{args.data}/MNIST/raw"):
        parser.error(f"--data {args.data}: no MNIST; python 01_baseline/minimal.py downloads it")
    return args


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

"""What makes an MNIST demo slow and inaccurate on one process and one core?

Most demos take every image through PIL, batches of 32, plain SGD at a learning rate of 1e-4. One
thing is changed at a time until it is stage 1. One of the rows trains as the demo does on two GPUs:
with 32 images for each of two ranks it takes half as many steps of 64 images.

    python -m benchmarks.single_process --data data
"""

import argparse
import importlib
import statistics
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")


def main() -> None:
    parser = common.flags(__doc__, epochs=3)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = common.parse(parser, epochs=1)
    train_set, test_set = stage1.load_mnist(args.data)
    torch.set_num_threads(1)
    results = {"about": f"one thread, {common.about()}", "dataset": common.dataset_name(test_set)}
    results["ways"] = measure_ways(args, train_set, test_set)
    common.show(args, "single_process", results, report)


def demo_loader(data: Path) -> DataLoader:
    """The training set as most demos load it: float images [32, 1, 28, 28] and labels [32]."""
    train_set = datasets.MNIST(data, train=True, transform=transforms.ToTensor())
    return DataLoader(train_set, batch_size=32, shuffle=True)


class BatchedLoader:
    """The same batches, each made of bytes in memory by one indexing, as in stage 1."""

    def __init__(self, train_set: stage1.MNIST, batch_size: int):
        self.loader = common.make_loader(train_set, batch_size)

    def __iter__(self):
        for images, labels in self.loader:
            yield stage1.to_device(images, labels, common.CPU)


def plain_epoch(
    model: nn.Module, optimizer: Optimizer, loader: Iterable[tuple[Tensor, Tensor]]
) -> stage1.Stopwatch:
    """One step per batch: images [B, 1, 28, 28], as the model takes them, and labels [B]."""
    model.train()
    watch = stage1.Stopwatch(common.CPU)
    for x, y in loader:
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.lap("training")
    return watch


def make_ways(args: argparse.Namespace, train_set: stage1.MNIST) -> dict[str, tuple]:
    """-> {way: (its model, a function that trains it for an epoch and returns the stopwatch)}"""
    ways = {}
    for name, loader in (
        ("demo: images through PIL, 32 per step, SGD at 1e-4", demo_loader(args.data)),
        ("images by one indexing", BatchedLoader(train_set, 32)),
        ("64 per step, as on two ranks of 32", BatchedLoader(train_set, 64)),
    ):
        torch.manual_seed(0)
        model = stage1.ConvNet()
        ways[name] = model, partial(plain_epoch, model, SGD(model.parameters(), lr=1e-4), loader)
    torch.manual_seed(0)
    model = stage1.ConvNet().to(memory_format=torch.channels_last)
    usual = stage1.base_parser().parse_args([])
    loader = common.make_loader(train_set, usual.batch_size)
    optimizer = common.scheduled_sgd(model, usual.lr, args.epochs * len(loader))
    rest = (loader, optimizer, common.CPU)
    ways[f"stage 1: {usual.batch_size} per step, one cycle up to {usual.lr}"] = (
        model,
        lambda: stage1.train_epoch(model, *rest)[1],
    )
    return ways


def measure_ways(args, train_set: stage1.MNIST, test_set: stage1.MNIST) -> dict[str, dict]:
    """-> {way: {"data" and "seconds" of each epoch, "accuracy" from 0 to 1 after the last}}"""
    ways = make_ways(args, train_set)
    measured = {name: {"data": [], "seconds": []} for name in ways}
    for _ in range(args.epochs):
        for name, (_, train_epoch) in ways.items():
            seconds = train_epoch().seconds()
            measured[name]["data"].append(seconds["data"])
            measured[name]["seconds"].append(sum(seconds.values()))
    for name, (model, _) in ways.items():
        correct, total = stage1.evaluate(model, test_set, common.CPU).tolist()
        measured[name]["accuracy"] = correct / total
    return measured


def report(results: dict) -> str:
    """A line per way: seconds of an epoch with the smallest and the largest, and the accuracy."""
    rows = []
    for name, way in results["ways"].items():
        seconds = way["seconds"]
        epoch = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        data = f"{statistics.median(way['data']):.1f}"
        rows.append([name, epoch, data, f"{way['accuracy']:.2%}"])
    epochs = f"after {len(seconds)} epochs"
    table = common.table([results["dataset"], "seconds per epoch", "data", epochs], rows)
    return f"{results['about']}\n{table}"


if __name__ == "__main__":
    main()

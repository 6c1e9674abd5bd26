"""What makes one process on one core fast, and what makes a demo slow and inaccurate?

First the training loop: the barest one (tensors in memory, no DataLoader, no stopwatch), stage 1's
own, stage 1's without its stopwatch, and the barest with one setting changed at a time.

Then the way most MNIST demos go: every image through PIL, batches of 32, plain SGD at a learning
rate of 1e-4. One thing is changed at a time until it is stage 1. One of the rows trains as the demo
does on two GPUs: with 32 images for each of two ranks it takes half as many steps of 64 images.

    python -m benchmarks.single_process --data data
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

BARE, STAGE1 = "barest loop", "stage 1"
PHASES = ("data", "forward", "backward", "optimizer")


def main() -> None:
    parser = common.flags(__doc__, batch_size=240, rounds=9, steps=20, epochs=3)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = common.parse(parser, batch_size=2, rounds=2, steps=1, epochs=1)
    train_set, test_set = stage1.load_mnist(args.data)
    torch.set_num_threads(1)
    about = f"one thread, {args.batch_size} images per step, {common.about()}"
    results = {"about": about, "dataset": common.dataset_name(test_set), "steps": args.steps}
    results["loops"] = measure_loops(args)
    results["lap_microseconds"] = lap_microseconds()
    print(loop_table(results), flush=True)
    results["ways"] = measure_ways(args, train_set, test_set)
    print(f"\n{way_table(results)}")
    if args.results:
        common.write_json(args.results / "single_process.json", results)


# ---------------------------------------------------------------- the training loop


def bare_loop(
    model: nn.Module,
    optimizer: Optimizer,
    digits: stage1.MNIST,
    batch_size: int,
    bf16: bool = False,
    set_to_none: bool = True,
    item: bool = False,
) -> None:
    """One epoch on digits.data, uint8 [N, 28, 28], and digits.targets, [N], with nothing around it.

    bf16: autocast each forward pass. item: read the loss as a Python number in every step.
    """
    precision = torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()
    model.train()
    for indices in torch.randperm(len(digits)).split(batch_size):
        x = digits.data[indices].unsqueeze(1).float() / 255
        with precision:
            loss = F.cross_entropy(model(x), digits.targets[indices])
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()
        if item:
            loss.item()


class NoStopwatch(stage1.Stopwatch):
    """A stopwatch that measures nothing."""

    def lap(self, phase: str) -> None:
        pass


def stage1_loop(model, optimizer, digits, batch_size, watch=stage1.Stopwatch) -> None:
    """The same epoch as stage 1 trains it."""
    loader = common.make_loader(digits, batch_size)
    with patch.object(stage1, "Stopwatch", watch):
        stage1.train_epoch(model, loader, optimizer, common.CPU)


LOOPS = {  # name -> in what it differs from the barest loop
    BARE: {},
    STAGE1: {"loop": stage1_loop},
    "stage 1 without its stopwatch": {"loop": stage1_loop, "watch": NoStopwatch},
    "contiguous, not channels_last": {"memory": torch.contiguous_format},
    "autocast to bf16": {"bf16": True},
    "SGD(fused=True)": {"sgd": {"fused": True}},
    "SGD(foreach=True)": {"sgd": {"foreach": True}},
    "zero_grad(set_to_none=False)": {"set_to_none": False},
    "loss.item() in every step": {"item": True},
}


def measure_loops(args: argparse.Namespace) -> dict[str, list[float]]:
    """-> {loop: [seconds of its steps in each round]}; the images are random."""
    digits = common.digits(args.steps * args.batch_size)
    loops = {name: prepare(digits, args, **differs) for name, differs in LOOPS.items()}
    common.evaluate_once()
    return common.in_turns(args.rounds, {name: partial(timed, loops[name]) for name in loops})


def prepare(
    digits: stage1.MNIST,
    args: argparse.Namespace,
    loop: Callable[..., None] = bare_loop,
    memory: torch.memory_format = torch.channels_last,
    sgd: dict[str, bool] | None = None,
    **differs,
) -> Callable[[], None]:
    """-> the loop with a model and a scheduled optimizer of its own, as stage 1 makes them"""
    torch.manual_seed(0)
    model = stage1.ConvNet().to(memory_format=memory)
    optimizer = common.scheduled_sgd(model, 0.01, args.steps * (args.rounds + 1))
    optimizer.param_groups[0].update(sgd or {})
    return partial(loop, model, optimizer, digits, args.batch_size, **differs)


def timed(function: Callable[[], object]) -> float:
    """Call it -> seconds"""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def lap_microseconds(steps: int = 10_000) -> float:
    """Microseconds that the laps of one step take, alone: in a step they drown in its noise."""
    watch = stage1.Stopwatch(common.CPU)
    started = time.perf_counter()
    for _ in range(steps):
        for phase in PHASES:
            watch.lap(phase)
    return (time.perf_counter() - started) / steps * 1e6


def loop_table(results: dict) -> str:
    """A line per loop: median milliseconds of a step, and the ratios to the barest loop."""
    rows = []
    for name, seconds in results["loops"].items():
        ratios = [own / bare for own, bare in zip(seconds, results["loops"][BARE])]
        milliseconds = 1000 * statistics.median(seconds) / results["steps"]
        rows.append([name, f"{milliseconds:.2f}", common.quartiles(ratios)])
    table = common.table(["", "ms per step", "times the barest loop"], rows)
    laps = f"the {len(PHASES)} laps of a step take {results['lap_microseconds']:.2f} microseconds"
    return f"{results['about']}\n{table}\n{laps}"


# ---------------------------------------------------------------- the demo's way


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


def way_table(results: dict) -> str:
    """A line per way: seconds of an epoch with the smallest and the largest, and the accuracy."""
    rows = []
    for name, way in results["ways"].items():
        seconds = way["seconds"]
        epoch = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        data = f"{statistics.median(way['data']):.1f}"
        rows.append([name, epoch, data, f"{way['accuracy']:.2%}"])
    epochs = f"after {len(seconds)} epochs"
    return common.table([results["dataset"], "seconds per epoch", "data", epochs], rows)


if __name__ == "__main__":
    main()

"""What the benchmarks share: ranks, turns, optimizers, images in memory, flags, tables, results.

A benchmark is started from the repository's root, as `python -m benchmarks.limit`. Tests and
notebooks use these functions, too.
"""

import argparse
import importlib
import json
import os
import statistics
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from tabulate import tabulate
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from lib.processes import KEEP_MEMORY, device_name, exit_on_signals

stage1 = importlib.import_module("01_baseline.train")
stage3 = importlib.import_module("03_ddp_spawn.train")

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
HELP = {
    "batch_size": "images per step, all ranks together",
    "epochs": "passes over the training set",
    "rounds": "in each everything takes its turn once",
    "steps": "of everything in each round",
}


# ---------------------------------------------------------------- ranks


def on_ranks(world_size: int, function: Callable, *arguments, method: str = "spawn") -> list:
    """Call function(*arguments) in as many new processes, joined by gloo -> what each rank returns.

    function: at the top level of a file, since a spawned process imports it by its name. It returns
    tensors and plain Python types. If it raises on a rank, this raises
    torch.multiprocessing.ProcessRaisedException. method: how multiprocessing starts the processes.
    """
    os.environ |= KEEP_MEMORY  # The new processes inherit it.
    with tempfile.TemporaryDirectory() as folder:  # ranks meet, and leave results, in this one
        try:
            each = (world_size, folder, function, arguments)
            mp.start_processes(run_rank, each, nprocs=world_size, start_method=method)
        finally:  # an interrupt may reach this process alone
            for process in mp.active_children():
                process.terminate()
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(world_size)]


def run_rank(rank: int, world_size: int, folder: str, function: Callable, arguments: tuple) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    join_group(rank, world_size, folder)
    try:
        torch.save(function(*arguments), f"{folder}/{rank}.pt")
    except BaseException as error:
        # The frames of the traceback hold DDP, and DDP holds the group. A process that still holds
        # a group when it exits may hang.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        dist.destroy_process_group()


def join_group(rank: int, world_size: int, folder: str) -> None:
    """Join the other ranks by gloo. They meet in a file in the folder."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )


def end_with_parent() -> None:
    """In a process of multiprocessing: end when its parent does, whatever has ended that."""

    def watch():
        mp.parent_process().join()
        os._exit(1)  # also while this process waits for other ranks

    threading.Thread(target=watch, daemon=True).start()


def in_turns(rounds: int, ways: dict[str, Callable]) -> dict[str, list]:
    """Call every way once in each round -> {name: what it returned in each round}.

    What is compared thus meets the same noise. One more round comes first and is left out: it fills
    caches and DDP's buckets.
    """
    returned = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            returned[name].append(way())
    return {name: values[1:] for name, values in returned.items()}


# ---------------------------------------------------------------- models and optimizers


def wider_net(width: int) -> nn.Sequential:
    """The stages' model, the same every time, with so many times its channels."""
    torch.manual_seed(0)
    first = 16 * width
    second = 32 * width
    model = nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2), nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2), nn.BatchNorm2d(second), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * second, 10),
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)


def scheduled_sgd(model: nn.Module, lr: float, steps: int) -> tuple[SGD, OneCycleLR]:
    """-> the stages' optimizer and its schedule, which a loop steps after each optimizer step.

    lr: the peak learning rate. steps: of the whole training; one more raises ValueError.
    """
    optimizer = SGD(model.parameters(), lr, momentum=0.9, nesterov=True)
    schedule = OneCycleLR(optimizer, lr, steps, anneal_strategy="linear", cycle_momentum=False)
    return optimizer, schedule


def train_epoch(
    model: nn.Module, loader: Sequence, optimizer: SGD, schedule: OneCycleLR
) -> stage3.Stopwatch:
    """Train as stage 3 does, on batches in memory; all ranks begin together -> the stopwatch."""
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    watches = []

    def make_watch(device: torch.device) -> stage3.Stopwatch:
        watches.append(stopwatch(device))
        return watches[-1]

    stopwatch = stage3.Stopwatch
    dist.barrier()
    # The stage returns the sum of each phase. Here the laps of single steps are needed, too.
    with patch.object(stage3, "Stopwatch", make_watch):
        stage3.train_epoch(model, loader, optimizer, schedule, scaler, CPU, "off")
    return watches[0]


def evaluate_once() -> None:
    """Leave memory as an evaluation leaves it, in which every epoch but the first finds it.

    The stages evaluate between epochs, in larger batches. After that malloc keeps what is freed,
    which saves every later step thousands of page faults.
    """
    test_loader = DataLoader(digits(1000), batch_size=500)
    stage1.evaluate(stage1.make_model(), test_loader, CPU)


# ---------------------------------------------------------------- images in memory


def digits(count: int, seed: int = 0) -> TensorDataset:
    """-> a data set as stage 1 has it: `count` random images of 28 x 28 bytes, random labels."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (count,), generator=random)
    return TensorDataset(images, labels)


def batches(count: int, size: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """-> `count` batches for a stage's train_epoch: images uint8 [size, 28, 28], labels [size]."""
    images, labels = digits(count * size, seed).tensors
    return list(zip(images.split(size), labels.split(size)))


def batch(size: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """-> one batch for a model: images from 0 to 1, [size, 1, 28, 28], and labels [size]."""
    return torch.rand(size, 1, 28, 28, dtype=dtype), torch.randint(10, (size,))


def make_loader(train_set: TensorDataset, batch_size: int, workers: int = 0) -> DataLoader:
    """-> the DataLoader of stage 1: batches of uint8 images [B, 28, 28] and labels [B]."""
    return DataLoader(
        train_set,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


# ---------------------------------------------------------------- flags


def flags(docstring: str | None, **numbers: float) -> argparse.ArgumentParser:
    """-> a parser with --results, and a flag for each number of HELP with its default."""
    parser = argparse.ArgumentParser(description=(docstring or "").partition("\n")[0])
    for name, default in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        text = f"{HELP[name]} ({default})"
        parser.add_argument(flag, type=type(default), default=default, help=text)
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="for the figures")
    return parser


def parse(parser: argparse.ArgumentParser, **least: float) -> argparse.Namespace:
    """Read the flags; least: the smallest value of each number. Exits with 2 if one is smaller.

    The folder --results is made now, not after the measurement. From now on SIGTERM and SIGHUP also
    end what the program has started.
    """
    args = parser.parse_args()
    exit_on_signals()
    for name, low in least.items():
        value = getattr(args, name)
        if value is not None and not value >= low:  # nan is refused, too
            parser.error(f"--{name.replace('_', '-')} {value}: at least {low}")
    if vars(args).get("results"):
        args.results.mkdir(parents=True, exist_ok=True)
    return args


# ---------------------------------------------------------------- the machine


def cores() -> int:
    """On how many cores this program may run: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def about() -> str:
    """On what a benchmark runs: CPU, cores and PyTorch's version."""
    return f"{device_name()}, {cores()} cores, torch {torch.__version__}"


# ---------------------------------------------------------------- tables and results


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table: the first column to the left, the others to the right."""
    align = ["left", *["right"] * (len(titles) - 1)]
    return tabulate(rows, titles, colalign=align, disable_numparse=True)


def deciles(numbers: Sequence[float], form: str = ".2f") -> str:
    """The median and, in brackets, the first and the last decile, of at least two numbers."""
    found = statistics.quantiles(numbers, n=10, method="inclusive")
    low = found[0]
    middle = found[4]
    high = found[8]
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def show(args, name: str, results: dict, report: Callable[[dict], str]) -> None:
    """Print the report of the results; with --results FOLDER write them there, as NAME.json."""
    print(report(results))
    if args.results:
        (args.results / f"{name}.json").write_text(json.dumps(results, indent=1))

"""Is stage 1's loop slower than the barest one, and what does each plain line bring on one core?

The barest loop indexes tensors in memory with a permutation: no DataLoader, no stopwatch, no
progress bar. Model, optimizer and schedule are stage 1's. Against it run stage 1's `train_epoch` on
its own loader, with its progress bar if this is a terminal, and the barest loop with one line
changed at a time. In every round each version takes its steps in turn, so that all meet the same
noise; a ratio is a version's time over the barest loop's in the same round. The images are random:
a step takes as long on them.

    python benchmarks/bare_loop.py
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

BARE, STAGE1 = "barest loop", "stage 1's own loop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=240, help="images per step (240)")
    parser.add_argument("--rounds", type=int, default=15, help="that count (15)")
    parser.add_argument("--steps", type=int, default=60, help="in each round (60)")
    parser.add_argument("--results", type=Path, help="folder for bare_loop.json")
    args = common.parse(parser, batch_size=2, rounds=2, steps=1)
    torch.set_num_threads(1)
    about = f"{common.device_name()}, torch {torch.__version__}"
    print(f"Training loops, one thread, {args.batch_size} images per step, {about}")
    seconds = measure(common.digits(args.steps * args.batch_size), args)
    results = {"about": about, "batch_size": args.batch_size, "steps": args.steps}
    results |= {"seconds": seconds}  # of each round
    print(table(results))
    if args.results:
        common.write_json(args.results / "bare_loop.json", results)


def bare_loop(
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler,
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
        schedule.step()
        if item:
            loss.item()


def stage1_loop(
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler,
    digits: stage1.MNIST,
    batch_size: int,
) -> None:
    """The same epoch as stage 1 trains it."""
    loader = common.make_loader(digits, batch_size)
    stage1.train_epoch(model, loader, optimizer, schedule, common.CPU)


VERSIONS = {  # name -> in what it differs from the barest loop; indented: by one line of it
    BARE: {},
    STAGE1: {"loop": stage1_loop},
    "  contiguous, not channels_last": {"memory": torch.contiguous_format},
    "  autocast to bf16": {"bf16": True},
    "  SGD(fused=True)": {"sgd": {"fused": True}},
    "  SGD(foreach=True)": {"sgd": {"foreach": True}},
    "  zero_grad(set_to_none=False)": {"set_to_none": False},
    "  loss.item() in every step": {"item": True},
}


def measure(digits: stage1.MNIST, args: argparse.Namespace) -> dict[str, list[float]]:
    """-> {version: [seconds of its steps in each round]}, the first round left out."""
    loops = {name: prepare(digits, args, **differs) for name, differs in VERSIONS.items()}
    common.evaluate_once()
    seconds = {name: [] for name in VERSIONS}
    for _ in range(args.rounds + 1):
        for name, loop in loops.items():
            started = time.perf_counter()
            loop()
            seconds[name].append(time.perf_counter() - started)
    return {name: rounds[1:] for name, rounds in seconds.items()}


def prepare(
    digits: stage1.MNIST,
    args: argparse.Namespace,
    loop: Callable[..., None] = bare_loop,
    memory: torch.memory_format = torch.channels_last,
    sgd: dict[str, bool] | None = None,
    **lines: bool,
) -> Callable[[], None]:
    """-> the loop with a model, an optimizer and a schedule of its own, as stage 1 makes them"""
    torch.manual_seed(0)
    model = stage1.ConvNet().to(memory_format=memory)
    optimizer, schedule = common.sgd_one_cycle(model, 0.01, args.steps * (args.rounds + 1))
    optimizer.param_groups[0].update(sgd or {})
    return partial(loop, model, optimizer, schedule, digits, args.batch_size, **lines)


def table(results: dict) -> str:
    """A line per version: median milliseconds of a step; median and quartiles of the ratios."""
    lines = [f"{'':34}{'ms per step':>12}{'times the barest loop':>25}"]
    for name, rounds in results["seconds"].items():
        ratios = [own / bare for own, bare in zip(rounds, results["seconds"][BARE])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1000 * statistics.median(rounds) / results["steps"]
        lines.append(f"{name:34}{milliseconds:12.2f}{middle:11.3f} ({low:.3f}-{high:.3f})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

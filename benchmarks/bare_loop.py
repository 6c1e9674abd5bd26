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
import json
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
stage1 = importlib.import_module("01_baseline.train")

CPU = torch.device("cpu")
BARE, STAGE1 = "barest loop", "stage 1's own loop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    at_least = partial(stage1.number, int)
    parser.add_argument("--batch-size", type=at_least(2), default=120, help="images per step (120)")
    parser.add_argument("--rounds", type=at_least(2), default=15, help="that count (15)")
    parser.add_argument("--steps", type=at_least(1), default=60, help="in each round (60)")
    parser.add_argument("--results", type=Path, help="folder for bare_loop.json")
    args = parser.parse_args()
    if args.results:
        stage1.check_writable(args.results)
    torch.set_num_threads(1)
    about = f"{stage1.device_name('cpu')}, torch {torch.__version__}"
    print(f"Training loops, one thread, {args.batch_size} images per step, {about}")
    seconds = measure(random_digits(args.steps * args.batch_size), args)
    results = {"about": about, "batch_size": args.batch_size, "steps": args.steps}
    results |= {"seconds": seconds}  # of each round
    print(table(results))
    if args.results:
        text, path = json.dumps(results, indent=1), args.results / "bare_loop.json"
        stage1.write_whole(path, lambda temp: temp.write_text(text))


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
    flags = argparse.Namespace(batch_size=batch_size, workers=0, device="cpu")
    loader = stage1.make_loader(digits, flags)
    stage1.train_epoch(model, loader, optimizer, schedule, CPU)


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
    # An evaluation has larger batches. After it memory is as every epoch but the first finds it.
    stage1.evaluate(stage1.ConvNet(), random_digits(1000), CPU)
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
    optimizer, schedule = stage1.sgd_one_cycle(model, 0.01, args.steps * (args.rounds + 1))
    optimizer.param_groups[0].update(sgd or {})
    return partial(loop, model, optimizer, schedule, digits, args.batch_size, **lines)


def random_digits(count: int) -> stage1.MNIST:
    """-> stage 1's data set with `count` random images and labels, made without files"""
    random = torch.Generator().manual_seed(0)
    digits = stage1.MNIST.__new__(stage1.MNIST)
    digits.data = torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=random)
    digits.targets = torch.randint(10, (count,), generator=random)
    return digits


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

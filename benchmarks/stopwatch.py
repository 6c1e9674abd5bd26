"""What the stopwatch costs in a step: the laps, and the hook at the end of what backward computes.

    python benchmarks/stopwatch.py

Laps and hook are timed alone, in a tight loop, since in a training step they drown in its noise.
Then stage 1 trains with the stopwatch and with one that does nothing, by turns: that shows the
noise, and that no more than the laps was overlooked.
"""

import argparse
import importlib
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

PHASES = ("data", "forward", "backward", "exposed", "optimizer")


class Off:
    """A stopwatch that measures nothing."""

    def __init__(self, device: torch.device):
        pass

    def lap(self, phase: str) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    args = common.parse(parser, rounds=2)
    device = torch.device(args.device)
    torch.set_num_threads(1)
    laps = statistics.median(lap_microseconds(device) for _ in range(21))
    hook = statistics.median(hook_microseconds(device) for _ in range(21))
    print(f"{common.device_name(device.type)}, torch {torch.__version__}")
    print(f"the {len(PHASES)} laps of a step take {laps:.2f} microseconds, the hook {hook:.2f}")
    on, off = train_by_turns(device, args.rounds)
    low, middle, high = statistics.quantiles((a / b for a, b in zip(on, off)), n=4)
    share = (laps + hook) / 1e6 / statistics.median(off)
    print(f"a step of stage 1 takes {1000 * statistics.median(off):.2f} ms: {share:.3%} of it")
    print(f"with the stopwatch on against off: {middle:.3f} ({low:.3f}-{high:.3f})")


def lap_microseconds(device: torch.device, steps: int = 500) -> float:
    """Microseconds that the laps of one step take, a mean over `steps` steps (one epoch)."""
    watch = stage1.Stopwatch(device)
    started = time.perf_counter()
    for _ in range(steps):
        for phase in PHASES:
            watch.lap(phase)
    return (time.perf_counter() - started) / steps * 1e6


def hook_microseconds(device: torch.device, steps: int = 500) -> float:
    """Microseconds that a hook on a parameter adds to a backward pass."""
    parameter = torch.ones((), device=device, requires_grad=True)
    seconds = []
    for hooked in (False, True):
        hook = parameter.register_hook(lambda gradient: None) if hooked else None
        started = time.perf_counter()
        for _ in range(steps):
            (parameter * 1).backward()
        seconds.append(time.perf_counter() - started)
    hook.remove()
    return (seconds[1] - seconds[0]) / steps * 1e6


def train_by_turns(device: torch.device, rounds: int, steps: int = 40) -> list[list[float]]:
    """-> seconds of a step with the stopwatch, and without it, of each round"""
    torch.manual_seed(0)
    model = stage1.ConvNet().to(device, memory_format=torch.channels_last)
    others = (*common.sgd_one_cycle(model, 0.01, 2 * (rounds + 1) * steps), device)
    loader = common.batches(1, 240) * steps
    seconds, ways = [[], []], [nullcontext(), patch.object(stage1, "Stopwatch", Off)]
    for _ in range(rounds + 1):
        for taken, way in zip(seconds, ways):
            with way:
                started = time.perf_counter()
                stage1.train_epoch(model, loader, *others)  # waits for a GPU to finish
                taken.append((time.perf_counter() - started) / steps)
    return [taken[1:] for taken in seconds]  # the first round warms up


if __name__ == "__main__":
    main()

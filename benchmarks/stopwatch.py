"""What the stopwatch costs: the time of the four laps that it takes in a step.

    python benchmarks/stopwatch.py

An A/B of whole epochs would drown it in noise, so the laps are timed alone, in a tight loop.
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
stage1 = importlib.import_module("01_baseline.train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    microseconds = statistics.median(microseconds_of_a_step(device) for _ in range(21))
    name = stage1.device_name(device.type)
    print(f"{name}: the four laps of a step take {microseconds:.2f} microseconds")


def microseconds_of_a_step(device: torch.device, steps: int = 500) -> float:
    """Microseconds that the four laps of one step take, a mean over `steps` steps (one epoch)."""
    watch = stage1.Stopwatch(device)
    started = time.perf_counter()
    for _ in range(steps):
        for phase in ("data", "forward", "backward", "step"):
            watch.lap(phase)
    return (time.perf_counter() - started) / steps * 1e6


if __name__ == "__main__":
    main()

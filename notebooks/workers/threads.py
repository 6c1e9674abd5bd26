"""What it costs when ranks are not told how many threads they may have: a step of each number.

Two ranks, the ConvNet of the stages, DDP, 60 images each. Both stay on the same two cores (where
the system can see to that: Linux), so it is the same experiment on a laptop and on a server. The
first two steps of each number do not count; the figure is the median of those that do.

    torchrun --standalone --nproc-per-node 2 notebooks/workers/threads.py
    torchrun --standalone --nproc-per-node 2 notebooks/workers/threads.py \\
        --rounds 3 --steps 10 --threads 1 2 4 8 16 32 --write notebooks/results/04_threads.json
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
common = importlib.import_module("benchmarks.common")
stage4 = importlib.import_module("04_ddp_torchrun.train")
CORES, IMAGES, WARM_UP = 2, 60, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--threads", type=int, nargs="+", default=[1, 16], help="of each rank")
    add("--steps", type=int, default=5, help="that count, of each number (5)")
    add("--rounds", type=int, default=1, help="over all numbers (1)")
    add("--write", type=Path, help="file for the result, as JSON")
    args = common.parse(parser, steps=1, rounds=1)
    came_with = torch.get_num_threads()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    dist.init_process_group("gloo")
    rounds = [{n: step(n, args.steps) for n in args.threads} for _ in range(args.rounds)]
    medians = {n: min(medians[n] for medians in rounds) for n in args.threads}
    if dist.get_rank() == 0:
        for threads, seconds in medians.items():
            print(f"{threads:3} threads: {1000 * seconds:8.2f} ms per step", file=sys.stderr)
    if dist.get_rank() == 0 and args.write:
        about = f"2 ranks on {CORES} cores, {common.device_name()}, torch {torch.__version__}"
        ms = {threads: 1000 * seconds for threads, seconds in medians.items()}
        result = {"about": about, "steps": args.steps, "rounds": args.rounds}
        common.write_json(args.write, result | {"milliseconds_per_step": ms})
    if "LESSON_GIVEN" in os.environ:
        importlib.import_module("notebooks.lesson").give(came_with=came_with, medians=medians)
    dist.destroy_process_group()


def step(threads: int, steps: int) -> float:
    """-> median seconds of forward and backward with so many threads, the ranks side by side"""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = stage4.ConvNet().to(memory_format=torch.channels_last)
    ddp_model = DistributedDataParallel(model, broadcast_buffers=False)
    x, y = torch.rand(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,))
    seconds = []
    for _ in range(WARM_UP + steps):
        dist.barrier()
        began = time.perf_counter()
        F.cross_entropy(ddp_model(x), y).backward()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()

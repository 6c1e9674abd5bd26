"""What threads cost: two of them under one GIL, and too many of them in each rank.

Under one GIL: forward passes through ten linear layers, in two threads and in two processes,
against one. Between the kernels of two layers a thread is in Python and holds the GIL, in a kernel
it does not; so the smaller the layers, the larger the share of Python.

Too many: a step of the stages' ConvNet with DDP, 60 images on each of two ranks, which stay on the
same two cores (where the system can see to that: Linux), with more and more threads in each.

Everything is tried several times, and the quickest try is kept: whatever else a machine does makes
it longer, never shorter.

    python -m benchmarks.threads
    python -m benchmarks.threads --rounds 1 --threads 1 8
"""

import importlib
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tabulate import tabulate

from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")

LAYERS, SIZES, SECONDS = 10, (4, 32, 64, 96, 128, 192, 256), 0.1
CORES, IMAGES, WARM_UP, STEPS = 2, 60, 2, 10


def main() -> None:
    parser = common.flags(__doc__, rounds=5)
    counts = [1, 2, 4, 8, 16, 32]
    parser.add_argument("--threads", type=int, nargs="+", default=counts, help="in each rank")
    args = common.parse(parser, rounds=1)
    torch.set_num_threads(1)
    gil_about = f"Python {sys.version.split()[0]}, {common.about()}"
    sizes = under_one_gil(args.rounds)
    print(f"two threads or processes against one thread, {gil_about}")
    print(tabulate(sizes, headers="keys", floatfmt=".2f"), "\n")
    about = f"2 ranks, {common.about()}"
    ranks = common.on_ranks(2, in_each_rank, args.threads, args.rounds)
    print(f"milliseconds of a step by threads in each rank, {about}")
    print(tabulate(ranks[0].items(), floatfmt=".2f"))
    if args.results:
        found = {"gil": {"about": gil_about, "rows": sizes}}
        found["ranks"] = {"about": about, "milliseconds_per_step": ranks[0]}
        common.write_json(args.results / "threads.json", found)


def under_one_gil(rounds: int) -> list[dict[str, float]]:
    """-> for each size: microseconds of a layer alone, and how many times that work two can do"""
    options = {"mp_context": multiprocessing.get_context("spawn")}
    options["initializer"] = common.end_with_parent
    rows = []
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, **options) as processes:
        for size in SIZES:
            calls = max(20, int(SECONDS / forward(size, 20) * 20))
            alone = min(forward(size, calls) for _ in range(rounds))
            row = {"size": size, "microseconds": 1e6 * alone / calls / LAYERS}
            for name, pool in (("threads", threads), ("processes", processes)):
                both = min(side_by_side(pool, size, calls) for _ in range(rounds))
                row[name] = 2 * alone / both
            rows.append(row)
    return rows


def side_by_side(pool: Executor, size: int, calls: int) -> float:
    """-> seconds of the slower one of two workers that do the same at the same time"""
    return max(pool.map(forward, [size] * 2, [calls] * 2))


def forward(size: int, calls: int) -> float:
    """-> seconds of so many forward passes; size: of the layers, and of the batch"""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(LAYERS)))
    x = torch.rand(size, size)
    began = time.perf_counter()
    for _ in range(calls):
        model(x)
    return time.perf_counter() - began


def in_each_rank(counts: list[int], rounds: int) -> dict[int, float]:
    """On a rank -> milliseconds of a step with so many threads, for each of the counts"""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    tries = [{threads: step(threads) for threads in counts} for _ in range(rounds)]
    return {threads: 1000 * min(one[threads] for one in tries) for threads in counts}


def step(threads: int) -> float:
    """-> median seconds of forward and backward with so many threads, the ranks side by side"""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = stage3.ConvNet().to(memory_format=torch.channels_last)
    ddp_model = common.ddp(model)
    x, y = torch.rand(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,))
    seconds = []
    for _ in range(WARM_UP + STEPS):
        dist.barrier()
        began = time.perf_counter()
        F.cross_entropy(ddp_model(x), y).backward()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()

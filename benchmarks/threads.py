"""What two threads cost each other under one GIL (global interpreter lock).

Forward passes through ten linear layers, in two threads and in two processes, against one. Between
the kernels of two layers a thread is in Python and holds the GIL, in a kernel it does not; so the
smaller the layers, the larger the share of Python.

One thread, two threads and two processes take turns, and the median of several turns counts.

    python -m benchmarks.threads
"""

import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import torch
from tabulate import tabulate

from benchmarks import common

LAYERS = 10
SIZES = (4, 32, 64, 96, 128, 192, 256)
SECONDS = 0.1


def main() -> None:
    args = common.parse(common.flags(__doc__, rounds=15), rounds=1)
    torch.set_num_threads(1)
    about = f"Python {sys.version.split()[0]}, {common.about()}"
    common.show(args, "threads", {"about": about, "rows": under_one_gil(args.rounds)}, report)


def report(results: dict) -> str:
    table = tabulate(results["rows"], headers="keys", floatfmt=".2f")
    return f"two threads or processes against one thread, {results['about']}\n{table}"


def under_one_gil(rounds: int) -> list[dict[str, float]]:
    """-> for each size: microseconds of a layer alone, and how many times that work two can do"""
    rows = []
    processes = ProcessPoolExecutor(
        2,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=common.end_with_parent,
    )
    with ThreadPoolExecutor(2) as threads, processes:
        for size in SIZES:
            calls = max(20, int(SECONDS / forward(size, 20) * 20))
            alone = []
            factors = {"threads": [], "processes": []}
            for _ in range(rounds):
                alone.append(forward(size, calls))
                # Two workers do the same at the same time. The slower one counts.
                for name, pool in (("threads", threads), ("processes", processes)):
                    both = max(pool.map(forward, [size] * 2, [calls] * 2))
                    factors[name].append(2 * alone[-1] / both)
            row = {"size": size, "microseconds": 1e6 * statistics.median(alone) / calls / LAYERS}
            for name, values in factors.items():
                row[name] = statistics.median(values)
            rows.append(row)
    return rows


def forward(size: int, calls: int) -> float:
    """-> seconds of so many forward passes; size: of the layers, and of the batch"""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(LAYERS)))
    x = torch.rand(size, size)
    began = time.perf_counter()
    for _ in range(calls):
        model(x)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

"""What Python's interpreter lock costs: the same work in two threads and in two processes.

The work is forward passes through ten linear layers. Between the kernels of two layers a thread is
in Python and holds the lock, in a kernel it does not. The smaller the layers, the larger the share
of Python. A way is given eight tries at each size; the quickest counts, since
whatever else a machine does makes a try longer, never shorter.

    python notebooks/workers/lock.py
    python notebooks/workers/lock.py --write notebooks/results/02_lock.json
"""

import argparse
import importlib
import sys
import threading
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
common = importlib.import_module("benchmarks.common")

LAYERS, SIZES, TRIES, SECONDS = 10, (4, 32, 64, 96, 128, 192, 256), 8, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="file for the result, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loops = [calls_in(SECONDS, size) for size in SIZES]
    alone = work([threading.Thread], threading.Barrier(1), [0.0] * TRIES * len(SIZES), loops)
    threads = work([threading.Thread] * 2, threading.Barrier(2), shared(2), loops)
    spawn = mp.get_context("spawn")
    processes = work([spawn.Process] * 2, spawn.Barrier(2), shared(2), loops)
    rows = []
    for size, one, *two in zip(SIZES, alone, threads, processes):
        rows.append({"size": size, "microseconds": 1e6 * one})
        rows[-1] |= dict(zip(("threads", "processes"), (2 * one / both for both in two)))
        print("  ".join(f"{key} {value:.2f}" for key, value in rows[-1].items()))
    if args.write:
        about = f"{common.device_name()}, 2 cores, Python {sys.version.split()[0]}"
        result = {"about": f"{about}, torch {torch.__version__}", "rows": rows}
        common.write_json(args.write, result)


def shared(workers: int):
    """Room for the seconds of each worker, size and try, which processes can write to too."""
    return mp.get_context("spawn").Array("d", workers * len(SIZES) * TRIES)


def calls_in(seconds: float, size: int) -> int:
    """How many forward passes of this size one core does in so many seconds, or about that."""
    forward(size, 20)
    return max(20, int(20 * seconds / forward(size, 20)))


def work(kinds: list, barrier, found, loops: list[int]) -> list[float]:
    """Let a worker of each kind do all loops, side by side -> seconds of a layer, per size."""
    args = [(number, barrier, found, loops) for number in range(len(kinds))]
    workers = [kind(target=tries, args=own) for kind, own in zip(kinds, args)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    own = len(SIZES) * TRIES
    each = [found[number * own : (number + 1) * own] for number in range(len(kinds))]
    slowest = [max(both) for both in zip(*each)]
    return [min(slowest[k * TRIES : (k + 1) * TRIES]) for k in range(len(SIZES))]


def tries(number: int, barrier, found, loops: list[int]) -> None:
    torch.set_num_threads(1)
    place = number * len(SIZES) * TRIES
    for size, calls in zip(SIZES, loops):
        for _ in range(TRIES):
            barrier.wait()
            found[place] = forward(size, calls) / calls / LAYERS
            place += 1


def forward(size: int, calls: int) -> float:
    """-> seconds of so many forward passes; size: of the layers, and of the batch"""
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(LAYERS)))
    x = torch.rand(size, size)
    began = time.perf_counter()
    for _ in range(calls):
        model(x)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

"""The processes of a computer divide its cores, whatever their number; OMP_NUM_THREADS holds."""

import os

import torch

WORLD_SIZES = (2, 3)
CORES, CHOSEN = (8, 13, 1), 5
LEARNT = "Processes on one computer share its cores: divide the threads among them."
HINTS = (
    "Multiply: how many threads compute at a time, in all processes together? How many cores?",
    "Each process is told the number of all cores, and does not know that others compute as well.",
    "torch.set_num_threads(max(1, os.cpu_count() // processes)).",
)


def observe(mine):
    processes = int(os.environ["WORLD_SIZE"])
    os.environ.pop("OMP_NUM_THREADS", None)
    torch.set_num_interop_threads = lambda number: None  # a process may call it only once
    threads = [threads_on(cores, mine, processes) for cores in CORES]
    os.environ["OMP_NUM_THREADS"] = str(CHOSEN)
    return {"threads": threads, "chosen": threads_on(max(CORES), mine, processes, CHOSEN)}


def threads_on(cores, mine, processes, at_start=None):
    """-> the threads with which this process computes, on a computer that has so many cores."""
    os.cpu_count = lambda: cores
    os.sched_getaffinity = lambda pid: set(range(cores))
    torch.set_num_threads(at_start or cores)  # as PyTorch itself does when it is imported
    before = dict(os.environ)
    mine.set_threads(processes)
    os.environ.clear()  # each call is the first one in its process
    os.environ.update(before)
    return torch.get_num_threads()


def judge(ranks):
    processes = len(ranks)
    for case, cores in enumerate(CORES):
        threads = [rank["threads"][case] for rank in ranks]
        on = f"on {cores} core{'s' * (cores > 1)}, {processes} processes compute with"
        if sum(threads) > max(cores, processes):
            return f"{on} {' + '.join(map(str, threads))} threads, {sum(threads)} at a time"
        if min(threads) < cores // processes:
            return (
                f"{on} {' + '.join(map(str, threads))} threads; there are cores enough for "
                f"{cores // processes} each"
            )
    for number, rank in enumerate(ranks):
        if rank["chosen"] != CHOSEN:
            return (
                f"with OMP_NUM_THREADS={CHOSEN}, process {number} is to compute with {CHOSEN} "
                f"threads; it computes with {rank['chosen']}"
            )
    return None

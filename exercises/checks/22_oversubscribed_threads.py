"""The processes of a computer divide its cores, whatever their number; OMP_NUM_THREADS holds."""

import os

import psutil
import torch

CASES = ((8, None), (13, None), (1, None), (13, 5))  # cores, OMP_NUM_THREADS
HINTS = (
    "Multiply: how many threads compute at a time, in all processes together? How many cores?",
    "Each process sees all cores of the computer, and does not know that others compute as well: "
    "the processes have to divide them.",
    "torch.set_num_threads(max(1, os.cpu_count() // processes)).",
)


def observe(mine, cores, chosen):
    """The threads with which this process computes, on a computer that has so many cores."""
    os.environ.pop("OMP_NUM_THREADS", None)
    if chosen:
        os.environ["OMP_NUM_THREADS"] = f"{chosen}"
    os.cpu_count = os.process_cpu_count = psutil.cpu_count = lambda logical=True: cores
    os.sched_getaffinity = lambda pid: set(range(cores))
    torch.set_num_interop_threads = lambda number: None  # a process may call it only once
    torch.set_num_threads(chosen or cores)  # as PyTorch itself does when it is imported
    mine.set_threads(int(os.environ["WORLD_SIZE"]))
    return torch.get_num_threads()


def judge(ranks, cores, chosen):
    on = f"on {cores} core{'s' * (cores > 1)}, {len(ranks)} processes compute with"
    on += f" {' + '.join(map(str, ranks))} threads"
    if chosen and set(ranks) != {chosen}:
        return f"{on}, though OMP_NUM_THREADS={chosen} is set"
    if not chosen and sum(ranks) > max(cores, len(ranks)):
        return f"{on}, {sum(ranks)} at a time"
    if not chosen and min(ranks) < cores // len(ranks):
        return f"{on}; there are cores enough for {cores // len(ranks)} each"
    return None

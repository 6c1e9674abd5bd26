"""Two ranks add up a number again and again, until one of them fails: a flag says how.

A rank that still waits after twelve seconds writes down where it stands.

    torchrun --standalone --nproc-per-node 2 notebooks/ranks/04_fates.py --rank 1 --fate hangs
"""

import argparse
import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

FATES = ("raises", "is killed", "hangs", "exits early")
# The four cases of the notebook, which does not name them at once: which rank fails, and how.
CASES = {"A": (0, "hangs"), "B": (1, "raises"), "C": (1, "exits early"), "D": (0, "is killed")}


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, default=1, help="which rank fails")
    parser.add_argument("--fate", choices=FATES, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")  # its timeout is that of starting: 30 minutes
    group = dist.new_group(timeout=timedelta(seconds=20))  # and this one is that of a sum
    try:
        for step in range(4):
            if step == 2:
                faulthandler.dump_traceback_later(12)
                strike(args.fate if dist.get_rank() == args.rank else "computes")
            add_up(group)
    finally:
        dist.destroy_process_group()


def strike(fate: str) -> None:
    if fate == "raises":
        raise ValueError("the loss is not a number")
    if fate == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does when memory is short
    if fate == "exits early":
        sys.exit(0)  # as a script does that believes it is done
    if fate == "hangs":
        read_next_file()
    if fate == "computes":
        time.sleep(5)  # and comes to the sum later


def read_next_file() -> None:
    time.sleep(600)  # a disk on a network that is gone


def add_up(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(1), group=group)


if __name__ == "__main__":
    main()

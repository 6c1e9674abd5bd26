"""Two ranks call all-reduce again and again until one of them fails. A flag chooses how it fails.

A rank that still waits after nine seconds prints its stack.

    torchrun --standalone --nproc-per-node 2 notebooks/ranks/04_failures.py --rank 1 --how hangs
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

# The four cases of the notebook: which rank fails, and how.
CASES = {"A": (0, "hangs"), "B": (1, "raises"), "C": (1, "exits early"), "D": (0, "is killed")}


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rank", type=int, default=1, help="which rank fails")
    parser.add_argument("--how", choices=[how for _, how in CASES.values()], required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")  # with the default timeout, 30 minutes
    group = dist.new_group(timeout=timedelta(seconds=12))  # Its collectives wait 12 seconds.
    try:
        for step in range(4):
            if step == 2:
                faulthandler.dump_traceback_later(9)  # seconds
                if dist.get_rank() == args.rank:
                    fail(args.how)
                else:
                    time.sleep(5)  # This rank computes, and calls the all-reduce later.
            add_up(group)
    finally:
        dist.destroy_process_group()


def fail(how: str) -> None:
    if how == "raises":
        raise ValueError("the loss is not a number")
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)  # The system does this if memory runs out.
    if how == "exits early":
        sys.exit(0)  # A script ends like this if its loop has fewer steps than those of others.
    if how == "hangs":
        read_next_file()


def read_next_file() -> None:
    time.sleep(600)  # This stands for a network disk that does not answer.


def add_up(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(1), group=group)


if __name__ == "__main__":
    main()

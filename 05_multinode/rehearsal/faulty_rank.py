"""train.py, but one rank fails after 20 steps; failures.py has torchrun start this.

    torchrun --standalone --nproc-per-node 2 05_multinode/rehearsal/faulty_rank.py "raises 1" -e 1

The first argument: raises, exits (with code 0) or hangs, and the rank. The others: train.py's.
"""

import itertools
import os
import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_pre_hook

FAULT_STEP = 20


def main() -> None:
    kind, rank = sys.argv.pop(1).split()
    steps = itertools.count(1)

    def before_step(*_):
        if next(steps) != FAULT_STEP or os.environ["RANK"] != rank:
            return
        Path("fault").touch()  # failures.py counts its seconds from here
        if kind == "raises":
            raise OSError("an image is missing")
        if kind == "exits":
            os._exit(0)
        while True:
            time.sleep(1)

    register_optimizer_step_pre_hook(before_step)
    runpy.run_path(str(Path(__file__).parents[1] / "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()

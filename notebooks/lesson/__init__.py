"""What the notebooks share. It is no part of the lessons, and no stage imports it.

    lesson.show_source("01_baseline/train.py", "train_epoch")   code as it stands in the file now
    lesson.table(["device", "images"], [["0", 60], ["1", 60]])
    lesson.measured("03_ddp_spawn", batch_size=120)              what was measured, and committed
    with lesson.picture("Backward takes longest", height=2) as axes: ...
    lesson.guessed("A step of four ranks:", 41, "ms")            an answer that is folded

A cell whose first line is `%%torchrun 2` is a script: two ranks run it. After `lesson.spawn(2)`, a
cell whose first line is `%%ranks` is a part of a script, and the two ranks keep its variables for
the next part. lesson.run has what the ranks left.
"""

# ruff: noqa: F401 (the names are for the notebooks)

import sys

from IPython import get_ipython
from IPython.core.error import UsageError

from .drawing import COLORS, DARK, DIGITS, GRAY, RANKS, picture, show_moving, stack
from .ranks import ROOT, Run, give, start, temporary_folder, torchrun
from .records import digits, measured, medians, phases, ratio
from .showing import guessed, show_code, show_source, table
from .spawned import Ranks

if str(ROOT) not in sys.path:  # the notebook's own entry ".." is not found after a %cd
    sys.path.append(str(ROOT))

run: Run | None = None  # of the last cell that began with %%torchrun or %%ranks
ranks: Ranks | None = None  # that wait for cells that begin with %%ranks


def torchrun_magic(line: str, cell: str) -> None:
    """%%torchrun RANKS: the cell is a script, and so many ranks run it; shows what they print."""
    global run
    if not line.strip().isdigit():
        raise UsageError(f"%%torchrun {line}: a number of ranks is missing, as in %%torchrun 2")
    run = torchrun(f"{cell}\n", int(line))
    print(run, end="")


def spawn(world_size: int) -> None:
    """Let mp.spawn start ranks for the cells that begin with %%ranks."""
    global ranks
    if ranks is not None:
        ranks.end()
    ranks = Ranks(world_size)


def ranks_magic(line: str, cell: str) -> None:
    """%%ranks: all ranks run the cell, as the next part of a script; shows what they print."""
    global run
    if ranks is None:
        raise UsageError("%%ranks: no ranks have been started: lesson.spawn(2)")
    run = ranks.run(cell)
    print(run, end="")


if get_ipython() is not None:  # else there is no notebook to know it
    get_ipython().register_magic_function(torchrun_magic, "cell", "torchrun")
    get_ipython().register_magic_function(ranks_magic, "cell", "ranks")

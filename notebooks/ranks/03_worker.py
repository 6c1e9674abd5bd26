"""A rank that runs cells of a notebook. In the notebook 03_ddp_spawn, mp.spawn starts two ranks.

The rank waits for cells, runs them one after the other, and keeps its variables. So the cells
together are one script.
"""

import io
import os
import traceback
from contextlib import redirect_stdout
from multiprocessing.connection import Connection


def worker(rank: int, world_size: int, meeting_point: str, pipes: list[Connection]) -> None:
    """Run cells until the notebook ends. A cell finds these three values under their names."""
    for other, pipe in enumerate(pipes):
        if other != rank:
            pipe.close()
    names = {"__name__": "cell", "rank": rank, "world_size": world_size}
    names["meeting_point"] = meeting_point
    while True:
        try:
            cell = pipes[rank].recv()
        except EOFError:  # The notebook has ended.
            os._exit(0)
        pipes[rank].send(run_cell(cell, names))


def run_cell(cell: str, names: dict) -> tuple[str, str, dict]:
    """-> what the cell has printed, the traceback of an exception, and the values for give"""
    given = {}
    names["give"] = lambda **values: given.update(values)
    printed = io.StringIO()
    error = ""
    with redirect_stdout(printed):
        try:
            exec(compile(cell, "cell", "exec"), names)
        except Exception:
            error = traceback.format_exc()
    return printed.getvalue(), error, given

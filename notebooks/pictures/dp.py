"""2. DataParallel."""

import json
from importlib import import_module

from . import moving

lesson = import_module("notebooks.lesson")


def moves(shards: list) -> None:
    """A step of DataParallel: what device 0 and the others send. shards: those of the images"""
    lesson.show_moving(moving.copies([len(shard) for shard in shards]))


def threads_and_processes() -> dict:
    """A table: the speed of two threads and of two processes, by the time of a layer

    -> the record of the benchmark.
    """
    record = json.loads((lesson.ROOT / "benchmarks/results/threads.json").read_text())
    measured = record["rows"]
    rows = []
    for row in (measured[0], measured[len(measured) // 2], measured[-1]):
        layer = f"{row['microseconds']:.0f} microseconds"
        rows.append([layer, f"{row['threads']:.2f}", f"{row['processes']:.2f}"])
    lesson.table(["one layer takes", "two threads", "two processes"], rows)
    return record


def speeds_on_a_cpu() -> tuple[float, float]:
    """The speed of two threads and of two processes, over that of one process."""
    names = ("01_baseline", "02_dp-threads", "03_ddp_spawn")
    rows = [lesson.measured(name) for name in names]
    threads, processes = (lesson.ratio(row, rows[0]) for row in rows[1:])
    return threads, processes

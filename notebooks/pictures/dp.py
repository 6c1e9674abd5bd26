"""2. DataParallel."""

import json
from importlib import import_module

from . import moving

lesson = import_module("notebooks.lesson")


def moves(shards: list) -> None:
    """A step of DataParallel: what device 0 and the others send. shards: those of the images"""
    lesson.show_moving(moving.copies([len(shard) for shard in shards]))


def threads_and_processes() -> dict:
    """Lines: the work of two threads and of two processes, by the time of a layer

    -> the record of the benchmark.
    """
    record = json.loads((lesson.ROOT / "benchmarks/results/threads.json").read_text())
    rows = record["rows"]
    title = "With short layers two threads are slower than one"

    with lesson.picture(title, height=3.2) as axes:
        layer = [row["microseconds"] for row in rows]
        for way, mark, color in (("processes", "s-", "#0072B2"), ("threads", "o-", "#D55E00")):
            axes.plot(layer, [row[way] for row in rows], mark, color=color, label=f"two {way}")
        axes.axhline(1, color=lesson.GRAY, linewidth=0.8)
        highest = max(max(row["threads"], row["processes"]) for row in rows)
        axes.set(xscale="log", ylim=(0, 1.15 * highest), ylabel="times the work\nof one thread")
        axes.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
        axes.set(xlabel="microseconds of one layer (logarithmic axis)")
        axes.legend(loc="lower right")
    return record


def speeds_on_a_cpu() -> tuple[float, float]:
    """Print and return the speed of two threads and of two processes, over that of one process."""
    names = ("01_baseline", "02_dp-threads", "03_ddp_spawn")
    rows = [lesson.measured(name) for name in names]
    threads, processes = (lesson.ratio(row, rows[0]) for row in rows[1:])
    print(f"two threads (from_scratch.py of stage 2): {threads:.2f} times as fast as one process")
    print(f"two processes (DDP, stage 3):             {processes:.2f} times")
    return threads, processes

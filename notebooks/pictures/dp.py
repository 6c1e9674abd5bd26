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
    short, long = rows[0], rows[-1]
    title = f"Work of two threads: {short['threads']:.1f} times one with short layers"
    title += f", {long['threads']:.1f} with long ones"
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
    """Bars: images per second of one process, two threads and two processes

    -> how many times as fast as one process two threads and two processes are.
    """
    names = {
        "01_baseline": "1. one process",
        "02_dp-threads": "2. from scratch, two threads",
        "03_ddp_spawn": "3. two processes",
    }
    rows = [lesson.measured(name) for name in names]
    speeds = [lesson.medians(row)["images/s"] for row in rows]
    batch = rows[0][0]["batch_size"]
    threads, processes = (lesson.ratio(row, rows[0]) for row in rows[1:])
    title = f"On two CPU cores, two threads are {threads:.2f} times as fast as one"
    with lesson.picture(title, height=2.2) as axes:
        axes.barh(list(names.values()), speeds, color=lesson.COLORS["forward"])
        for place, speed in enumerate(speeds):
            axes.text(speed, place, f" {speed:,.0f}", va="center")
        axes.set(xlabel=f"images per second ({batch} images per step, two cores)")
        axes.set(xlim=(0, 1.15 * max(speeds)), ylim=(2.5, -0.5))
    return threads, processes

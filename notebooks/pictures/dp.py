"""2. DataParallel."""

import json
from importlib import import_module

import torch

from .shapes import arrow, bare, box

lesson = import_module("notebooks.lesson")


def moves() -> None:
    """Six panels: what travels between device 0 and the others in a step of DataParallel."""
    panels = {
        "1. replicate": ("out", "the model", "backward"),
        "2. scatter": ("out", "images", "optimizer"),
        "3. parallel apply": ("", "each its shard", ""),
        "4. gather": ("back", "outputs", "optimizer"),
        "5. after the loss": ("out", "their gradient", "optimizer"),
        "6. backward, add up": ("back", "gradients", "backward"),
    }
    title = "Four moves forward, two back: all traffic passes through device 0"
    with lesson.picture(title, height=4.6, nrows=2, ncols=3) as grid:
        for axes, (move, (way, what, color)) in zip(grid.flat, panels.items()):
            for device, (x, y) in enumerate([(3, 3), (0.7, 0.5), (3, 0.5), (5.3, 0.5)]):
                box(axes, x, y, str(device), lesson.RANKS[device], width=1.6, height=1)
                if not way:  # all of them compute
                    color = lesson.RANKS[device]
                    axes.patches[-1].set(fill=True, facecolor=color)
                    axes.texts[-1].set(color="white" if color in lesson.DARK else "black")
                elif device:
                    ends = [(3 + (x - 3) * 0.3, 2.4), (x, 1.1)]
                    start, end = ends if way == "out" else reversed(ends)
                    arrow(axes, start, end, lesson.COLORS[color])
            axes.text(4.1, 3, what, va="center")
            bare(axes, (-0.3, 7.6), (-0.2, 3.8), move)


def through_device_0(traffic: dict, ddp: list[float]) -> None:
    """Bytes of a step by number of devices, and what each rank of DDP sends and receives."""
    counts = range(1, 9)
    part_colors = dict(zip(traffic[8], [lesson.RANKS[k] for k in (0, 4, 2, 1, 5)]))
    through_0, through_other = traffic[8].total(), traffic[8].total() / 7
    title = f"8 devices: {through_0 / 1e6:.1f} MB a step through device 0"
    title += f", {through_other / 1e6:.1f} MB through any other"
    with lesson.picture(title, height=3.6) as axes:
        low = [0.0] * len(counts)
        for part, color in part_colors.items():
            high = [traffic[n][part] / 1e6 for n in counts]
            axes.bar(counts, high, bottom=low, color=color, label=part)
            low = [a + b for a, b in zip(low, high)]
        for n, top in zip(counts[1:], low[1:]):
            axes.text(n, top + 0.03, f"{top:.2f}", ha="center")
        both = [2 * sent / 1e6 for sent in ddp]
        label = "DDP: each rank, sent and received"
        axes.plot(counts, both, "D--", color=lesson.RANKS[3], label=label)
        axes.set(xlabel="devices", ylabel="MB in a step of 120 images", ylim=(0, 2.3))
        axes.legend()


def threads_and_processes(each: float) -> dict:
    """Lines: the work of two threads and of two processes, by the time of a layer

    each: microseconds of a layer of our model -> the record of the benchmark.
    """
    record = json.loads((lesson.ROOT / "benchmarks/results/threads.json").read_text())
    rows = record["rows"]
    short, long = rows[0], rows[-1]
    title = "Two threads: {threads:.1f} times one if a layer takes ".format(**short)
    title += f"{short['microseconds']:.0f} µs, {long['threads']:.1f} if {long['microseconds']:.0f}"
    with lesson.picture(title, height=3.2) as axes:
        layer = [row["microseconds"] for row in rows]
        for way, mark, color in (("processes", "s-", "#0072B2"), ("threads", "o-", "#D55E00")):
            axes.plot(layer, [row[way] for row in rows], mark, color=color, label=f"two {way}")
        axes.axhline(1, color=lesson.GRAY, linewidth=0.8)
        axes.axvline(each, color=lesson.GRAY, linestyle=":")
        axes.text(0.87 * each, 0.1, "a layer of\nour model", ha="right")
        axes.set(xscale="log", ylim=(0, 2.3), ylabel="times one thread's work")
        axes.set(xlabel="microseconds of one layer, alone; two cores")
        axes.legend(loc="upper left", ncols=2)
    return record


def speeds_on_a_cpu() -> float:
    """Images a second of one process, two threads and two processes -> two threads over one"""
    names = {
        "01_baseline": "1. one process",
        "02_dp": "2. DataParallel without GPUs:\nthe code of 1",
        "02_dp-threads": "2. from scratch, two threads",
        "03_ddp_spawn": "3. two processes",
    }
    rows = [lesson.measured(name) for name in names]
    speeds = [lesson.medians(row)["images/s"] for row in rows]
    batch = rows[0][0]["batch_size"]
    threads, processes = (lesson.ratio(row, rows[0]) for row in rows[2:])
    title = f"On a CPU: two threads {threads:.2f} times one, two processes {processes:.2f}"
    with lesson.picture(title, height=2.8) as axes:
        bars = axes.barh(list(names.values()), speeds, color=lesson.COLORS["forward"])
        bars[1].set(facecolor="none", edgecolor=lesson.COLORS["forward"], hatch="//")
        for place, speed in enumerate(speeds):
            axes.text(speed, place, f" {speed:,.0f}", va="center")
        axes.set(xlabel=f"images a second, {batch} images a step, two cores")
        axes.set(xlim=(0, 1.15 * max(speeds)), ylim=(3.5, -0.5))
    assert min(speeds[2], speeds[3]) > speeds[0]
    return threads


def why_ddp(traffic: dict) -> None:
    """A table of what grows with the devices; PyTorch's own words recommend DDP."""
    two, eight = traffic[2].total(), traffic[8].total()
    lesson.table(
        ["what", "with two devices", "with eight"],
        [
            ["bytes through device 0 (from scratch)", *(f"{n:,}" for n in (two, eight))],
            ["bytes through any other", *(f"{n:,.0f}" for n in (two, eight / 7))],
            ["images that BatchNorm keeps statistics of", "60 of 120", "15 of 120"],
            ["threads that wait for one GIL", "2", "8"],
            ["machines it can use", "1", "1"],
        ],
        align="lrr",
    )
    advice = " ".join(torch.nn.DataParallel.__doc__.split())
    assert "recommended to use :class:`~torch.nn.parallel.DistributedDataParallel`" in advice
    assert "even if there is only a single node" in advice

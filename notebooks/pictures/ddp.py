"""3. DDP: averages, buckets, overlap, cost."""

import json
from importlib import import_module
from statistics import mean, median

from .shapes import GREEN

lesson = import_module("notebooks.lesson")
MIB = 2**20


def one_weight() -> None:
    title = "At w = 3 the gradient is 2 on rank 0 and 8 on rank 1"
    with lesson.picture(title, height=3.4) as axes:
        slopes(axes, w=3, targets=[1, -5])


def slopes(axes, w: float, targets: list[float]) -> None:
    """Half the squared distance to each rank's target, its gradient at w, and the average."""
    places = [k / 10 - 9 for k in range(151)]
    losses = [[(place - target) ** 2 / 2 for place in places] for target in targets]
    for rank, (target, loss) in enumerate(zip(targets, losses)):
        color = lesson.RANKS[rank]
        axes.plot(places, loss, ["-", "--"][rank], color=color, label=f"rank {rank}")
        axes.axvline(target, color=color, linestyle=":")
        height = (w - target) ** 2 / 2
        axes.plot(w, height, "o", color=color)
        side = -1 if height > 20 else 1  # where no curve is
        look = {"ha": "right" if side < 0 else "left", "va": "center"}
        axes.text(w + 0.4 * side, height, f"gradient {w - target}", **look)
    average = [sum(both) / len(both) for both in zip(*losses)]
    axes.plot(places, average, lesson.GRAY, linewidth=3, label="average")
    axes.set(xlabel="w", ylabel="loss", ylim=(-1, 40))
    axes.legend(loc="upper center", ncols=3)


def alone_and_together() -> float:
    """Where w goes on each rank, alone and with DDP -> the first gradient with DDP on rank 0"""
    one_number = rank0, rank1 = lesson.run.values
    (before, gradient), (after, _) = rank0["together"][:2]
    assert rank0["together"] == rank1["together"]
    assert before == 3 and gradient == (2 + 8) / 2 and abs(after - 2.5) < 1e-6
    title = "Alone the ranks move apart; with DDP they take every step together"
    with lesson.picture(title, height=3.2, ncols=2, sharey=True) as both:
        for axes, way in zip(both, ("alone", "together")):
            for rank, values in enumerate(one_number):
                w = [number for number, _ in values[way]]
                axes.plot(w, ["-", "--"][rank], color=lesson.RANKS[rank], label=f"rank {rank}")
            axes.set(title=way, xlabel="step", ylabel="w")
            axes.legend()
    ends = [values[way][-1][0] for values in one_number for way in ("alone", "together")]
    assert all(abs(end - aim) < 0.5 for end, aim in zip(ends, (1, -2, -5, -2)))
    return gradient


def leaving(events: list[tuple[str, list[int]]]) -> list[tuple[int, list[int]]]:
    """-> for each bucket: how many gradients were ready when it left, and its parameters."""
    kinds = [kind for kind, _ in events]
    buckets = [(k, parameters) for k, (kind, parameters) in enumerate(events) if kind == "bucket"]
    return [(kinds[:k].count("gradient"), parameters) for k, parameters in buckets]


def buckets(axes, title: str, events: list[tuple[str, list[int]]], now: int) -> None:
    """At moment `now`: the gradients that are ready, and the buckets that have left."""
    last = 11
    arrived = [parameters[0] for kind, parameters in events if kind == "gradient"]
    for number, (ready, bucket) in enumerate(leaving(events)):
        color, rows = lesson.RANKS[number], [arrived.index(index) for index in bucket]
        there = [row for row in rows if row < now]
        axes.plot([row + 1 for row in there], there, "s", color=color, markersize=5)
        if ready <= now:
            low, height = min(rows) - 0.45, len(rows) - 0.1
            width = 13.9 - ready if now == last else now - ready + 0.4
            axes.broken_barh([(ready + 0.6, width)], (low, height), color=color)
            if now == last:
                look = {"color": "wkw"[number], "ha": "center", "va": "center"}
                axes.text(11.9, low + height / 2, number, weight="bold", **look)
    axes.axvline(10.5, color=lesson.GRAY, linestyle=":")
    axes.set(title=title, xlim=(0.3, 13.9), ylim=(9.7, -0.7), xticks=[1, 5, 10])
    axes.set(ylabel="gradient of parameter")
    axes.set_yticks(range(10), arrived)


def check_order(arrived: list[int]) -> None:
    """In which order autograd completes the ConvNet's gradients, and that TinyDDP is DDP."""
    assert arrived[:4] == [9, 8, 6, 7] and set(arrived[-2:]) == {0, 1}
    assert all(values["equal"] for values in lesson.run.values)
    assert lesson.run.values[0]["some"] == lesson.run.values[1]["some"]


def bucket_film(first_pass: list, third_pass: list) -> int:
    """Four moments of the third backward -> gradients ready when the first one's bucket left"""
    first, third = leaving(first_pass), leaving(third_pass)
    assert [ready for ready, _ in first] == [10] and [ready for ready, _ in third] == [2, 5, 10]
    title = "3rd backward, step by step: each bucket is sent when it is full"
    moments = {"after 2 gradients": 2, "after 5": 5, "after 9": 9, "the end": 11}
    with lesson.picture(title, height=3.1, ncols=4, sharey=True) as row:
        for axes, (moment, now) in zip(row, moments.items()):
            buckets(axes, moment, third_pass, now)
            axes.set(xlabel="gradients ready")
            axes.label_outer()
        row[3].set_xticks([1, 5, 10.5], ["1", "5", "backward\nis over"])
    return first[0][0]


def bucket_shares(cases: list, seen: list, assign, sizes_of) -> None:
    """What is in each bucket: the ConvNet's with other caps, and wider nets with DDP's."""
    filled = []
    for (net, width, cap), (_, _, third) in zip(cases, seen):
        order = [index for kind, (index, *_) in third if kind == "gradient"]
        sizes = sizes_of(net, width)
        first, others = (1 * MIB, 25 * MIB) if cap is None else (cap * MIB, cap * MIB)
        indices = assign(order, sizes, first, others)
        assert indices == [bucket for kind, bucket in third if kind == "bucket"]
        filled.append([sum(sizes[index] for index in bucket) for bucket in indices])
    assert [len(of_case) for of_case in filled] == [1, 2, 3, 3, 4, 2, 2]
    assert sum(filled[0]) == 116_136 < MIB

    title = "The ConvNet fits into one default bucket; wider nets need more"
    labels = ["default", *(f"cap {cap} MiB" for _, _, cap in cases[1:5])]
    nets = {"ConvNet": filled[0], "4 x as wide": filled[5], "wide_net": filled[6]}
    nets = {f"{net}, {sum(sizes) / 1e6:.1f} MB": sizes for net, sizes in nets.items()}
    with lesson.picture(title, height=4.4, nrows=2, height_ratios=[5, 3]) as (top, bottom):
        shares(top, dict(zip(labels, filled)))
        shares(bottom, nets)
        top.set(title="the ConvNet's 0.1 MB, other caps")
        bottom.set(title="default caps, wider nets")
        bottom.set(xlabel="gradients in the order in which they are ready, % of the bytes")


def shares(axes, nets: dict[str, list[int]]) -> None:
    """nets: the bytes in each bucket. A bar per net, a part per bucket, in per cent."""
    for y, sizes in enumerate(nets.values()):
        left = 0.0
        for number, size in enumerate(sizes):
            share, color = 100 * size / sum(sizes), lesson.RANKS[number]
            axes.barh(y, share, 0.7, left, color=color, edgecolor="w", linewidth=1)
            left += share
        text = "1 bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
        axes.text(101, y, text, va="center")
    axes.set_yticks(range(len(nets)), nets)
    axes.set(xlim=(0, 122), ylim=(len(nets) - 0.5, -0.5), xticks=[0, 50, 100])


def overlap() -> float:
    """Backward with one bucket and with several -> per cent of the exposed time that eight leave"""
    parts = {
        f"{number} bucket{'s' * (number != '1')}": dict(zip(("backward", "exposed"), times))
        for number, times in lesson.run.values[0].items()
    }
    one, *_, eight = parts.values()
    gain = sum(one.values()) / sum(eight.values())
    title = f"Where the CPU is free, eight buckets take {1 - 1 / gain:.0%} less time than one"
    with lesson.picture(title, height=2.9) as axes:
        lesson.stack(axes, parts, {part: lesson.COLORS[part] for part in ("backward", "exposed")})
        axes.set(xlabel="milliseconds of loss.backward() on rank 0, 16.8 MB of gradients")
    assert eight["exposed"] < 0.8 * one["exposed"] and gain > 1
    return 100 * eight["exposed"] / one["exposed"]


# ---------------------------------------------------------------- from the records


def on_two_cores() -> None:
    """One step with its all-reduces, and what several buckets cost where ranks fill the cores."""
    results = lesson.ROOT / "benchmarks/results"
    timeline = json.loads((results / "buckets.json").read_text())
    draw_step(timeline)

    def per_step(way, first, last, over_ranks):
        """Median over the rounds of the milliseconds from one lap of a step to another."""
        return median(
            over_ranks(mean(s["laps"][last] - s["laps"][first] for s in steps) for steps in ranks)
            for ranks in zip(*timeline["rounds"][way])
        )

    rows, whole = [], {}
    for way in ("no communication", "DDP, one bucket", "DDP"):
        backward, exposed = (per_step(way, k, k + 1, mean) for k in (2, 3))
        whole[way] = per_step(way, 0, -1, max)
        rows.append([way, *(f"{ms:.1f}" for ms in (backward, exposed, whole[way]))])
    rows[-1][0] = "DDP, three buckets"
    titles = ["two CPU cores, from the record", "backward, ms", "exposed, ms", "whole step, ms"]
    lesson.table(titles, rows)
    several = whole["DDP"] / whole["DDP, one bucket"] - 1
    text = f"{abs(several):.0%} {'longer' if several > 0 else 'shorter'}"
    print(f"on two cores the step with three buckets is {text} than with one")
    assert min(whole["DDP"], whole["DDP, one bucket"]) > whole["no communication"]


def draw_step(timeline: dict) -> None:
    """The step that is nearest to the median, both ranks."""
    recorded = timeline["rounds"]["DDP, recorded"]
    steps = [rounds[timeline["shown_round"]][0] for rounds in recorded]
    zero = min(step["laps"][0] for step in steps)
    leaves, arrives = (steps[0]["all_reduces"][0][k] - zero for k in (0, 2))
    over = steps[0]["laps"][3] - zero
    title = (
        f"Rank 0: bucket 0 is sent {leaves:.0f} to {arrives:.0f} ms, backward ends at {over:.0f}"
    )
    with lesson.picture(title, height=4.4, nrows=2, sharex=True) as both:
        draw_ranks(both, steps, zero, timeline["bucket_bytes"])
    for step in steps:
        (*_, first), _, (*_, last) = step["all_reduces"]
        assert first < step["laps"][3] < last  # laps[3]: backward is over


def draw_ranks(both, steps: list[dict], zero: float, bucket_bytes: list[int]) -> None:
    """One step of each rank as benchmarks/timeline.py records it: its phases, and its buckets."""
    names = [f"bucket {k}, {size / 1000:.0f} KB" for k, size in enumerate(bucket_bytes)]
    for rank, (axes, step) in enumerate(zip(both, steps)):
        for phase, start, end in zip(lesson.COLORS, step["laps"], step["laps"][1:]):
            look = {"color": lesson.COLORS[phase], "edgecolor": "w", "linewidth": 0}
            look |= {"hatch": "//"} if phase == "exposed" else {}
            label = None if rank or phase == "data" else phase
            axes.barh(0, end - start, 0.9, start - zero, label=label, **look)
        for row, (left, _, done) in enumerate(step["all_reduces"], start=1):
            label = None if rank or row > 1 else "on its way"
            axes.barh(row, done - left, 0.6, left - zero, color=GREEN, label=label)
        axes.set_yticks(range(len(names) + 1), [f"rank {rank}", *names])
        axes.set_ylim(len(names) + 0.5, -0.6)
    both[0].legend(ncols=5, loc="lower left", bbox_to_anchor=(-0.25, 1), columnspacing=1)
    both[1].set(xlabel="milliseconds of one step of 24 images, two ranks")


def cost() -> None:
    """The phases of a step with DDP, and a table of throughput."""
    names = {
        "one process": "01_baseline-1xcpu",
        "two ranks, DDP": "03_ddp_spawn-2xcpu",
    }
    records = lesson.records()
    runs = {way: records[name] for way, name in names.items()}
    batch = runs["one process"]["batch_size"]
    steps = {way: lesson.phases(name) for way, name in names.items()}
    waits = steps["two ranks, DDP"]
    share = waits["exposed"] / sum(waits.values())
    title = f"With DDP {share:.0%} of a step is exposed communication (two CPU cores)"
    with lesson.picture(title, height=2.2) as axes:
        lesson.stack(axes, steps, lesson.COLORS)
        axes.set(xlabel=f"milliseconds of one step of {batch} images")

    compare, settings = lesson.compare(), lesson.records(f"{lesson.RECORDS}/settings")
    pairs = {way: (run, runs["one process"]) for way, run in runs.items()}
    pairs["DDP, four ranks on two cores"] = settings["03_ddp_spawn-4xcpu"], runs["one process"]
    smaller = (settings[name] for name in ("03_ddp_spawn-b120-2xcpu", "01_baseline-b120-1xcpu"))
    pairs["DDP, 120 images per step"] = tuple(smaller)
    rows = [
        [
            way,
            f"{compare.speed(run):,.0f}",
            f"{compare.speed(run) / compare.speed(other):.2f}",
            f"{compare.accuracy(run):.2%}",
        ]
        for way, (run, other) in pairs.items()
    ]
    lesson.table(["two CPU cores", "images per second", "speedup", "accuracy"], rows)

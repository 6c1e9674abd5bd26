"""What notebook 3 draws. Every function gets the axes of a lesson.picture, and plain numbers."""

from notebooks import lesson

GREEN, ORANGE, SKY = "#009E73", "#D55E00", "#56B4E9"
Passes = dict[str, list[tuple[str, list[int]]]]  # title: what happened, as 03_buckets.py tells it


def slopes(axes, w: float, targets: list[float]) -> None:
    """Half the squared distance to each rank's target, its slope at w, and the average of both."""
    places = [k / 10 - 9 for k in range(151)]
    losses = [[(place - target) ** 2 / 2 for place in places] for target in targets]
    for rank, (target, loss) in enumerate(zip(targets, losses)):
        color = lesson.RANKS[rank]
        axes.plot(places, loss, ["-", "--"][rank], color=color, label=f"rank {rank}")
        axes.axvline(target, color=color, linestyle=":")
        height = (w - target) ** 2 / 2
        axes.plot(w, height, "o", color=color)
        axes.text(w + 0.4, height, f"slope {w - target}", va="center")
    average = [sum(both) / len(both) for both in zip(*losses)]
    axes.plot(places, average, "k", linewidth=3, label="average")
    axes.set(xlabel="w", ylabel="how wrong (loss)", ylim=(-1, 40))
    axes.legend(loc="upper center", ncols=3)


def paths(both, ranks: list[dict[str, list]]) -> None:
    """What w was on each rank, step by step: alone on the left, together on the right."""
    for axes, way in zip(both, ("alone", "together")):
        for rank, values in enumerate(ranks):
            look = {"color": lesson.RANKS[rank], "linestyle": ["-", "--"][rank]}
            w = [number for number, _ in values[way]]
            axes.plot(w, linewidth=4 - 2 * rank, label=f"rank {rank}", **look)
        axes.set(title=way, xlabel="step")
        axes.legend()
    both[0].set(ylabel="w")


def leaving(events: list[tuple[str, list[int]]]) -> list[tuple[int, list[int]]]:
    """-> for each bucket: how many gradients were ready when it left, and its parameters."""
    ready, left = 0, []
    for kind, parameters in events:
        if kind == "gradient":
            ready += 1
        else:
            left.append((ready, parameters))
    return left


def buckets(both, passes: Passes, now: int) -> None:
    """Frame `now` of the film: the gradients that are ready, and the buckets that have left."""
    for axes, (title, events) in zip(both, passes.items()):
        arrived = [parameters[0] for kind, parameters in events if kind == "gradient"]
        for number, (ready, bucket) in enumerate(leaving(events)):
            color, rows = lesson.RANKS[number], [arrived.index(index) for index in bucket]
            there = [row for row in rows if row < now]
            axes.plot([row + 1 for row in there], there, "s", color=color, markersize=11)
            if ready <= now:
                low, height = min(rows) - 0.45, len(rows) - 0.1
                width = 13.9 - ready if now > 10 else now - ready + 0.4
                axes.broken_barh([(ready + 0.6, width)], (low, height), color=color)
                if now > 10:
                    look = {"color": "wkw"[number], "ha": "center", "va": "center"}
                    axes.text(11.9, low + height / 2, number, weight="bold", **look)
        axes.axvline(10.5, color="k", linestyle=":")
        axes.set(title=title, xlim=(0.3, 13.9), ylim=(9.7, -0.7), xticks=[1, 5, 10])
        axes.set(xlabel="gradients that are ready")
        axes.set_yticks(range(10), arrived)
    both[0].set(ylabel="gradient of parameter")


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


def timeline(both, steps: list[dict], zero: float, bucket_bytes: list[int]) -> None:
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


def cards(axes, dealt: list[list[int]], again: list[list[bool]]) -> None:
    """Each rank's images; hatched are those that somebody else has, too."""
    for rank, (share, marks) in enumerate(zip(dealt, again)):
        for place, (image, twice) in enumerate(zip(share, marks)):
            look = {"hatch": "///", "color": "w", "edgecolor": ORANGE} if twice else {"color": SKY}
            axes.barh(rank, 0.94, 0.9, place, **look)
            box = {"facecolor": "w", "edgecolor": "none", "pad": 2} if twice else None
            axes.text(place + 0.47, rank, image, ha="center", va="center", bbox=box)
    axes.set_yticks(range(len(dealt)), [f"rank {rank}" for rank in range(len(dealt))])
    axes.set(ylim=(len(dealt) - 0.4, -0.6), xlabel="its images, in order")
    axes.set_xticks([0.47, 1.47, 2.47], ["1st", "2nd", "3rd"])


def digits(grid, ranks: list[dict], ways: tuple[str, str]) -> None:
    """Four turned digits per rank and way: a row for each rank, the ways side by side."""
    for rank, row in enumerate(grid):
        for k, axes in enumerate(row):
            dealt = ranks[rank][ways[k // 4]]
            axes.imshow(dealt["digits"][k % 4])
            axes.set(xticks=[], yticks=[], title=f"{dealt['angles'][k % 4]:.0f}°")
            axes.spines[:].set(color=lesson.RANKS[rank], linewidth=3, visible=True)
        row[0].set_ylabel(f"rank {rank}", weight="bold")
    for k, way in enumerate(ways):
        grid[1, 4 * k].set_xlabel(way, loc="left")


def normalized(grid, ranks: list[dict], edges: list[float]) -> None:
    """Histograms of both ranks' values: a row per kind of BatchNorm, training on the left."""
    for row, name in zip(grid, ("BatchNorm", "SyncBatchNorm")):
        for axes, when in zip(row, ("in training", "as saved")):
            for rank, values in enumerate(ranks):
                look = {"color": lesson.RANKS[rank], "hatch": ["", "//"][rank], "alpha": 0.7}
                counts = values[name][when]
                axes.stairs(counts, edges, fill=not rank, label=f"rank {rank}", **look)
            axes.set(title=f"{name}, {when}", yticks=[])
        row[0].set(ylabel="how many")
    grid[0, 1].legend()
    for axes in grid[1]:
        axes.set(xlabel="value after normalizing")


def number_lines(both, numbers: dict) -> None:
    """numbers: all positive ones of each type, sorted. From end to end, and some of them near 1."""
    whole, near = both
    for y, (name, line) in enumerate(numbers.items()):
        low, high, color = line[0].item(), line[-1].item(), lesson.RANKS[y]
        whole.plot([low, high], [y, y], "|-", color=color, linewidth=5, markersize=18)
        whole.text(1, y - 0.3, f"{name}: {low:.0e} to {high:.0e}", ha="center", va="bottom")
        some = line[(line >= 1) & (line <= 1 + 1 / 32)]
        near.plot(some, [y] * len(some), "|", color=color, markersize=24, markeredgewidth=2)
    whole.set(xscale="log", xlabel="the positive numbers it can hold, from end to end")
    near.set(xlabel="each of its numbers between 1 and 1.03125")
    for axes in both:
        axes.set_yticks(range(len(numbers)), numbers)
        axes.set_ylim(1.6, -0.9)


def underflow(axes, counts: dict[str, list[float]], edges: list[float], limit: float) -> None:
    """Histograms of gradients; what is below the limit is grey: there fp16 has only 0."""
    for k, (label, count) in enumerate(counts.items()):
        look = {"hatch": "//", "linewidth": 2} if k else {"fill": True, "alpha": 0.6}
        axes.stairs(count, edges, color=lesson.RANKS[k], label=label, **look)
    axes.axvspan(edges[0], limit, color="#999999", alpha=0.35)
    axes.text(edges[0] + 0.2, axes.get_ylim()[1] * 0.9, "0 in fp16", weight="bold")
    axes.set(xlabel="size of a gradient, as a power of ten", ylabel="thousands of them")
    axes.set(xlim=(edges[0], edges[-1]))
    axes.legend()


def scales(axes, scale: list[float], skipped: list[bool]) -> None:
    """The loss scale step by step, and which steps were left out."""
    axes.plot(scale, color=lesson.RANKS[0], drawstyle="steps-post")
    kinds = {True: ("X", ORANGE, "left out: a gradient was infinite")}
    kinds[False] = ("o", lesson.RANKS[0], "taken")
    for kind, (mark, color, label) in kinds.items():
        at = [step for step, left_out in enumerate(skipped) if left_out == kind]
        axes.plot(at, [scale[k] for k in at], mark, color=color, markersize=8, label=label)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="step", ylabel="loss scale")
    axes.legend(loc="upper center")

"""What the notebooks draw. A function gets the axes of a lesson.picture, and plain numbers."""

from importlib import import_module

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

lesson = import_module("notebooks.lesson")
GREEN, ORANGE, SKY, GREY = "#009E73", "#D55E00", "#56B4E9", "#666666"


# ---------------------------------------------------------------- boxes and arrows


def box(axes: Axes, x: float, y: float, text: str, color: str, width=3.0, height=1.6) -> None:
    """A box with words in it, around a point."""
    look = {"facecolor": "white", "edgecolor": color, "linewidth": 2.5}
    axes.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=11.5)


def arrow(axes: Axes, start: tuple, end: tuple, color="black", style="-|>", zorder=3) -> None:
    look = {"arrowstyle": style, "color": color, "linewidth": 2}
    axes.annotate("", end, start, arrowprops=look, zorder=zorder)


def bare(axes: Axes, width: tuple, height: tuple, title: str = "") -> None:
    """No axes to be seen, only what is drawn on them: from and to so much in each direction."""
    axes.set(xlim=width, ylim=height, title=title)
    axes.set_axis_off()


# ---------------------------------------------------------------- 2. DataParallel


def four_moves(grid) -> None:
    """Six panels: what travels between device 0 and the others in a step of DataParallel."""
    moves = {
        "1. replicate": ("out", "the model", "backward"),
        "2. scatter": ("out", "images", "optimizer"),
        "3. parallel apply": ("", "each its shard", ""),
        "4. gather": ("back", "outputs", "optimizer"),
        "5. after the loss": ("out", "their gradient", "optimizer"),
        "6. backward, add up": ("back", "gradients", "backward"),
    }
    for axes, (move, (way, what, color)) in zip(grid.flat, moves.items()):
        for device, (x, y) in enumerate([(3, 3), (0.7, 0.5), (3, 0.5), (5.3, 0.5)]):
            box(axes, x, y, str(device), lesson.RANKS[device], width=1.6, height=1)
            if not way:  # all of them compute
                axes.patches[-1].set(hatch="//")
                axes.texts[-1].set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 2})
            elif device:
                ends = [(3 + (x - 3) * 0.3, 2.4), (x, 1.1)]
                start, end = ends if way == "out" else reversed(ends)
                arrow(axes, start, end, lesson.COLORS[color])
        axes.text(4.1, 3, what, va="center")
        bare(axes, (-0.3, 7.6), (-0.2, 3.8), move)


# ---------------------------------------------------------------- 3. DDP


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
    axes.plot(places, average, "k", linewidth=3, label="average")
    axes.set(xlabel="w", ylabel="loss", ylim=(-1, 40))
    axes.legend(loc="upper center", ncols=3)


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
    axes.axvline(10.5, color="k", linestyle=":")
    axes.set(title=title, xlim=(0.3, 13.9), ylim=(9.7, -0.7), xticks=[1, 5, 10])
    axes.set(ylabel="gradient of parameter")
    axes.set_yticks(range(10), arrived)


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


def shards(axes, of_ranks: list[list[int]], padded: list[list[bool]]) -> None:
    """Each rank's images; hatched are those that another rank has, too."""
    for rank, (images, marks) in enumerate(zip(of_ranks, padded)):
        for place, (image, twice) in enumerate(zip(images, marks)):
            look = {"hatch": "///", "color": "w", "edgecolor": ORANGE} if twice else {"color": SKY}
            axes.barh(rank, 0.94, 0.9, place, **look)
            paper = {"facecolor": "w" if twice else SKY, "edgecolor": "none", "pad": 2}
            axes.text(place + 0.47, rank, image, ha="center", va="center", bbox=paper)
    axes.set_yticks(range(len(of_ranks)), [f"rank {rank}" for rank in range(len(of_ranks))])
    axes.set(ylim=(len(of_ranks) - 0.4, -0.6), xlabel="its images, in order")
    axes.set_xticks([0.47, 1.47, 2.47], ["1st", "2nd", "3rd"])


def digits(grid, ranks: list[dict], ways: tuple[str, str]) -> None:
    """Four turned digits per rank and way: a row for each rank, the ways side by side."""
    for rank, row in enumerate(grid):
        for k, axes in enumerate(row):
            turned = ranks[rank][ways[k // 4]]
            axes.imshow(turned["digits"][k % 4])
            axes.set(xticks=[], yticks=[], title=f"{turned['angles'][k % 4]:.0f}°")
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


# ---------------------------------------------------------------- 4. torchrun


def who_starts_whom(grid) -> None:
    """Two panels: mp.spawn and torchrun."""
    panels = [
        ("mp.spawn calls a function", "train.py\n(the parent)", "worker({})"),
        ("torchrun runs the script", "torchrun\n(the launcher)", "train.py\nRANK={}"),
    ]
    for axes, (title, parent, child) in zip(grid, panels):
        box(axes, 1.7, 2.5, parent, GREY, width=3.3)
        for rank in (0, 1):
            box(axes, 7.2, 4 - 3 * rank, child.format(rank), lesson.RANKS[rank])
            arrow(axes, (3.5, 2.5), (5.6, 4 - 3 * rank))
        bare(axes, (0, 9), (0, 5), title)


def meeting(grid) -> None:
    """Three panels: how two ranks find each other through a store."""
    steps = ["1. each knows the store", "2. each writes, reads", "3. they are connected"]
    for number, (axes, step) in enumerate(zip(grid, steps)):
        written = "\n0: port 5151\n1: port 6262" if number else ""
        box(axes, 3, 4, f"store{written}", GREY, width=3.6)
        for rank in (0, 1):
            box(axes, 1 + 4 * rank, 1, f"rank {rank}", lesson.RANKS[rank], width=1.9, height=1)
            if number < 2:
                ends = (1 + 4 * rank, 1.6), (2.2 + 1.6 * rank, 3.1)
                arrow(axes, *ends, lesson.RANKS[rank], "<|-|>" if number else "-|>")
        bare(axes, (-0.3, 6.3), (0.2, 5), step)
    arrow(grid[2], (2, 1), (4, 1), style="<|-|>")


def lanes(axes: Axes, failed: int, how: str, title: str) -> None:
    """One panel: what two ranks do until the launcher sees one of them end; not to scale.

    failed, how: which rank fails, and how (ranks/04_failures.py).
    """
    other, late = 1 - failed, how in ("hangs", "exits early")
    seen = {"hangs": 7, "exits early": 5}.get(how, 1.5)
    mark = {"color": "black", "markersize": 11, "markeredgewidth": 3}
    axes.barh(failed, 1, color=lesson.COLORS["forward"])
    if how == "hangs":
        axes.barh(failed, 6.6, color="white", left=1, edgecolor=GREY, hatch="//")
    else:
        axes.plot(1, failed, "o" if how == "exits early" else "x", **mark)
    axes.barh(other, 3.5 if late else seen, color=lesson.COLORS["forward"])
    if late:
        axes.barh(other, seen - 3.5, color=lesson.COLORS["exposed"], left=3.5)
        axes.plot(seen, other, "x", **mark)
    axes.axvline(seen, color="black", linestyle=":")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    axes.text(1.7, failed, how, va="center", bbox=paper)
    axes.set_title(title, loc="left")
    axes.set(yticks=[0, 1], yticklabels=["rank 0", "rank 1"], ylim=(1.6, -0.6))
    axes.set(xticks=[], xlim=(0, 8), xlabel="time, not to scale")


# ---------------------------------------------------------------- 5. ring all-reduce

# Of from_scratch.WAYS: what it is called in words, its line and its colour.
ALGORITHMS = {
    "naive": ("naive, through rank 0", "o-", lesson.RANKS[5]),
    "tree": ("tree", "s-", lesson.RANKS[2]),
    "ring": ("ring", "^-", lesson.RANKS[0]),
}


def algorithms(grid) -> None:
    """Three panels: between which of four ranks vectors or chunks travel, and in which step."""
    square = [(1, 4), (5, 4), (5, 1), (1, 1)]  # of ranks 0 to 3, clockwise
    panels = {
        "naive, through rank 0": ("<|-|>", {(1, 0): "1, 2", (2, 0): "1, 2", (3, 0): "1, 2"}),
        "tree": ("<|-|>", {(1, 0): "1, 4", (3, 2): "1, 4", (2, 0): "2, 3"}),
        "ring": ("-|>", {(0, 1): "1-6", (1, 2): "1-6", (2, 3): "1-6", (3, 0): "1-6"}),
    }
    for axes, (title, (style, edges)) in zip(grid, panels.items()):
        for (start, end), steps in edges.items():
            (x, y), (to_x, to_y) = square[start], square[end]
            far = 0.24 if x != to_x and y != to_y else 0.22
            ends = [
                (a + far * (b - a), c + far * (d - c))
                for a, b, c, d in ((x, to_x, y, to_y), (to_x, x, to_y, y))
            ]
            arrow(axes, *ends, style=style)
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            middle = (x + to_x) / 2, (y + to_y) / 2
            axes.text(*middle, steps, ha="center", va="center", fontsize=11, bbox=paper)
        for rank, (x, y) in enumerate(square):
            box(axes, x, y, f"{rank}", lesson.RANKS[rank], width=1.3, height=1)
        bare(axes, (0, 6), (0.2, 4.8), title)


def chunk(axes, x, y, value, size=0.9, edge=0.8) -> None:
    """A square of four stripes, lower left corner at x, y: of 1011 ranks 0, 1 and 3 are filled."""
    for rank in range(4):
        color = lesson.RANKS[rank] if value // 10**rank % 10 else "white"
        stripe = Rectangle((x + rank * size / 4, y), size / 4, size, fc=color, lw=0)
        axes.add_patch(stripe)
    axes.add_patch(Rectangle((x, y), size, size, fill=False, ec="black", lw=edge))


def ring_states(grid, states: list[list]) -> None:
    """A panel per step, and a key: rows are ranks, columns chunks, thick frames what has changed.

    states: of the start and after each of the six steps, every rank's vector, [4].
    """
    before = states[0]
    for step, (axes, state) in enumerate(zip(grid.flat, states)):
        for rank in range(4):
            for k in range(4):
                edge = 3 if before[rank][k] != state[rank][k] else 0.8
                chunk(axes, k, 3 - rank, state[rank][k].item(), edge=edge)
        bare(axes, (-0.9, 4.1), (-0.1, 4.1), f"step {step}" if step else "start")
        for rank in range(4):
            axes.text(-0.5, 3.45 - rank, rank, ha="center", va="center")
        before = state
    key = grid.flat[len(states)]
    chunk(key, 0, 2.4, 1011, size=1.5)
    key.text(0, 2.2, "a chunk: ranks 0,\n1 and 3 are in", va="top")
    for rank in range(4):
        key.add_patch(Rectangle((rank, 0), 0.45, 0.45, fc=lesson.RANKS[rank]))
        key.text(rank + 0.5, 0, rank)
    bare(key, (-0.1, 4), (-0.1, 4))
    for axes in grid.flat:
        axes.set(aspect="equal")


# ---------------------------------------------------------------- 5. several nodes


def nodes(axes, ranks: list[dict]) -> None:
    """A frame for each node, in it a box for each rank with its numbers in torchrun's variables."""
    width = 3.4
    for own in ranks:
        node, local = own["GROUP_RANK"], own["LOCAL_RANK"]
        x = 0.4 + node * (2 * width + 1.4) + (local + 0.5) * width
        words = f"RANK={own['RANK']}\nLOCAL_RANK={local}\ncuda:{local}"
        box(axes, x, 1.5, words, lesson.RANKS[own["RANK"]], width=width - 0.3, height=2.1)
        if local == 0:
            look = {"fill": False, "edgecolor": GREY, "linewidth": 2, "linestyle": "--"}
            corner = (x - width / 2 - 0.15, 0.2)
            axes.add_patch(Rectangle(corner, 2 * width + 0.3, 3.4, **look))
            axes.text(x - width / 2 + 0.1, 3.05, f"node {node}: GROUP_RANK={node}", va="center")
    bare(axes, (0.1, 4 * width + 2.1), (0.1, 3.7))

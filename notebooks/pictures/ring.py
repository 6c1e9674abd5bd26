"""5. Ring all-reduce."""

import json
import math
from importlib import import_module

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from . import moving

lesson = import_module("notebooks.lesson")
from_scratch = import_module("05_multinode.from_scratch")

# Of from_scratch.WAYS: what it is called in words, its line and its colour.
ALGORITHMS = {
    "naive": ("naive, through rank 0", "o-", lesson.RANKS[5]),
    "tree": ("tree", "s-", lesson.RANKS[2]),
    "ring": ("ring", "^-", lesson.RANKS[0]),
}


# Seconds of an all-reduce of size bytes over n ranks. alpha is the latency, the seconds that a
# message takes however short it is, and beta is the bandwidth in bytes per second. The costs of
# ring and tree are those of R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective
# communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19 (2005).


def ring_seconds(n: int, size: float, alpha: float, beta: float) -> float:
    """In a ring, every rank sends and receives at the same time."""
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * size / beta


def tree_seconds(n: int, size: float, alpha: float, beta: float) -> float:
    """Up a binary tree to one rank, and down again."""
    return 2 * math.ceil(math.log2(n)) * (alpha + size / beta)


def naive_seconds(n: int, size: float, alpha: float, beta: float) -> float:
    """Through one rank, whose line carries everything twice. It needs at least two ranks."""
    return 2 * alpha + 2 * (n - 1) * size / beta


SECONDS = {"ring": ring_seconds, "tree": tree_seconds, "naive": naive_seconds}


def three_algorithms() -> None:
    """Three panels: between which of four ranks vectors or chunks travel, and in which step."""
    square = [(1, 4), (5, 4), (5, 1), (1, 1)]  # of ranks 0 to 3, clockwise
    panels = {
        "naive, through rank 0": ("<|-|>", {(1, 0): "1, 2", (2, 0): "1, 2", (3, 0): "1, 2"}),
        "tree": ("<|-|>", {(1, 0): "1, 4", (3, 2): "1, 4", (2, 0): "2, 3"}),
        "ring": ("-|>", {(0, 1): "1-6", (1, 2): "1-6", (2, 3): "1-6", (3, 0): "1-6"}),
    }
    look = {"color": "white", "weight": "bold", "ha": "center", "va": "center", "fontsize": 11}
    look["bbox"] = {"facecolor": lesson.GRAY, "edgecolor": "none", "pad": 2}
    title = "Which of four ranks exchange data, and in which sequential steps"
    with lesson.picture(title, height=2.6, ncols=3) as grid:
        for axes, (panel, (style, edges)) in zip(grid, panels.items()):
            for (start, end), steps in edges.items():
                (x, y) = square[start]
                (to_x, to_y) = square[end]
                far = 0.24 if x != to_x and y != to_y else 0.22
                across = far * (to_x - x)
                down = far * (to_y - y)
                arrow(axes, (x + across, y + down), (to_x - across, to_y - down), style=style)
                axes.text((x + to_x) / 2, (y + to_y) / 2, steps, **look)
            for rank, (x, y) in enumerate(square):
                box(axes, x, y, f"{rank}", lesson.RANKS[rank], width=1.3, height=1)
            bare(axes, (0, 6), (0.2, 4.8), panel)


def ring_steps() -> None:
    """The chunks that travel around a ring of four ranks, step by step."""
    of_ranks = [from_scratch.schedule(rank, 4) for rank in range(4)]
    sends = []
    for steps in zip(*of_ranks):
        sends.append([step.send for step in steps])
    lesson.show_moving(moving.ring(sends))


def traffic(busiest: dict) -> None:
    """What the busiest rank sends, by algorithm and number of ranks."""
    words = {"naive": "naive: N - 1 (15 with 16 ranks)", "tree": "tree: log2 N, rounded up"}
    words |= {"ring": "ring: 2(N - 1) / N"}
    title = "With a ring, each rank sends less than 2 vectors for any number of ranks"
    with lesson.picture(title, height=3.2) as axes:
        for (way, (_, style, color)), height in zip(ALGORITHMS.items(), (7.2, 4.3, 0.9)):
            axes.plot(
                range(2, 17), [float(busiest[way, n]) for n in range(2, 17)], style, color=color
            )
            axes.text(9.2, height, words[way], color=color, weight="bold")
        axes.axhline(2, color=lesson.GRAY, linestyle=":")
        axes.set(xlabel="ranks", ylabel="the busiest rank sends,\nin vectors")
        axes.set(ylim=(0, 8.4), xticks=range(2, 17, 2))


def sequential_steps(steps: dict) -> dict[str, list[int]]:
    """A table of steps -> for each algorithm, its steps with 2, 4, 8 and 16 ranks."""
    ranks = (2, 4, 8, 16)
    counts = {way: [steps[way, n] for n in ranks] for way in ALGORITHMS}
    rows = [[ALGORITHMS[way][0], *of_way] for way, of_way in counts.items()]
    lesson.table(["sequential steps", *(f"{n} ranks" for n in ranks)], rows)
    return counts


def latency_and_bandwidth() -> dict[str, dict[str, float]]:
    """Lines, from the record: times over sizes on slow links -> the milliseconds by way and size"""
    record = json.loads((lesson.ROOT / "benchmarks/results/all_reduce_ways.json").read_text())
    ms = record["cables of 100 Mb/s"]["ways"]
    title = "The ring is the slowest for short vectors and the fastest for long ones"
    with lesson.picture(title, height=3.6) as axes:
        for way, (name, style, color) in ALGORITHMS.items():
            sizes = [int(size) for size in ms[way]]
            axes.loglog(sizes, ms[way].values(), style, color=color, label=name)
        axes.set(xlabel="bytes of the vector, on links of 100 Mb/s")
        axes.set(ylabel="milliseconds, four ranks")
        axes.set_xticks(sizes, [in_words(size) for size in sizes], rotation=30)
        axes.minorticks_off()
        axes.legend(loc="upper left")
    return ms


def by_formula(milliseconds: dict[str, dict[str, float]]) -> list[float]:
    """A table: 4 MiB on four ranks, by the bandwidth term and measured -> the ratios"""
    rows = []
    ratios = []
    for way in ALGORITHMS:
        formula = 1000 * SECONDS[way](4, size=2**22, alpha=0, beta=12.5e6)  # 100 Mb/s
        measured = milliseconds[way]["4194304"]
        ratios.append(measured / formula)
        times = f"{formula:,.0f} ms", f"{measured:,.0f} ms", f"{ratios[-1]:.2f}"
        rows.append([ALGORITHMS[way][0], *times])
    lesson.table(["4 MiB, four ranks", "bandwidth term", "measured", "ratio"], rows)
    return ratios


def in_words(size: int) -> str:
    """A power of two as 64 Ki or 4 Mi, and the bytes of the ConvNet's gradients as such."""
    if size == 116_136:
        return "ConvNet"
    return f"{size >> 20} Mi" if size >= 2**20 else f"{size >> 10} Ki"


# ---------------------------------------------------------------- boxes and arrows


def box(axes: Axes, x: float, y: float, text: str, color: str, width=3.0, height=1.6) -> None:
    """A box with words in it, around a point."""
    look = {"fill": False, "edgecolor": color, "linewidth": 2.5}
    axes.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=11.5)


def arrow(axes: Axes, start: tuple, end: tuple, color=lesson.GRAY, style="-|>") -> None:
    look = {"arrowstyle": style, "color": color, "linewidth": 2}
    axes.annotate("", end, start, arrowprops=look, zorder=3)


def bare(axes: Axes, width: tuple, height: tuple, title: str = "") -> None:
    """No axes to be seen, only what is drawn on them: from and to so much in each direction."""
    axes.set(xlim=width, ylim=height, title=title)
    axes.set_axis_off()

"""5. Ring all-reduce."""

import json
from fractions import Fraction
from importlib import import_module

import torch
from matplotlib.patches import Rectangle

from .shapes import arrow, bare, box

lesson = import_module("notebooks.lesson")
from_scratch = import_module("05_multinode.from_scratch")
scaling = import_module("benchmarks.scaling")

# Of from_scratch.WAYS: what it is called in words, its line and its colour.
ALGORITHMS = {
    "naive": ("naive, through rank 0", "o-", lesson.RANKS[5]),
    "tree": ("tree", "s-", lesson.RANKS[2]),
    "ring": ("ring", "^-", lesson.RANKS[0]),
}


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
                (x, y), (to_x, to_y) = square[start], square[end]
                far = 0.24 if x != to_x and y != to_y else 0.22
                across, down = far * (to_x - x), far * (to_y - y)
                arrow(axes, (x + across, y + down), (to_x - across, to_y - down), style=style)
                axes.text((x + to_x) / 2, (y + to_y) / 2, steps, **look)
            for rank, (x, y) in enumerate(square):
                box(axes, x, y, f"{rank}", lesson.RANKS[rank], width=1.3, height=1)
            bare(axes, (0, 6), (0.2, 4.8), panel)


def ring_steps() -> None:
    """A panel per step, and a key: rows are ranks, columns chunks; a thick frame has changed."""
    vectors = [torch.full((4,), 10**rank) for rank in range(4)]
    states = list(from_scratch.simulate(vectors))
    assert all(torch.equal(x, torch.full((4,), 1111)) for x in states[-1])

    title = "Steps 1 to 3 add up (reduce-scatter), 4 to 6 copy (all-gather)"
    with lesson.picture(title, height=4.2, nrows=2, ncols=4) as grid:
        before = states[0]
        for step, (axes, state) in enumerate(zip(grid.flat, states)):
            for rank in range(4):
                axes.text(-0.5, 3.45 - rank, rank, ha="center", va="center")
                for k in range(4):
                    edge = 3 if before[rank][k] != state[rank][k] else 0.8
                    chunk(axes, k, 3 - rank, state[rank][k].item(), edge=edge)
            bare(axes, (-0.9, 4.1), (-0.1, 4.1), f"step {step}" if step else "start")
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

    finished = {rank: (states[3][rank] == 1111).nonzero().flatten().tolist() for rank in range(4)}
    assert finished == {0: [1], 1: [2], 2: [3], 3: [0]}


def chunk(axes, x, y, value, size=0.9, edge=0.8) -> None:
    """A square of four stripes, lower left corner at x, y: of 1011 ranks 0, 1 and 3 are filled."""
    for rank in range(4):
        color = lesson.RANKS[rank] if value // 10**rank % 10 else "none"
        stripe = Rectangle((x + rank * size / 4, y), size / 4, size, fc=color, lw=0)
        axes.add_patch(stripe)
    axes.add_patch(Rectangle((x, y), size, size, fill=False, ec=lesson.GRAY, lw=edge))


def traffic(busiest: dict, real: list[dict]) -> None:
    """What the busiest rank sends, by algorithm and number of ranks.

    busiest: of the simulation; real: what the four processes of the first cell have sent.
    """
    for way in from_scratch.WAYS:  # processes send what the simulation counts
        assert max(rank["sent"][way] for rank in real) == busiest[way, 4]
    for n in range(2, 17):
        assert busiest["ring", n] == Fraction(2 * (n - 1), n)
        assert busiest["naive", n] == n - 1
        assert busiest["tree", n] == (n - 1).bit_length()  # log2 n, rounded up

    words = {"naive": "naive: N - 1, up to 15", "tree": "tree: log2 N, rounded up"}
    words |= {"ring": "ring: 2(N - 1) / N"}
    title = "In a ring no rank sends two vectors, however many ranks there are"
    with lesson.picture(title, height=3.2) as axes:
        for (way, (_, style, color)), height in zip(ALGORITHMS.items(), (7.2, 4.3, 0.9)):
            axes.plot(
                range(2, 17), [float(busiest[way, n]) for n in range(2, 17)], style, color=color
            )
            axes.text(9.2, height, words[way], color=color, weight="bold")
        axes.axhline(2, color=lesson.GRAY, linestyle=":")
        axes.set(xlabel="ranks", ylabel="the busiest rank sends,\nin vectors")
        axes.set(ylim=(0, 8), xticks=range(2, 17, 2))


def sequential_steps(steps: dict, busiest: dict) -> None:
    """A table of steps; the formulas of the table below it count the same."""
    ranks = (2, 4, 8, 16)
    rows = [[ALGORITHMS[way][0], *(steps[way, n] for n in ranks)] for way in scaling.WAYS]
    rows = rows[::-1]
    lesson.table(["sequential steps", *(f"{n} ranks" for n in ranks)], rows)
    assert [row[1:] for row in rows] == [[2, 2, 2, 2], [2, 4, 6, 8], [2, 6, 14, 30]]

    for n in ranks:  # the formulas of the table below count the same
        for way, formula in scaling.WAYS.items():
            assert formula(n, size=1, alpha=1, beta=float("inf")) == steps[way, n]
            both_ways = 1 if way == "ring" else 2  # a ring sends and receives at the same time
            vectors = both_ways * busiest[way, n]
            assert abs(formula(n, size=1, alpha=0, beta=1) - vectors) < 1e-12


def latency_and_bandwidth() -> float:
    """Times over sizes on slow links, from the record -> at 4 MiB naive over ring"""
    record = json.loads((lesson.ROOT / "benchmarks/results/all_reduce_ways.json").read_text())
    ms = record["cables of 100 Mb/s"]["ways"]
    large, small = "4194304", "1024"
    title = "4 MiB: ring {:.0f} ms, naive {:,.0f}. 1 KiB: ring {:.1f}, naive {:.1f}".format(
        *(ms[way][size] for size in (large, small) for way in ("ring", "naive"))
    )
    with lesson.picture(title, height=3.6) as axes:
        for way, (name, style, color) in ALGORITHMS.items():
            sizes = [int(size) for size in ms[way]]
            axes.loglog(sizes, ms[way].values(), style, color=color, label=name)
        axes.set(xlabel="bytes of the vector, 100 Mb/s", ylabel="milliseconds, four ranks")
        axes.set_xticks(sizes, [in_words(size) for size in sizes], rotation=30)
        axes.minorticks_off()
        axes.legend(loc="upper left")
    assert ms["ring"][small] > 2 * ms["naive"][small] and ms["naive"][large] > 2 * ms["ring"][large]
    assert ms["ring"]["8192"] > ms["naive"]["8192"] and ms["ring"]["65536"] < ms["naive"]["65536"]
    assert abs(ms["gloo"][large] / ms["ring"][large] - 1) < 0.05  # gloo's own
    on_one_machine = record["one machine"]["ways"]["ring"]
    assert on_one_machine["262144"] < on_one_machine[small]  # latency-bound up to there
    by_formula({way: ms[way][large] for way in ALGORITHMS})
    return ms["naive"][large] / ms["ring"][large]


def by_formula(measured: dict[str, float]) -> None:
    """A table: milliseconds of 4 MiB on four ranks, by the bandwidth term and measured."""
    rows = []
    for way, vectors in (("naive", 6), ("tree", 4), ("ring", 1.5)):  # N = 4
        formula = 1000 * vectors * 2**22 / 12.5e6  # 100 Mb/s: 12.5e6 bytes
        ratio = measured[way] / formula
        row = f"{vectors:g} vectors", f"{formula:,.0f} ms", f"{measured[way]:,.0f} ms"
        rows.append([ALGORITHMS[way][0], *row, f"{ratio:.2f}"])
        assert 1 < ratio < 1.15
    lesson.table(
        ["4 MiB, four ranks", "one after the other", "S / beta", "measured", "ratio"], rows
    )


def in_words(size: int) -> str:
    """A power of two as 64 Ki or 4 Mi, and the bytes of the ConvNet's gradients as such."""
    if size == 116_136:
        return "ConvNet"
    return f"{size >> 20} Mi" if size >= 2**20 else f"{size >> 10} Ki"

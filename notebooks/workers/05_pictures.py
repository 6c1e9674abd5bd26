"""Drawings of the fifth notebook: who has added up what, in a chunk, on a rank, in a ring.

A chunk is four stripes, one for each rank, from left to right. A stripe is filled if what this rank
began with is in the sum: from_scratch.py's digits, of which 1011 says ranks 0, 1 and 3.
"""

from importlib import import_module

from matplotlib.patches import Rectangle

lesson = import_module("notebooks.lesson")
from_scratch = import_module("05_multinode.from_scratch")

RANKS = 4
STEPS = 2 * (RANKS - 1)
PHASES = {"reduce-scatter": "what comes is added", "all-gather": "what comes is kept"}
PLACES = [(2.4, 5.9), (12, 5.9), (12, 1.1), (2.4, 1.1)]  # of the ranks, clockwise


def draw_chunk(axes, x, y, value, size=0.9, edge=1.0) -> None:
    """A square with its lower left corner at x, y; edge: the width of its frame."""
    for rank in range(RANKS):
        there = value // 10**rank % 10
        color = lesson.RANKS[rank] if there else "white"
        stripe = Rectangle((x + rank * size / RANKS, y), size / RANKS, size, fc=color, lw=0)
        axes.add_patch(stripe)
    axes.add_patch(Rectangle((x, y), size, size, fill=False, ec="black", lw=edge))


def draw_state(axes, before, state, title) -> None:
    """Small: a row for each rank, a column for each chunk; what has changed has a thick frame."""
    for rank in range(RANKS):
        for chunk in range(RANKS):
            new = before is not None and before[rank][chunk] != state[rank][chunk]
            value = state[rank][chunk].item()
            draw_chunk(axes, chunk, RANKS - 1 - rank, value, edge=3 if new else 0.8)
    axes.set(xlim=(-0.1, RANKS), ylim=(-0.1, RANKS), aspect="equal", xticks=[])
    axes.set_yticks([RANKS - 0.5 - rank for rank in range(RANKS)], range(RANKS))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=12)


def draw_key(axes) -> None:
    draw_chunk(axes, 0, 2.4, 1011, size=1.5)
    axes.text(0, 2.2, "a chunk: ranks 0,\n1 and 3 are in", fontsize=12, va="top")
    for rank in range(RANKS):
        axes.add_patch(Rectangle((rank, 0), 0.45, 0.45, fc=lesson.RANKS[rank]))
        axes.text(rank + 0.5, 0, str(rank), fontsize=12)
    axes.set(xlim=(-0.1, RANKS), ylim=(-0.1, RANKS), aspect="equal")
    axes.axis("off")


def draw_ring(axes, states, frame) -> None:
    """Frame 0 is the start; then two for each step: chunks on their way, chunks arrived."""
    axes.set(xlim=(0, 14.4), ylim=(0, 8), aspect="equal")
    axes.axis("off")
    done, on_the_way = frame // 2, frame % 2 == 1
    before, state = states[max(0, done - 1)], states[done]
    steps = [from_scratch.schedule(rank, RANKS)[min(done, STEPS - 1)] for rank in range(RANKS)]
    for rank, (x, y) in enumerate(PLACES):
        axes.text(x, y + (1.05 if y > 4 else -1.05), f"rank {rank}", ha="center", va="center")
        for chunk in range(RANKS):
            value = state[rank][chunk].item()
            new = not on_the_way and before[rank][chunk].item() != value
            draw_chunk(axes, x - 1.9 + 0.95 * chunk, y - 0.45, value, edge=3 if new else 0.8)
        there = PLACES[(rank + 1) % RANKS]
        draw_road(axes, (x, y), there)
        if on_the_way:
            sent = state[rank][steps[rank].send].item()
            draw_chunk(axes, (x + there[0]) / 2 - 0.45, (y + there[1]) / 2 - 0.45, sent, edge=2)
    axes.text(7.2, 3.5, said(frame, steps[0].phase), ha="center", va="center", linespacing=1.5)


def draw_road(axes, start, end) -> None:
    """An arrow between two neighbours, that touches neither."""
    (x0, y0), (x1, y1) = start, end
    away = 2.3 if y0 == y1 else 0.8  # ranks are wider than high
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    ends = {"xy": (x1 - away * dx, y1 - away * dy), "xytext": (x0 + away * dx, y0 + away * dy)}
    arrow = {"arrowstyle": "-|>", "color": "#999999", "lw": 2}
    axes.annotate("", **ends, arrowprops=arrow, zorder=0)  # under the chunk that travels on it


def said(frame: int, phase: str) -> str:
    if frame == 0:
        return "start: each rank\nhas only its own"
    if frame == 2 * STEPS:
        return f"after {STEPS} steps\nall have all"
    number = (frame + 1) // 2
    phase = phase if frame % 2 else from_scratch.schedule(0, RANKS)[number - 1].phase
    return f"step {number} of {STEPS}\n{phase}:\n{PHASES[phase]}"

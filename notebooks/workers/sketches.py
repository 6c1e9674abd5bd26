"""The drawings of notebooks 2 and 4 that are made of boxes and arrows. All draw on given axes."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from notebooks.lesson import COLORS, RANKS

GREY = "#666666"


def box(axes: Axes, x: float, y: float, text: str, color: str, width=3.0, height=1.6) -> None:
    """A box with words in it, around a point."""
    look = {"facecolor": "white", "edgecolor": color, "linewidth": 2.5}
    axes.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=11.5)


def arrow(axes: Axes, start: tuple, end: tuple, color: str = "black", style: str = "-|>") -> None:
    look = {"arrowstyle": style, "color": color, "linewidth": 2}
    axes.annotate("", end, start, arrowprops=look)


def four_moves(grid) -> None:
    """Six panels: what travels between device 0 and the others in a step of DataParallel."""
    moves = {
        "1. replicate": ("out", "the model", "backward"),
        "2. scatter": ("out", "images", "optimizer"),
        "3. parallel apply": ("", "each its share", ""),
        "4. gather": ("back", "outputs", "optimizer"),
        "5. after the loss": ("out", "their gradient", "optimizer"),
        "6. backward, add up": ("back", "gradients", "backward"),
    }
    for axes, (move, (way, what, color)) in zip(grid.flat, moves.items()):
        for device, (x, y) in enumerate([(3, 3), (0.7, 0.5), (3, 0.5), (5.3, 0.5)]):
            box(axes, x, y, str(device), RANKS[device], width=1.6, height=1)
            if not way:
                axes.patches[-1].set(hatch="//")
                axes.texts[-1].set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 2})
            elif device:
                ends = (3 + (x - 3) * 0.3, 2.4), (x, 1.1)
                arrow(axes, *(ends if way == "out" else ends[::-1]), COLORS[color])
        axes.text(4.1, 3, what, va="center")
        axes.set(xlim=(-0.3, 7.6), ylim=(-0.2, 3.8), title=move)
        axes.set_axis_off()


def who_starts_whom(grid) -> None:
    """Two panels: mp.spawn and torchrun."""
    parents = ["train.py\n(the parent)", "torchrun\n(the launcher)"]
    for axes, parent, child in zip(grid, parents, ["worker({})", "train.py\nRANK={}"]):
        box(axes, 1.7, 2.5, parent, GREY, width=3.3)
        for rank in (0, 1):
            box(axes, 7.2, 4 - 3 * rank, child.format(rank), RANKS[rank])
            arrow(axes, (3.5, 2.5), (5.6, 4 - 3 * rank))
        axes.set(xlim=(0, 9), ylim=(0, 5))
        axes.set_axis_off()
    grid[0].set_title("mp.spawn calls a function")
    grid[1].set_title("torchrun runs the script")


def meeting(grid) -> None:
    """Three panels: how two ranks find each other through a store."""
    steps = ["1. each knows the store", "2. each writes, reads", "3. they are connected"]
    for number, (axes, step) in enumerate(zip(grid, steps)):
        written = "\n0: port 5151\n1: port 6262" if number else ""
        box(axes, 3, 4, f"store{written}", GREY, width=3.6)
        for rank in (0, 1):
            box(axes, 1 + 4 * rank, 1, f"rank {rank}", RANKS[rank], width=1.9, height=1)
            if number < 2:
                ends = (1 + 4 * rank, 1.6), (2.2 + 1.6 * rank, 3.1)
                arrow(axes, *ends, RANKS[rank], "<|-|>" if number else "-|>")
        if number == 2:
            arrow(axes, (2, 1), (4, 1), style="<|-|>")
        axes.set(xlim=(-0.3, 6.3), ylim=(0.2, 5), title=step)
        axes.set_axis_off()


def lanes(axes: Axes, struck: int, fate: str, verdict: str) -> None:
    """One panel: what two ranks do until the launcher sees one of them fail; not to scale.

    struck, fate: which rank, and how (fates.py). verdict: the title.
    """
    other, late = 1 - struck, fate in ("hangs", "exits early")
    seen = {"hangs": 7, "exits early": 5}.get(fate, 1.5)
    axes.barh(struck, 1, color=COLORS["forward"])
    if fate == "hangs":
        axes.barh(struck, 6.6, color="white", left=1, edgecolor=GREY, hatch="//")
    else:
        axes.plot(1, struck, "o" if fate == "exits early" else "x", **MARK)
    axes.barh(other, 3.5 if late else seen, color=COLORS["forward"])
    if late:
        axes.barh(other, seen - 3.5, color=COLORS["exposed"], left=3.5)
        axes.plot(seen, other, "x", **MARK)
    axes.axvline(seen, color="black", linestyle=":")
    label = axes.text(1.7, struck, fate, va="center")
    label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 2})
    axes.set_title(verdict, loc="left")
    axes.set(yticks=[0, 1], yticklabels=["rank 0", "rank 1"], ylim=(1.6, -0.6))
    axes.set(xticks=[], xlim=(0, 8), xlabel="time, not to scale")


MARK = {"color": "black", "markersize": 11, "markeredgewidth": 3}


def towers(grid, stacks: list[list[tuple[str, str]]]) -> None:
    """A panel for each rank: its calls, (function, file), the innermost on top."""
    for rank, (axes, calls) in enumerate(zip(grid, stacks)):
        for level, (name, file) in enumerate(calls):
            color = COLORS["exposed"] if level == len(calls) - 1 else GREY
            box(axes, 4, level, f"{name}  ({file})", color, width=7.6, height=0.8)
        highest = max(len(calls) for calls in stacks)
        axes.set(xlim=(0, 8), ylim=(-0.5, highest - 0.4), title=f"rank {rank}")
        axes.set_axis_off()

"""4. torchrun."""

import re
from importlib import import_module
from pathlib import Path

from matplotlib.axes import Axes

from .shapes import arrow, bare, box

lesson = import_module("notebooks.lesson")
failures = import_module("notebooks.ranks.04_failures")


def spawn_and_torchrun() -> None:
    """Two panels: who starts whom."""
    panels = [
        ("mp.spawn calls a function", "train.py\n(the parent)", "worker({})"),
        ("torchrun runs the script", "torchrun\n(the launcher)", "train.py\nRANK={}"),
    ]
    title = "mp.spawn starts a function, torchrun starts the whole script"
    with lesson.picture(title, height=3, ncols=2) as grid:
        for axes, (panel, parent, child) in zip(grid, panels):
            box(axes, 1.7, 2.5, parent, lesson.GRAY, width=3.3)
            for rank in (0, 1):
                box(axes, 7.2, 4 - 3 * rank, child.format(rank), lesson.RANKS[rank])
                arrow(axes, (3.5, 2.5), (5.6, 4 - 3 * rank))
            bare(axes, (0, 9), (0, 5), panel)


VARIABLES = {
    "RANK": "number of this rank among all ranks; rank 0 prints and saves",
    "LOCAL_RANK": "number of this rank on its node; it chooses the GPU",
    "ROLE_RANK": "number of this rank among the ranks of its role",
    "WORLD_SIZE": "number of ranks",
    "LOCAL_WORLD_SIZE": "number of ranks on this node",
    "ROLE_WORLD_SIZE": "number of ranks with this role",
    "GROUP_RANK": "number of this node",
    "GROUP_WORLD_SIZE": "number of nodes",
    "MASTER_ADDR": "address of the store",
    "MASTER_PORT": "port of the store",
    "TORCHELASTIC_RUN_ID": "name of this run",
    "TORCHELASTIC_RESTART_COUNT": "number of restarts so far",
    "TORCHELASTIC_MAX_RESTARTS": "number of restarts that are allowed",
}


def environment(environments: list[dict[str, str]]) -> None:
    """A table of what torchrun sets. environments: of ranks 0 and 1."""
    changing = {"MASTER_PORT": "a free port", "TORCHELASTIC_RUN_ID": "random"}
    rows = []
    for name, meaning in VARIABLES.items():
        zero, one = (environment[name] for environment in environments)
        value = zero if zero == one else f"{zero} and {one}"
        rows.append([f"`{name}`", changing.get(name, value), meaning])
    lesson.table(["variable", "on ranks 0 and 1", "meaning"], rows, align="lll")


def rendezvous() -> None:
    """Three panels: how two ranks find each other."""
    steps = ["1. know the store", "2. write and read", "3. connect"]
    title = "Rendezvous: ranks exchange their addresses through the store"
    with lesson.picture(title, height=3.1, ncols=3) as grid:
        for number, (axes, step) in enumerate(zip(grid, steps)):
            written = "\n0: port 5151\n1: port 6262" if number else ""
            box(axes, 3, 4, f"store{written}", lesson.GRAY, width=3.6)
            for rank in (0, 1):
                box(axes, 1 + 4 * rank, 1, f"rank {rank}", lesson.RANKS[rank], width=1.9, height=1)
                if number < 2:
                    ends = (1 + 4 * rank, 1.6), (2.2 + 1.6 * rank, 3.1)
                    arrow(axes, *ends, lesson.RANKS[rank], "<|-|>" if number else "-|>")
            bare(axes, (-0.3, 6.3), (0.2, 5), step)
        arrow(grid[2], (2, 1), (4, 1), style="<|-|>")


# ---------------------------------------------------------------- which rank failed first?


def report(run):
    """The last part of torchrun's report, as lines."""
    text = run.launcher.partition("Root Cause")[2].partition("====")[0]
    lines = [line.strip() for line in text.splitlines()]
    traceback = next(k for k, line in enumerate(lines) if line.startswith("traceback"))
    last = [line for line in lines[traceback:] if line][-1]
    kept = [line for line in lines[:traceback] if line[:4] in ("rank", "exit")]
    last = re.sub(r"\[.*?\] |\[.*| by PID.*|(?<=ms) .*", "", last)
    last = last.replace("reset by", "closed by")  # which of the two is chance
    return [re.sub(r" +\(pid: \d+\) *", " ", line) for line in kept] + [last]


def reports(runs: dict) -> None:
    """The end of torchrun's report of each case."""
    text = "\n\n".join(
        "\n".join([f"{case}. Root Cause (first observed failure):", *report(run)])
        for case, run in runs.items()
    )
    lesson.show_code(text.replace("\n", "\n   ").replace("\n   \n   ", "\n\n"), "text")


def named(run):
    """The rank that torchrun calls the root cause."""
    return int(re.search(r"rank *: (\d+)", run.launcher.partition("Root Cause")[2])[1])


def root_causes(runs: dict) -> None:
    """Four panels: what happens in each case, and the rank that torchrun names."""
    title = "torchrun names the first rank that ended with an error"
    with lesson.picture(title, height=5, nrows=2, ncols=2) as grid:
        for axes, (case, (rank, how)) in zip(grid.flat, failures.CASES.items()):
            lanes(axes, rank, how, f"{case}: names rank {named(runs[case])}, cause is rank {rank}")


def lanes(axes: Axes, failed: int, how: str, title: str) -> None:
    """One panel: what two ranks do until the launcher sees one of them fail; not to scale.

    failed, how: which rank fails, and how (ranks/04_failures.py).
    """
    other, late = 1 - failed, how in ("hangs", "exits early")
    seen = {"hangs": 7, "exits early": 5.8}.get(how, 1.5)
    mark = {"color": lesson.GRAY, "markersize": 11, "markeredgewidth": 3}
    axes.barh(failed, 1, color=lesson.COLORS["forward"])
    if how == "hangs":
        axes.barh(failed, 6.6, color=lesson.COLORS["data"], left=1)
    else:
        axes.plot(1, failed, "o" if how == "exits early" else "x", **mark)
    axes.barh(other, 3.5 if late else seen, color=lesson.COLORS["forward"])
    if late:
        middle = {"ha": "center", "va": "center"}
        axes.text(1.75, other, "computes", color="black", **middle)
        axes.barh(other, seen - 3.5, color=lesson.COLORS["exposed"], left=3.5)
        axes.text((3.4 + seen) / 2, other, "waits", color="white", **middle)
        axes.plot(seen, other, "x", **mark)
    axes.axvline(seen, color=lesson.GRAY, linestyle=":")
    axes.text(1.7, failed, how, va="center", color="black" if how == "hangs" else lesson.GRAY)
    axes.set_title(title, loc="left")
    axes.set(yticks=[0, 1], yticklabels=["rank 0", "rank 1"], ylim=(1.6, -0.6))
    axes.set(xticks=[], xlim=(0, 8), xlabel="time, not to scale")


def stack(text):
    """(function, file) of each call in a faulthandler's report, the outermost first."""
    calls = re.findall(r'File "(.*?)", line \d+ in (\w+)', text)[::-1]
    return [(name, Path(file).name) for file, name in calls if name != "wrapper"]


def stacks_of_a_deadlock(run) -> list[str]:
    """A table: the calls of both ranks, the innermost on top -> the innermost call of each."""
    stacks = [stack(err) for err in run.err]
    levels = list(enumerate(zip(*stacks)))[::-1]
    rows = [[level, *(f"`{name}` ({file})" for name, file in calls)] for level, calls in levels]
    lesson.table(["depth", "rank 0", "rank 1"], rows, align="rll")
    return [calls[-1][0] for calls in stacks]

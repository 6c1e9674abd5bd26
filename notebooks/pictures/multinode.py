"""5. Several nodes."""

import re
from importlib import import_module

import torch
from matplotlib.patches import Rectangle

from .shapes import bare, box

lesson = import_module("notebooks.lesson")


def two_nodes(ranks: list[dict]) -> list[dict[str, int]]:
    """A frame for each node, in it a box for each rank -> their numbers in torchrun's variables"""
    names = [kind + name for name in ("RANK", "WORLD_SIZE") for kind in ("", "LOCAL_", "GROUP_")]
    numbers = [{name: int(values["environment"][name]) for name in names} for values in ranks]
    title = "RANK is unique; LOCAL_RANK begins at 0 on every node"
    width = 3.4
    with lesson.picture(title, height=2.2) as axes:
        for own in numbers:
            node, local = own["GROUP_RANK"], own["LOCAL_RANK"]
            x = 0.4 + node * (2 * width + 1.4) + (local + 0.5) * width
            words = f"RANK={own['RANK']}\nLOCAL_RANK={local}\ncuda:{local}"
            box(axes, x, 1.5, words, lesson.RANKS[own["RANK"]], width=width - 0.3, height=2.1)
            if local == 0:
                look = {"fill": False, "edgecolor": lesson.GRAY, "linewidth": 2, "linestyle": "--"}
                corner = (x - width / 2 - 0.15, 0.2)
                axes.add_patch(Rectangle(corner, 2 * width + 0.3, 3.4, **look))
                axes.text(x - width / 2 + 0.1, 3.05, f"node {node}: GROUP_RANK={node}", va="center")
        bare(axes, (0.1, 4 * width + 2.1), (0.1, 3.7))
    lesson.table(
        ["variable", *(f"rank {k}" for k in range(4))],
        [[f"`{name}`", *(own[name] for own in numbers)] for name in names],
    )
    return numbers


def lost_node(lost, survivor, again) -> list[str]:
    """What the ranks print when node 1 is lost and comes back -> its lines."""
    speed = r"[\d.]+ s, [\d,]+ images/s, "  # It differs from run to run.
    printed = lost.out[0] + survivor.out[0] + again.out[0]  # Rank 0 may be on either node.
    lines = [re.sub(speed, "", line) for line in printed.splitlines()]
    lines.insert(2, "RuntimeError: ... Connection closed (or reset) by peer")  # on node 0
    lesson.show_code("\n".join(lines), "text", caption="what the ranks print")
    return lines


PARTS = {
    "settings": "the flags of the run; a run with other flags does not resume from the file",
    "history": "the loss, the accuracy and the timings of each finished epoch",
    "model": "the weights and BatchNorm's statistics",
    "optimizer": "a momentum for each weight",
    "schedule": "the position in the learning rate schedule",
    "scaler": "the loss scale of fp16",
}


def snapshot(parts: dict) -> None:
    """A table of a snapshot's parts."""
    rows = [[f"`{name}`", PARTS[name], f"{nbytes(parts[name]):,}"] for name in parts]
    lesson.table(["part", "what it holds", "bytes of tensors"], rows, "llr")


def nbytes(part) -> int:
    """Bytes of all tensors in nested lists and dictionaries."""
    if isinstance(part, torch.Tensor):
        return part.nbytes
    if isinstance(part, dict):
        return sum(nbytes(inner) for inner in part.values())
    if isinstance(part, list):
        return sum(nbytes(inner) for inner in part)
    return 0


def begun_again(distances: dict) -> None:
    """A table: how far the weights are from those of the undisturbed run."""
    rows = [["nothing", "0"]]
    for part, far in distances.items():
        rows.append([f"`{part}`", f"{far:.2g}"])
    lesson.table(["part that is reset", "largest difference of a weight"], rows)

"""5. Several nodes."""

import re
from importlib import import_module

import torch

from . import moving

lesson = import_module("notebooks.lesson")


def two_nodes(ranks: list[dict]) -> list[dict[str, int]]:
    """The nodes with their ranks -> for each rank, its numbers by variable"""
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")
    numbers = [{name: int(values["environment"][name]) for name in names} for values in ranks]
    drawn = []
    for own in numbers:
        drawn.append({name: own[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")})
    lesson.show_moving(moving.nodes(drawn))
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

"""5. Several nodes."""

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
    """Show what the ranks print when a node is lost and comes back, and a picture -> the lines."""
    lines = []
    # Rank 0 prints, and it may be on either node.
    for node, run in (("lost", lost), ("other", survivor), ("lost", again)):
        lines += [f"{node} node, rank 0: {line}" for line in run.out[0].splitlines()]
    lines.insert(2, "other node: RuntimeError: ... Connection closed (or reset) by peer")
    lesson.show_code("\n".join(lines), "text", caption="what the ranks print")
    rank_0 = []  # the node of rank 0 in each epoch
    for before_or_after in (lost, again):
        rank_0.append("lost node" if before_or_after.out[0] else "other node")
    lesson.show_moving(moving.lost_node(rank_0))
    return lines


def nbytes(part) -> int:
    """Bytes of all tensors in nested lists and dictionaries."""
    if isinstance(part, torch.Tensor):
        return part.nbytes
    if isinstance(part, dict):
        return sum(nbytes(inner) for inner in part.values())
    if isinstance(part, list):
        return sum(nbytes(inner) for inner in part)
    return 0

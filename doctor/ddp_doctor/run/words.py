"""What the words of several verbs share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """What a finding or a cost means. `page` and `exercise` are files of the repository."""

    why: str
    page: str
    exercise: str = ""


def short(values, limit=4):
    words = [str(value) for value in values]
    return ", ".join(words[:limit]) + (", ..." if len(words) > limit else "")


def per_rank(ranks, values):
    return ", ".join(f"rank {rank.number} {value}" for rank, value in zip(ranks, values))

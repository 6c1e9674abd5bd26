"""For each class the sum is that of all ranks' counts, whatever the order in which they counted."""

import torch.distributed as dist

NAMES = "cat dog owl fox bee ant elk".split()
CASES = ((1,), (2,), (7,))  # classes


class Name(str):
    """Its hash is another on each rank, as that of a str is in processes that torchrun starts."""

    def __hash__(self):
        return hash((dist.get_rank(), str(self)))


class Counts(dict):
    """Finds a Name by a plain str, too."""

    def __missing__(self, key):
        if type(key) is not str:
            raise KeyError(key)
        return self[Name(key)]

    def __contains__(self, key):
        return super().__contains__(Name(key))

    def get(self, key, default=None):
        return self[key] if key in self else default


def make_counts(rank, classes):
    """Other numbers on each rank, in another order, which is not that of the numbers either."""
    numbers = {n: 10**rank * (1 + (i * 3 + rank) % 8) for i, n in enumerate(NAMES[:classes])}
    names = [*numbers] * 2
    return {Name(n): numbers[n] for n in names[rank % classes :][:classes]}


def observe(mine, classes):
    return {"what totals returns": mine.totals(Counts(make_counts(dist.get_rank(), classes)))}

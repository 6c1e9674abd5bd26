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
    names = NAMES[:classes]
    numbers = {}
    for place, name in enumerate(names):
        numbers[name] = 10**rank * (1 + (place * 3 + rank) % 8)
    first = rank % classes
    order = names[first:] + names[:first]
    return {Name(name): numbers[name] for name in order}


def observe(mine, classes):
    counts = Counts(make_counts(dist.get_rank(), classes))
    return {"what totals returns": mine.totals(counts)}

"""Noise and dropout differ between ranks and between epochs; a run with the same seed repeats."""

import numbers
from itertools import combinations

import torch
import torch.distributed as dist
import torch.nn as nn

EPOCHS = 3
SIZE = (32, 8)
SEEDS = (42, 42, 100, 0, 1)  # 0 and 1 make equal numbers of many a product or power
OTHERS = (0, 2, 3, 4)  # runs whose seeds differ
DRAWN = {"noise": "the same noise", "dropped": "the same dropped activations"}


class Noting(nn.Module):
    """Notes the inputs it is given, and which activations its dropout has dropped."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE[1], 1)
        self.dropout = nn.Dropout(0.5)
        self.drawn = {"noise": [], "dropped": []}

    def forward(self, x):
        kept = self.dropout(torch.ones_like(x))
        self.drawn["noise"].append(x.detach() / 0.1)
        self.drawn["dropped"].append((kept == 0).float())
        return self.linear(x * kept)


def hash_of_process(run):
    """hash as in another process: that of numbers is the same, that of a text is not."""

    def salted(value):
        return hash(value) if is_of_numbers(value) else hash((run, value))

    return salted


def is_of_numbers(value):
    if isinstance(value, tuple):
        return all(map(is_of_numbers, value))
    return isinstance(value, numbers.Number)


def observe(mine):
    runs = []
    for run, seed in enumerate(SEEDS):
        torch.manual_seed(1000 * run + dist.get_rank())  # for a train that sets no seed
        mine.hash = hash_of_process(run)
        model = Noting()
        mine.train(model, torch.zeros(SIZE), torch.ones(SIZE[0], 1), seed, EPOCHS)
        runs.append(model.drawn)
    return {"runs": runs}


def facts(found):
    noise = []
    for rank in found:
        for run in rank["runs"]:
            noise += run["noise"]
    shapes = [values.shape for values in noise]
    steps = EPOCHS * len(SEEDS) * len(found)
    result = {
        "one step per epoch, with the whole x": shapes == [SIZE] * steps,
        "a standard deviation of the noise of 0.1": all(0.7 < v.std() < 1.3 for v in noise),
    }
    for what, words in DRAWN.items():
        result[f"{words} twice in a run"] = twice(found, what)
        repeats = []
        others = []
        for rank in found:
            equal = [same_epochs(rank["runs"][0][what], run[what]) for run in rank["runs"]]
            repeats.append(all(equal[1]))
            others.append(any(equal[2] + equal[3] + equal[4]))
        result[f"{words} again with the same seed, by rank"] = repeats
        result[f"{words} with a different seed, by rank"] = others
    return result


def same_epochs(one, other):
    """For each epoch: are the values of two runs equal?"""
    return list(map(torch.equal, one, other))


def twice(found, what):
    """Who has the same values in a run, or the same times a factor."""
    pairs = []
    for run in OTHERS:
        draws = []
        for number, rank in enumerate(found):
            for epoch, values in enumerate(rank["runs"][run][what]):
                name = f"rank {number} in epoch {epoch}"
                draws.append((name, (values - values.mean()) / values.std()))
        for (one, a), (other, b) in combinations(draws, 2):
            if a.shape == b.shape and (a - b).abs().mean() < 0.1:
                pairs.append(f"{one} and {other} (seed {SEEDS[run]})")
    return pairs[:3]

"""Noise and dropout differ between ranks and between epochs; a run with the same seed repeats."""

from itertools import combinations

import torch
import torch.distributed as dist
import torch.nn as nn

EPOCHS, SIZE = 3, (32, 8)
SEEDS = (42, 42, 100)
DRAWN = {"noise": "the same noise", "dropped": "the same dropped activations"}


class Noting(nn.Module):
    """Notes the inputs it is given, and which activations its dropout has dropped."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(SIZE[1], 1), nn.Dropout(0.5)
        self.drawn = {"noise": [], "dropped": []}

    def forward(self, x):
        kept = self.dropout(torch.ones_like(x))
        self.drawn["noise"].append(x.detach() / 0.1)
        self.drawn["dropped"].append((kept == 0).float())
        return self.linear(x * kept)


def observe(mine):
    runs = []
    for run, seed in enumerate(SEEDS):
        torch.manual_seed(1000 * run + dist.get_rank())  # for a train that sets no seed
        mine.hash = lambda value, run=run: hash((run, value))  # each process has its own of a text
        model = Noting()
        mine.train(model, torch.zeros(SIZE), torch.ones(SIZE[0], 1), seed, EPOCHS)
        runs.append(model.drawn)
    return {"runs": runs}


def facts(found):
    runs = [run for rank in found for run in rank["runs"]]
    noise = [values for run in runs for values in run["noise"]]
    result = {
        "one step with its own x in each epoch": [v.shape for v in noise]
        == [SIZE] * EPOCHS * len(runs),
        "a standard deviation of the noise of 0.1": all(0.7 < v.std() < 1.3 for v in noise),
    }
    for what, words in DRAWN.items():
        same = [
            [list(map(torch.equal, rank["runs"][0][what], run[what])) for run in rank["runs"]]
            for rank in found
        ]
        result |= {
            f"{words} twice in a run": twice(found, what),
            f"{words} again with the same seed, by rank": [all(again) for _, again, _ in same],
            f"{words} with another seed, by rank": [any(other) for _, _, other in same],
        }
    return result


def twice(found, what):
    """Who has the same values in a run, or the same times a factor."""
    pairs = []
    for run in (0, 2):
        draws = [
            (f"rank {number} in epoch {epoch}", (values - values.mean()) / values.std())
            for number, rank in enumerate(found)
            for epoch, values in enumerate(rank["runs"][run][what])
        ]
        for (one, a), (other, b) in combinations(draws, 2):
            if a.shape == b.shape and (a - b).abs().mean() < 0.1:
                pairs.append(f"{one} and {other}")
    return pairs[:3]

"""Noise and dropout differ between ranks and between epochs; a run with the same seed repeats."""

from itertools import combinations

import torch
import torch.distributed as dist
import torch.nn as nn

EPOCHS, SIZE = 3, (32, 8)
SEEDS = (42, 42, 100)
HINTS = (
    "Compare what two ranks print in the same epoch. Where do their random numbers come from?",
    "With one seed all ranks draw the same numbers. Their weights do not need that: DDP copies "
    "those of rank 0 to all ranks when it wraps the model.",
    "torch.manual_seed(seed + dist.get_rank())",
)
DRAWN = {"noise": "the same noise", "dropped": "the same activations dropped"}


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
        model = Noting()
        mine.train(model, torch.zeros(SIZE), torch.ones(SIZE[0], 1), seed, EPOCHS)
        runs.append(model.drawn)
    return {"runs": runs}


def judge(ranks):
    for number, rank in enumerate(ranks):
        for run in rank["runs"]:
            if len(run["noise"]) != EPOCHS or run["noise"][0].shape != SIZE:
                return f"rank {number} was to make one step with its x in each of {EPOCHS} epochs"
            if any(not 0.7 < noise.std() < 1.3 for noise in run["noise"]):
                return f"the noise on rank {number} was to have a standard deviation of 0.1"
    for what, words in DRAWN.items():
        if wrong := judge_ranks(ranks, what, words) or judge_runs(ranks, what, words):
            return wrong
    return None


def judge_ranks(ranks, what, words):
    """Within a run no two epochs of any ranks have the same, not even the same noise times 2."""
    for run in (0, 2):
        draws = [
            (epoch, number, (values - values.mean()) / values.std())
            for epoch in range(EPOCHS)
            for number, rank in enumerate(ranks)
            for values in [rank["runs"][run][what][epoch]]
        ]
        for (epoch, number, one), (later, other, another) in combinations(draws, 2):
            if (one - another).abs().mean() < 0.1:
                return (
                    f"rank {other} in epoch {later} had {words} as rank {number} in epoch {epoch}"
                )
    return None


def judge_runs(ranks, what, words):
    for number, rank in enumerate(ranks):
        first, again, other = (torch.stack(run[what]) for run in rank["runs"])
        if not torch.equal(first, again):
            return f"two runs with seed {SEEDS[0]}: in the second rank {number} had not {words}"
        if any(torch.equal(one, another) for one, another in zip(first, other)):
            return f"with seed {SEEDS[2]} rank {number} had {words} as with seed {SEEDS[0]}"
    return None

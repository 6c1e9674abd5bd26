"""Noise and dropout differ between ranks and between epochs; a run with the same seed repeats."""

from itertools import combinations

import torch
import torch.distributed as dist
import torch.nn as nn

WORLD_SIZES = (2, 3)
EPOCHS, SIZE = 3, (32, 8)
SEEDS = (42, 42, 100)
HINTS = (
    "Compare what two ranks print in the same epoch. Where do their random numbers come from?",
    "All ranks set the same seed, and then draw equally many numbers. The weights do not need "
    "that: DDP copies those of rank 0 to all ranks when it wraps the model.",
    "torch.manual_seed(seed + dist.get_rank())",
)


class Noting(nn.Module):
    """Notes the inputs it is given, and which activations its dropout has dropped."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE[1], 1)
        self.dropout = nn.Dropout(0.5)
        self.inputs, self.dropped = [], []

    def forward(self, x):
        kept = self.dropout(torch.ones_like(x))
        self.inputs.append(x.detach().clone())
        self.dropped.append(kept == 0)
        return self.linear(x * kept)


def observe(mine):
    runs = []
    for run, seed in enumerate(SEEDS):
        torch.manual_seed(1000 * run + dist.get_rank())  # for a train that sets no seed
        model = Noting()
        mine.train(model, torch.zeros(SIZE), torch.ones(SIZE[0], 1), seed, EPOCHS)
        runs.append(
            dict(
                noise=model.inputs,
                dropped=model.dropped,
                weights=[parameter.detach() for parameter in model.parameters()],
            )
        )
    return {"runs": runs}


def judge(ranks):
    return (
        judge_amount(ranks)
        or judge_draws(ranks, "noise", "the same noise", flat)
        or judge_draws(ranks, "dropped", "the same activations dropped", lambda d: d.float())
        or judge_runs(ranks)
    )


def flat(noise):
    """Without offset and size: the noise of one rank is not to be that of another times 2."""
    return (noise - noise.mean()) / noise.std()


def judge_amount(ranks):
    for number, rank in enumerate(ranks):
        for run in rank["runs"]:
            if len(run["noise"]) != EPOCHS:
                return (
                    f"rank {number} was to make one step in each of {EPOCHS} epochs; it made "
                    f"{len(run['noise'])} forward passes"
                )
            for epoch, (noise, dropped) in enumerate(zip(run["noise"], run["dropped"])):
                if noise.shape != SIZE:
                    return (
                        f"in epoch {epoch} rank {number} trained on inputs of shape "
                        f"{tuple(noise.shape)}; its own have {SIZE}"
                    )
                if not 0.07 < noise.std() < 0.13:
                    return (
                        f"in epoch {epoch} the noise on rank {number} has a standard deviation of "
                        f"{noise.std():.2f}, which was to be 0.10"
                    )
                if not 0.3 < dropped.float().mean() < 0.7:
                    return (
                        f"in epoch {epoch} rank {number} dropped {dropped.float().mean():.0%} of "
                        f"the activations; the model is to drop half"
                    )
    return None


def judge_draws(ranks, what, words, prepare):
    """No two epochs of any ranks have the same: within each run."""
    for run in (0, 2):
        draws = [
            (epoch, number, prepare(values))
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


def judge_runs(ranks):
    for number, rank in enumerate(ranks):
        first, again, other = rank["runs"]
        for what in ("noise", "dropped"):
            if any(not torch.equal(a, b) for a, b in zip(first[what], again[what])):
                drew = {"noise": "drew other noise", "dropped": "dropped other activations"}[what]
                return f"two runs with seed {SEEDS[0]}: in the second rank {number} {drew}"
            if any(torch.equal(a, b) for a, b in zip(first[what], other[what])):
                drew = {"noise": "drew the same noise", "dropped": "dropped the same"}[what]
                return f"with seed {SEEDS[2]} rank {number} {drew} as with seed {SEEDS[0]}"
        for run, mine in zip(ranks[0]["runs"], rank["runs"]):
            if any(not torch.equal(a, b) for a, b in zip(run["weights"], mine["weights"])):
                return f"after training, the weights of rank {number} are not those of rank 0"
    return None

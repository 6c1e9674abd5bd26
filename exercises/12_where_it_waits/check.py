"""A step in which any rank has no finite loss is left out by all; the others are as usual."""

import math

import torch
import torch.distributed as dist

from exercises.common import ROWS, Watch, linear

EPOCHS = 2
BATCHES = 4
CASES = (
    ("in no batch", {}),
    ("in a batch of rank 1", {(1, 1): math.nan}),
    ("in two batches of rank 0", {(0, 2): math.inf, (0, 5): math.nan}),
    ("in the last batch of ranks 0 and 1", {(0, 7): math.nan, (1, 7): math.nan}),
    ("in a batch of rank 0 and in the next batch of rank 1", {(0, 3): math.nan, (1, 4): math.nan}),
)
CASE = "with nan or infinity {}: "


def observe(mine, _, broken):
    """`broken`: {(rank, step): the value in its x}"""
    rank = dist.get_rank()
    watch = Watch(linear(rank))
    generator = torch.Generator().manual_seed(rank)
    epochs = []
    for epoch in range(EPOCHS):
        batches = []
        for number in range(BATCHES):
            x = torch.randn(6, 2, dtype=torch.float64, generator=generator)
            y = 5 + (1 + rank) * x.sum(1, keepdim=True)
            x[3, 1] = broken.get((rank, epoch * BATCHES + number), x[3, 1])
            batches.append((x, y))
        epochs.append(batches)
    mine.train(watch.model, epochs, f"model{rank}.pt")
    found = watch.facts()
    found[ROWS] = watch.rows
    return found

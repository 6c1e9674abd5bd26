"""The same weights and figures, without a collective for figures in every step."""

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from exercises.common import Collectives, Watch, linear, secret
from exercises.verdict import MOST

SIZES = (18, 114)  # images: 3 or 15 steps per epoch on 2 ranks, the last with 1
EPOCHS = 2


def observe(mine):
    found = {}
    calls = []
    for size in SIZES:
        draw = secret(size)
        watch = Watch(linear(dist.get_rank(), 2, 3))
        notes = Collectives().listen()
        x = 4 * torch.randn(size, 2, dtype=torch.float64, generator=draw)
        y = torch.randint(3, (size,), generator=draw)
        history = mine.train(watch.model, TensorDataset(x, y), EPOCHS)
        calls.append(len(notes.calls))
        for fact, value in watch.facts().items():
            found[f"{fact} ({size} images)"] = value
        found[f"what train returns ({size} images)"] = history
    more = f"collectives that are added if an epoch has 5 times as many steps{MOST}"
    found[more] = calls[1] - calls[0]
    return found

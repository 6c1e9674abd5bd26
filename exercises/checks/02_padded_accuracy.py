"""Every rank returns the accuracy that one process finds, without testing the whole set itself."""

import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises.checks.common import Watch, secret
from exercises.checks.judge import MOST

CASES = ((11, 0), *((size, 0.4) for size in (11, 13, 7, 10, 24, 16)))  # images, random labels
CASE = "{} images: "


def observe(mine, size, share):
    """`share` of the images get a random label; how many are right is known after the test only."""
    draw, model = secret(size, share), nn.Linear(4, 3, bias=False)
    nn.init.normal_(model.weight, generator=draw)
    x, labels = torch.randn(size, 4, generator=draw), torch.randint(3, (size,), generator=draw)
    with torch.no_grad():
        labels = torch.where(torch.rand(size, generator=draw) < share, labels, model(x).argmax(1))
    watch = Watch(model)
    accuracy = mine.evaluate(model, TensorDataset(x, labels))
    return {"the accuracy": accuracy, f"images that a rank tests{MOST}": watch.rows}

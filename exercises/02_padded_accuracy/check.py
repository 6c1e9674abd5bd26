"""Every rank returns the accuracy that one process finds, without testing the whole set itself."""

import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises.common import Watch, secret
from exercises.verdict import MOST

CASES = ((11, 0), (11, 0.4), (13, 0.4), (7, 0.4), (10, 0.4), (24, 0.4), (16, 0.4))
CASE = "{} images: "


def observe(mine, size, share):
    """`share` of the images get a random label; how many are right is known after the test only.

    The model has a Dropout, so a test in train mode finds another accuracy.
    """
    draw = secret(size, share)
    linear = nn.Linear(4, 3, bias=False)
    nn.init.normal_(linear.weight, generator=draw)
    x = torch.randn(size, 4, generator=draw)
    labels = torch.randint(3, (size,), generator=draw)
    with torch.no_grad():
        right = linear(x).argmax(1)
    is_random = torch.rand(size, generator=draw) < share
    labels = torch.where(is_random, labels, right)
    watch = Watch(nn.Sequential(nn.Dropout(0.5), linear))
    accuracy = mine.evaluate(watch.model, TensorDataset(x, labels))
    return {
        "the accuracy": accuracy,
        f"images that a rank tests{MOST}": watch.rows,
    }

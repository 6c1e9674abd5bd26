"""After each step the weights are those of one process, and no image is seen twice."""

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from exercises.common import ROWS, Watch, linear, secret

CASES = ((24, 6, 0.3), (24, 12, 0.1), (60, 6, 0.2))  # images, batch size, learning rate
CASE = "{} images, batch_size={}: "


def observe(mine, count, batch_size, lr):
    watch = Watch(linear(seed=dist.get_rank()))
    x = torch.rand(count, 2, dtype=torch.float64, generator=secret(count))
    y = 5 + torch.sin(9 * x[:, :1])
    mine.train(watch.model, TensorDataset(x, y), batch_size, lr)
    found = watch.facts()
    found[ROWS] = watch.rows
    return found

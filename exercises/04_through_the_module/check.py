"""After each step all ranks have the weights of one process that trains on the data of all."""

import torch.distributed as dist
import torch.nn.functional as F

from exercises.common import ROWS, Watch, linear, rank_data

STEPS = 4


def loss(prediction, y):
    """Only who calls the model's own loss gets the right steps."""
    return 0.7 * F.mse_loss(prediction, y)


def observe(mine):
    rank = dist.get_rank()
    watch = Watch(linear(seed=rank))
    watch.model.loss = loss
    mine.train(watch.model, *rank_data(rank, scale=5), STEPS)
    found = watch.facts()
    found[ROWS] = watch.rows
    return found

"""After each step all ranks have the weights of one process that trains on the data of all."""

import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import ROWS, Watch, linear, rank_data

STEPS = 4


def observe(mine):
    watch = Watch(linear(seed=dist.get_rank()))  # only who calls its loss gets the right steps
    watch.model.loss = lambda prediction, y: 0.7 * F.mse_loss(prediction, y)
    mine.train(watch.model, *rank_data(dist.get_rank()), STEPS)
    return watch.facts() | {ROWS: watch.rows}

"""After each step all ranks have the weights of one process that trains on the data of all."""

import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import ROWS, Watch, linear, rank_data

STEPS = 4


def make_model(seed):
    model = linear(seed)  # only who calls its loss gets the right steps
    model.loss = lambda prediction, y: 0.7 * F.mse_loss(prediction, y)
    return model


def observe(mine):
    watch = Watch(make_model(seed=dist.get_rank()))
    mine.train(watch.model, *rank_data(dist.get_rank()), STEPS)
    return watch.facts() | {ROWS: watch.rows}

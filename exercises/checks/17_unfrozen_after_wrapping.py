"""In each epoch all ranks have the weights of one process that trains on the data of all."""

from collections import OrderedDict

import torch.distributed as dist
import torch.nn as nn

from exercises.checks.common import ROWS, Watch, linear, rank_data

EPOCHS = 5
CASES = ((1,), (3,))  # epochs in which the body is frozen
CASE = "frozen={} (the numbers of the body come first): "


def make_model(seed):
    body = nn.Sequential(linear(seed + 50, 2, 2), nn.Tanh())
    return nn.Sequential(OrderedDict(body=body, head=linear(seed)))


def observe(mine, frozen):
    watch = Watch(make_model(seed=dist.get_rank()))
    mine.finetune(watch.model, *rank_data(dist.get_rank()), frozen, EPOCHS)
    return watch.facts() | {ROWS: watch.rows}

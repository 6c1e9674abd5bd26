"""In each epoch all ranks have the weights of one process that trains on the data of all."""

from collections import OrderedDict

import torch.distributed as dist
import torch.nn as nn

from exercises.common import ROWS, Watch, linear, rank_data

EPOCHS = 5
CASES = ((1,), (3,))  # epochs in which the body is frozen
CASE = "frozen={} (the numbers of the body come first): "


def observe(mine, frozen):
    rank = dist.get_rank()
    body = nn.Sequential(linear(rank + 50, 2, 2), nn.Tanh())
    head = linear(rank)
    watch = Watch(nn.Sequential(OrderedDict(body=body, head=head)))
    mine.finetune(watch.model, *rank_data(rank, scale=3), frozen, EPOCHS)
    found = watch.facts()
    found[ROWS] = watch.rows
    return found

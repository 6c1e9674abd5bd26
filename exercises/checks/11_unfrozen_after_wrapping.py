"""In each epoch all ranks have the weights of one process that trains on the data of all."""

from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import (
    Watch,
    first_difference,
    linear,
    parameters,
    rank_data,
    together,
)

EPOCHS = 5
CASES = ((1,), (3,))  # epochs in which the body is frozen
CASE = "frozen={}, "
LEARNT = (
    "DDP notes at its construction which parameters need gradients: wrap again after unfreezing."
)
HINTS = (
    "Print the gradients of two ranks after backward(), of the head and of the body, before and "
    "after the body is unfrozen.",
    "When it is made, DistributedDataParallel notes which parameters need gradients. Only these it "
    "averages, for ever.",
    "Wrap the model again, once the body is unfrozen; or wrap it before anything is frozen, and "
    "leave the body out of the optimizer's parameters at first.",
)


def make_model(seed):
    body = nn.Sequential(linear(seed + 50, 2, 2), nn.Tanh())
    return nn.Sequential(OrderedDict(body=body, head=linear(seed)))


def observe(mine, frozen):
    watch = Watch(make_model(seed=dist.get_rank()))
    mine.finetune(watch.model, *rank_data(dist.get_rank()), frozen, EPOCHS)
    return watch.found()


def one_process(x, y, frozen):
    """The weights before each epoch, and at the end: first those of the body, then of the head."""
    model = make_model(seed=0)
    found = [parameters(model)]
    for epoch in range(EPOCHS):
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        trained = model if epoch >= frozen else model.head
        torch.optim.SGD(trained.parameters(), lr=0.1).step()
        found.append(parameters(model))
    return found


def judge(ranks, frozen):
    wanted = one_process(*together(map(rank_data, range(len(ranks)))), frozen)
    for part, what in ((slice(6), "body"), (slice(6, None), "head")):
        found = [rank | {"steps": [step[part] for step in rank["steps"]]} for rank in ranks]
        own = [step[part] for step in wanted]
        if wrong := first_difference(found, own, "epoch", rows=EPOCHS * 6):
            return f"the {what}: {wrong}"
    return None

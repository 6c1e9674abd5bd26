"""In each epoch all ranks have the weights of one process that trains on the data of all."""

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
    too_many_rows,
)

WORLD_SIZES = (2, 3)
EPOCHS = 5
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


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.head = linear(seed)
        self.body = nn.Sequential(linear(seed + 50, 2, 2), nn.Tanh())

    def forward(self, x):
        return self.head(self.body(x))


def observe(mine):
    cases = {}
    for frozen in (1, 3):
        watch = Watch(Model(seed=dist.get_rank()))
        mine.finetune(watch.model, *rank_data(dist.get_rank()), frozen, EPOCHS)
        cases[frozen] = watch.found()
    return {"cases": cases}


def one_process(x, y, frozen):
    """The weights before each epoch, and at the end: first those of the head, then of the body."""
    model = Model(seed=0)
    found = [parameters(model)]
    for epoch in range(EPOCHS):
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        trained = model if epoch >= frozen else model.head
        torch.optim.SGD(trained.parameters(), lr=0.1).step()
        found.append(parameters(model))
    return found


def judge(ranks):
    everything = together(map(rank_data, range(len(ranks))))
    for frozen in ranks[0]["cases"]:
        found = [rank["cases"][frozen] for rank in ranks]
        wanted = one_process(*everything, frozen)
        for part, what in ((slice(3, None), "body"), (slice(3), "head")):
            steps = [[weights[part] for weights in values["steps"]] for values in found]
            if wrong := first_difference(steps, [weights[part] for weights in wanted], "epoch"):
                return f"frozen={frozen}, the {what}: {wrong}"
        if wrong := too_many_rows(found, EPOCHS * 6):
            return wrong
    return None

"""After each step all ranks have the weights of one process that trains on the data of all."""

import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import Watch, alone, first_difference, linear, rank_data, together

STEPS = 4
HINTS = (
    "Print the gradients of two ranks after backward(). Are they equal?",
    "Only a forward pass through the DDP model prepares backward to average the gradients.",
    "Only .loss is to be taken from .module: net.loss(ddp_model(x), y).",
)


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.layer = linear(seed)

    def forward(self, x):
        return self.layer(x)

    def loss(self, prediction, y):
        return 0.7 * F.mse_loss(prediction, y)  # only who calls it gets the right steps


def observe(mine):
    watch = Watch(Model(seed=dist.get_rank()))
    mine.train(watch.model, *rank_data(dist.get_rank()), STEPS)
    return watch.found()


def judge(ranks):
    model = Model(seed=0)
    batches = [together(map(rank_data, range(len(ranks))))] * STEPS
    return first_difference(ranks, alone(model, batches, model.loss), rows=STEPS * 6)

"""All ranks halve the learning rate in the epochs in which one process with all data would."""

import torch
import torch.distributed as dist
import torch.nn as nn

EPOCHS = 8
CASES = ((-1, 0.2), (0, 0.2), (None, 1.6))  # the rank whose loss grows, learning rate


def data(world_size, odd):
    """For each rank x and labels that grow with it, except those of one rank."""
    torch.manual_seed(0)
    slopes = [2.0 + 0.1 * rank for rank in range(world_size)]
    if odd is not None:
        slopes[odd] = 0.0
    return [(x, x * slope) for x, slope in zip(torch.rand(world_size, 8, 1), slopes)]


def observe(mine, odd, lr):
    model = nn.Linear(1, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    rates = mine.train(model, *data(dist.get_world_size(), odd)[dist.get_rank()], lr, EPOCHS)
    return {"the learning rate after each epoch": rates, "the weights": model.weight.detach()}

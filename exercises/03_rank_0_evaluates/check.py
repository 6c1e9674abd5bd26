"""Rank 0 returns the validation loss of its model after each epoch; the training is as before."""

import torch
import torch.distributed as dist

from exercises.common import Watch, batchnorm_model

EPOCHS = 3
BATCHES = 2


def data(seed, batches):
    """Labels that are far from what the model says at first, so that gradients are above 1."""
    torch.manual_seed(seed)
    x = torch.rand(batches, 6, 2) + 0.2 * seed
    return list(zip(x, 3 * x.sum(2, keepdim=True)))


def observe(mine):
    rank = dist.get_rank()
    watch = Watch(batchnorm_model(seed=rank))
    x_val, y_val = data(seed=9, batches=1)[0]
    losses = mine.train(watch.model, data(rank, BATCHES), x_val, y_val, EPOCHS)
    found = watch.facts()
    if rank == 0:
        found["what train returns on rank 0"] = losses
    return found

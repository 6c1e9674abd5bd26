"""Rank 0 returns the validation loss of its model after each epoch; the training is as before."""

import torch
import torch.distributed as dist

from exercises.checks.common import Watch, batchnorm_model

EPOCHS, BATCHES = 3, 2


def data(seed, batches):
    torch.manual_seed(seed)
    x = torch.rand(batches, 6, 2) + 0.2 * seed
    return list(zip(x, x.sum(2, keepdim=True)))


def observe(mine):
    rank = dist.get_rank()
    watch = Watch(batchnorm_model(seed=rank))
    x_val, y_val = data(seed=9, batches=1)[0]
    losses = mine.train(watch.model, data(rank, BATCHES), x_val, y_val, EPOCHS)
    return watch.facts() | ({"what train returns on rank 0": losses} if rank == 0 else {})

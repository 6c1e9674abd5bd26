"""Rank 0 returns the validation loss of its model after each epoch; the training is as before."""

import torch
import torch.distributed as dist

from exercises.checks.common import Watch, batchnorm_model

EPOCHS, BATCHES = 3, 2
HINTS = (
    "In which line does each rank wait? A collective needs all ranks, and two different ones do "
    "not meet. Which collective is there in rank 0's line?",
    "The forward pass of a DDP model broadcasts the buffers of rank 0, here those of BatchNorm, "
    "in eval mode as well: it is a collective, and the other ranks do not call it.",
    "Let rank 0 validate the bare model: validate(ddp_model.module, ...).",
)


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

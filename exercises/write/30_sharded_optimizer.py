"""ZeRO-1: shard the optimizer's state over the ranks

With Adam, each rank keeps two more numbers for every parameter: the same ones on all ranks. Write
`ShardedAdam`, on torch.optim.Adam: each rank keeps them for its shard of the parameters, updates
that shard, and gets the rest from the others. The weights are those of Adam on one process.

The number to reach: the state on a rank has at most one N-th of all its bytes, plus those of the
largest parameter, on N ranks.

python exercises/check.py 30
"""

import torch
import torch.distributed as dist


class ShardedAdam:
    """Adam whose state is divided over the ranks.

    Args:
        params: the model's parameters, or any iterable of parameters; the same on all ranks. There
            may be fewer than ranks.
        lr: the learning rate; everything else as torch.optim.Adam has it.
    """

    def __init__(self, params, lr):
        raise NotImplementedError("ShardedAdam is yours to write")

    def step(self):
        """Update all parameters; .grad is there, already averaged: the same on all ranks."""
        raise NotImplementedError

"""Average gradients with hooks, as DDP does

Write `attach`: after it, every backward pass of the model leaves in `.grad` the average over all
ranks, for each parameter that takes part, as soon as its gradient is there. Ranks start with the
weights of rank 0. Only all_reduce and broadcast; no DistributedDataParallel.

Two backward passes without zero_grad between them accumulate, as they do in DDP.

python exercises/check.py 23
"""

import torch.distributed as dist


def attach(model):
    """Broadcast rank 0's parameters, and average the gradients of each backward pass.

    Args:
        model: a module; parameters with requires_grad=False are left alone, but broadcast.
    """
    raise NotImplementedError("attach is yours to write")

"""Gradient accumulation: communicate once per step, and get the big batch's gradient

Write `train_step`, without DistributedDataParallel: the weights after it are those of one process
that makes a step with all samples at once, up to rounding. The gradient of a step begins at zero.

The number to reach: one collective per step, whatever the number of micro-batches and parameters.

python exercises/check.py 29
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_step(model, optimizer, micro_batches):
    """One step of the optimizer, for the mean cross-entropy over all samples of all ranks.

    Args:
        model: gives logits; it is not wrapped, and its weights are the same on all ranks. It is to
            see one micro-batch at a time, and to be done with it, backward pass included, before
            it sees the next: there is no memory for two. Frozen parameters stay as they are.
        optimizer: of the model's parameters; it is ignorant of the other ranks.
        micro_batches: a list of (inputs, labels), this rank's. Their number and their sizes differ
            within a rank and from rank to rank; there is at least one, of at least one sample.
    """
    raise NotImplementedError("train_step is yours to write")

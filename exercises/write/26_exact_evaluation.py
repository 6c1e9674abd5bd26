"""Validation accuracy changes with the number of GPUs: evaluate exactly

Padding counts samples twice, and the mean of the ranks' means is not the mean of all samples. Write
`evaluate`: the numbers of one process, on any number of ranks, while each sample is computed on one
rank only. (Loss: up to rounding.)

The number to reach: one collective per evaluation, an all_reduce.

python exercises/check.py 26
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset


def evaluate(model, dataset, batch_size):
    """Evaluate the model on the whole data set, divided over the ranks.

    Args:
        model: gives the logits of a batch; it has the same weights on all ranks. It is evaluated
            in eval mode, without gradients, and each of its modules is left in the mode in which it
            was: a frozen BatchNorm may be in eval mode while the rest trains.
        dataset: pairs (input, label), the same on all ranks; there may be fewer than ranks.
        batch_size: the model is given no more inputs at a time.

    Returns:
        (correct, loss), the same on all ranks: the number of labels that are predicted, and the
        mean cross-entropy over the data set.
    """
    raise NotImplementedError("evaluate is yours to write")

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


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    """Evaluate the model on the whole data set, divided over the ranks.

    Args:
        model: gives the logits of a batch; it has the same weights on all ranks. It is evaluated
            in eval mode, without gradients, and left in the mode in which it was.
        dataset: pairs (input, label), the same on all ranks; there may be fewer than ranks.
        batch_size: the model is given no more inputs at a time.

    Returns:
        (correct, loss), the same on all ranks: the number of labels that are predicted, and the
        mean cross-entropy over the data set.
    """
    was_training = model.training
    model.eval()
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    total = torch.zeros(2, dtype=torch.float64)  # float32 counts up to 16,777,216 only
    for x, y in DataLoader(mine, batch_size):
        logits = model(x)
        total[0] += (logits.argmax(dim=1) == y).sum()
        total[1] += F.cross_entropy(logits, y, reduction="sum")
    dist.all_reduce(total)  # after the loop: a rank without samples takes part as well
    model.train(was_training)
    return int(total[0]), total[1].item() / len(dataset)

"""SyncBatchNorm on CPU: statistics of the whole batch, not of this rank's part

nn.SyncBatchNorm wants GPUs. Write `sync_batch_norm`: the output and the gradients of one process
that has the whole batch, up to rounding.

The number to reach: one collective in the forward pass, and one in the backward pass.

python exercises/check.py 28
"""

import torch
import torch.distributed as dist


def sync_batch_norm(x, weight, bias, eps=1e-5):
    """Normalize this rank's part of a batch by mean and variance of the whole batch.

    Args:
        x: (n, features), this rank's part; n differs from rank to rank, and is at least 1.
        weight, bias: (features,), the same on all ranks.

    Returns:
        What torch.nn.functional.batch_norm(training=True) gives for these rows of the whole batch.

    After all ranks have called backward, each on its own loss, x.grad is that of the sum of these
    losses. weight.grad and bias.grad are this rank's part of theirs: the parts add up to the whole.
    """
    count = torch.full_like(x[0, :1], len(x))  # the parts have different sizes
    total = SumOverRanks.apply(torch.cat([x.sum(0), (x * x).sum(0), count]))
    mean, mean_of_squares = (total[:-1] / total[-1]).chunk(2)
    variance = mean_of_squares - mean**2
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


class SumOverRanks(torch.autograd.Function):
    """all_reduce for autograd, which does not see what dist.all_reduce does."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):  # each rank's x is in every rank's total: so in every loss
        total = gradient.clone()
        dist.all_reduce(total)
        return total

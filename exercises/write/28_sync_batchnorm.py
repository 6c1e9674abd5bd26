"""SyncBatchNorm on CPU: statistics of the whole batch, not of this rank's part

nn.SyncBatchNorm wants GPUs. Write `sync_batch_norm`: the output and the gradients of one process
that has the whole batch, up to rounding.

The number to reach: one collective in the forward pass, and one in the backward pass.

torchrun --standalone --nproc-per-node 2 exercises/write/28_sync_batchnorm.py   # to play with
python exercises/check.py 28
"""

import torch
import torch.distributed as dist


def sync_batch_norm(x, weight, bias, eps=1e-5):
    """Normalize this rank's part of a batch by mean and variance of the whole batch.

    Args:
        x: (n, features), this rank's part; n differs from rank to rank, and is at least 1. It may
            be float32, and its mean a thousand times its standard deviation.
        weight, bias: (features,), the same on all ranks.

    Returns:
        What torch.nn.functional.batch_norm(training=True) gives for these rows of the whole batch.

    After all ranks have called backward, each on its own loss, x.grad is that of the sum of these
    losses. weight.grad and bias.grad are this rank's part of theirs: the parts add up to the whole.
    """
    raise NotImplementedError("sync_batch_norm is yours to write")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    x = torch.arange(4.0)[:, None] + 4 * dist.get_rank()
    y = sync_batch_norm(x, torch.ones(1), torch.zeros(1))
    print(f"rank {dist.get_rank()}: {[round(value, 3) for value in y.flatten().tolist()]}")
    dist.barrier()
    dist.destroy_process_group()

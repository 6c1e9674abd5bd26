"""Average many small gradients in few all_reduce calls: buckets

A call for each tensor costs more than its bytes; one call for all of them could start only when the
last gradient is there. So DDP packs them into buckets of some megabytes. Write
`all_reduce_in_buckets`; of the collectives, only all_reduce.

The number to reach: no more calls than there are when neighbours in the list share a bucket for as
long as they fit.

python exercises/check.py 24
"""

import torch
import torch.distributed as dist


def all_reduce_in_buckets(tensors, cap_bytes):
    """Replace each tensor, in place, by its average over all ranks.

    Args:
        tensors: a list, perhaps empty, of tensors of one dtype; their shapes are any, and the
            same on all ranks. A tensor need not be contiguous.
        cap_bytes: no all_reduce is given more bytes, unless it is given one tensor that alone has
            more.
    """
    raise NotImplementedError("all_reduce_in_buckets is yours to write")

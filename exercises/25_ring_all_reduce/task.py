"""Write the ring all-reduce, with send and recv

After an all-reduce, every rank has the sum of the tensors of all N ranks. If each rank sent its
tensor to all other ranks, the bytes that a rank sends would grow with N. In a ring they stay below
twice the size of the tensor. Each rank cuts its tensor into N chunks. In each of N - 1 steps, each
rank sends one chunk to the next rank, which adds the chunk to its own chunk of the same number.
Then every rank has one complete chunk of the sum. In N - 1 more steps, these chunks go round the
ring.

Write `all_reduce`. Use only send, recv, isend, irecv and batch_isend_irecv of torch.distributed.

What the checker measures: on N ranks, each rank sends at most 2 (N - 1) chunks. A chunk has one
N-th of the elements of the tensor, rounded up.

torchrun --standalone --nproc-per-node 2 exercises/25_ring_all_reduce/task.py  # try it out
python exercises/check.py 25                                                   # is it right?
"""

import torch
import torch.distributed as dist


def all_reduce(tensor):
    """Replace the tensor in place by the sum over all ranks. All ranks must get the same bits.

    Args:
        tensor: a contiguous tensor of integers or floating-point numbers. Its shape and dtype are
            the same on all ranks. It may have fewer elements than there are ranks.
    """
    raise NotImplementedError("all_reduce is yours to write")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    tensor = torch.arange(6.0) * (1 + dist.get_rank())
    all_reduce(tensor)
    print(f"rank {dist.get_rank()}: {tensor.tolist()}")
    dist.barrier()
    dist.destroy_process_group()

"""Write the ring all-reduce, with send and recv

If each rank sends its tensor to all others, the amount that it sends grows with N, the number of
ranks. In a ring it does not. The tensor is cut into N chunks. In N - 1 steps, each rank sends one
chunk to its neighbour, which adds it to its own. In N - 1 more steps, the sums go round.

Write `all_reduce`. Use only send, recv, isend, irecv and batch_isend_irecv of torch.distributed.

The number to reach: on N ranks, each rank sends at most 2 (N - 1) chunks. A chunk has one N-th of
the elements, rounded up.

torchrun --standalone --nproc-per-node 2 exercises/write/25_ring_all_reduce.py  # try it out
python exercises/check.py 25                                                    # is it right?
"""

import torch
import torch.distributed as dist


def all_reduce(tensor):
    """Replace the tensor, in place, by its sum over all ranks: the same bits on all of them.

    Args:
        tensor: contiguous, of any shape, of integers or floating-point numbers, the same on all
            ranks. It may have fewer elements than there are ranks.
    """
    raise NotImplementedError("all_reduce is yours to write")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    tensor = torch.arange(6.0) * (1 + dist.get_rank())
    all_reduce(tensor)
    print(f"rank {dist.get_rank()}: {tensor.tolist()}")
    dist.barrier()
    dist.destroy_process_group()

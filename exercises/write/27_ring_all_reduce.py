"""Write the ring all-reduce, with send and recv

If each rank sends its tensor to all others, what it sends grows with the number of ranks, N. In a
ring it does not: the tensor is cut into N chunks; in N - 1 steps each rank sends one chunk to its
neighbour, which adds it to its own; in N - 1 more, the sums go round.

Write `all_reduce` with send, recv, isend and irecv of torch.distributed only.

The number to reach: on N ranks, each sends at most 2 (N - 1) chunks; a chunk has one N-th of the
elements, rounded up.

torchrun --standalone --nproc-per-node 2 exercises/write/27_ring_all_reduce.py   # to play with
python exercises/check.py 27
"""

import torch
import torch.distributed as dist


def all_reduce(tensor):
    """Replace the tensor, in place, by its sum over all ranks: the same bits on all of them.

    Args:
        tensor: contiguous, of any shape and dtype, the same on all ranks. It may have fewer
            elements than there are ranks.
    """
    raise NotImplementedError("all_reduce is yours to write")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    tensor = torch.arange(6.0) * (1 + dist.get_rank())
    all_reduce(tensor)
    print(f"rank {dist.get_rank()}: {tensor.tolist()}")
    dist.barrier()
    dist.destroy_process_group()

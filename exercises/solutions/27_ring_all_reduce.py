"""Write the ring all-reduce, with send and recv

If each rank sends its tensor to all others, what it sends grows with the number of ranks, N. In a
ring it does not: the tensor is cut into N chunks; in N - 1 steps each rank sends one chunk to its
neighbour, which adds it to its own; in N - 1 more, the sums go round.

Write `all_reduce` with send, recv, isend and irecv of torch.distributed only.

The number to reach: on N ranks, each sends at most 2 (N - 1) chunks; a chunk has one N-th of the
elements, rounded up.

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
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(world_size)  # some may be empty
    for step in range(world_size - 1):  # at the end, chunk rank + 1 is the sum
        mine, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        received = torch.empty_like(into)
        pass_on(mine, received)
        into += received
    for step in range(world_size - 1):
        pass_on(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])


def pass_on(chunk, into):
    """Send to the right neighbour while receiving from the left one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(chunk, (rank + 1) % world_size)  # send would wait for the other's recv
    dist.recv(into, (rank - 1) % world_size)
    sending.wait()

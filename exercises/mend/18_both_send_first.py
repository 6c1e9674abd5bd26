"""send and recv: hangs, because both ranks send first

Gossip averaging: in a step each rank averages its weights with those of one other rank, its peer.
Both wait in `send` until the group's timeout, here 5 seconds, and fail. Whichever two ranks call
`average` are to get their mean. Each sends one tensor, once (send, recv, isend, irecv,
batch_isend_irecv), and changes that only when it has been sent. Mend `average`.

torchrun --standalone --nproc-per-node 2 exercises/mend/18_both_send_first.py   # shows it
python exercises/check.py 18                                                    # is it mended?
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def average(tensor, peer):
    """Replace the tensor, in place, by its mean with that of the peer, which calls this as well."""
    theirs = torch.empty_like(tensor)
    dist.send(tensor, peer)
    dist.recv(theirs, peer)
    tensor += theirs
    tensor /= 2


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    weights = torch.full((100_000,), float(rank))
    print(f"rank {rank} begins")
    average(weights, peer=1 - rank)
    print(f"rank {rank}: the mean is {weights.mean():.2f}")
    dist.barrier()
    dist.destroy_process_group()

"""Resume in the middle of an epoch: samples are used twice, others never

A run was stopped after `done` steps of an epoch. After the restart it takes as many steps as were
left, but the wrong ones. It must use exactly the batches that a run without a stop would have used
from there on, and it must not load the earlier images again. The order is that of
DistributedSampler with its default seed. Fix `rest_of_epoch`.

torchrun --standalone --nproc-per-node 2 exercises/fix/19_position_in_the_epoch.py  # shows it
python exercises/check.py 19                                                        # is it fixed?
"""

from itertools import islice

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def rest_of_epoch(dataset, batch_size, epoch, done):
    """-> an iterable of this rank's batches of the epoch, without the first `done` of them."""
    sampler = DistributedSampler(dataset)
    sampler.set_epoch(epoch)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    return islice(loader, len(loader) - done)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    dataset = TensorDataset(torch.arange(20))
    for done in (0, 3):
        batches = [x.tolist() for (x,) in rest_of_epoch(dataset, 2, epoch=1, done=done)]
        print(f"rank {dist.get_rank()} after {done} steps: {batches}")
    dist.barrier()
    dist.destroy_process_group()

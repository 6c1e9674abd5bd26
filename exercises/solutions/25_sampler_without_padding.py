"""DistributedSampler without padding: each sample exactly once

DistributedSampler makes all shards equally long: it repeats samples, or drops some. Write a sampler
that does neither: over all ranks, each sample exactly once per epoch, and shards whose lengths
differ by one at most.

(With such shards, one rank may have a batch more than another: for evaluation that does no harm;
for training, see DDP's Join.)

python exercises/check.py 25
"""

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShardSampler(Sampler):
    """Yields the numbers of the samples that this rank takes in the current epoch.

    In each epoch a new order of all samples is drawn, from seed + epoch: the same on all ranks, in
    every run. Epoch 0 holds until set_epoch is called. PyTorch's global generator is left alone.

    Args:
        dataset: it has a length, which may be smaller than the number of ranks.
        seed: another seed gives other orders.
    """

    def __init__(self, dataset, seed=0):
        self.size, self.seed, self.epoch = len(dataset), seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()  # equal on all ranks
        return iter(order[dist.get_rank() :: dist.get_world_size()])

    def __len__(self):
        return len(range(dist.get_rank(), self.size, dist.get_world_size()))

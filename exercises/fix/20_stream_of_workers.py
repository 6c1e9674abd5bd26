"""IterableDataset with DDP and num_workers: every sample comes several times

The stream is split over the ranks, but each sample comes once per loader worker. Over all ranks and
workers, every sample must come exactly once, for any number of ranks and workers (with 0 workers
the rank itself reads). No worker may get two samples more than another. Fix `Stream`.

torchrun --standalone --nproc-per-node 2 exercises/fix/20_stream_of_workers.py  # shows it
python exercises/check.py 20                                                    # is it fixed?
"""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Yields the samples 0 to count - 1 that this process is to read.

    Args:
        rank, world_size: given, as a loader worker is in no process group.
    """

    def __init__(self, count, rank, world_size):
        self.count, self.rank, self.world_size = count, rank, world_size

    def __iter__(self):
        return iter(range(self.rank, self.count, self.world_size))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stream = Stream(12, dist.get_rank(), dist.get_world_size())
    for workers in (0, 2):
        samples = [int(x) for x in DataLoader(stream, batch_size=None, num_workers=workers)]
        print(f"rank {dist.get_rank()}, {workers} workers: {samples}")
    dist.barrier()
    dist.destroy_process_group()

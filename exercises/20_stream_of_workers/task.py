"""IterableDataset with DDP and num_workers: every sample comes several times

The stream is split between the ranks. But every loader worker of a rank yields all samples of its
rank, so each sample comes once per worker. All ranks and workers together must yield every sample
exactly once, for any number of ranks and workers. (With 0 workers, the rank itself reads the
samples.) The numbers of samples of two workers may differ by at most one. Fix `Stream`.

torchrun --standalone --nproc-per-node 2 exercises/20_stream_of_workers/task.py  # the symptom
python exercises/check.py 20                                                     # is it fixed?
"""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Yields those of the samples 0 to count - 1 that this process must read.

    Args:
        rank, world_size: of this rank. They are arguments because a loader worker is a process of
            its own, which cannot ask torch.distributed for them.
    """

    def __init__(self, count, rank, world_size):
        self.count = count
        self.rank = rank
        self.world_size = world_size

    def __iter__(self):
        return iter(range(self.rank, self.count, self.world_size))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stream = Stream(12, dist.get_rank(), dist.get_world_size())
    for workers in (0, 2):
        samples = [int(x) for x in DataLoader(stream, batch_size=None, num_workers=workers)]
        print(f"rank {dist.get_rank()}, {workers} workers: samples {samples}")
    dist.barrier()
    dist.destroy_process_group()

"""Our solution of exercise 20. The task is in task.py, next to this file."""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


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
        info = get_worker_info()  # None if the rank itself reads
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first = self.rank * workers + worker  # the number of this worker among those of all ranks
        return iter(range(first, self.count, self.world_size * workers))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stream = Stream(12, dist.get_rank(), dist.get_world_size())
    for workers in (0, 2):
        samples = [int(x) for x in DataLoader(stream, batch_size=None, num_workers=workers)]
        print(f"rank {dist.get_rank()}, {workers} workers: samples {samples}")
    dist.barrier()
    dist.destroy_process_group()

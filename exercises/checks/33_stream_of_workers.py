"""Over all ranks and loader workers, each sample comes once."""

from collections import Counter

import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info

from exercises.checks.common import some

CASES = ((24, 0), (24, 2), (25, 3), (2, 2))  # samples, workers
CASE = "{1} workers per rank: "
HINTS = (
    "How often does each sample come with 0, and with 2 workers? Who runs __iter__?",
    "Every loader worker runs __iter__ on its own copy of the dataset, and knows of the others "
    "only by torch.utils.data.get_worker_info(): shard by rank and by worker.",
    "Reader number rank * num_workers + id takes every (world_size * num_workers)-th sample; "
    "get_worker_info() is None where there are no workers.",
)


def observe(mine, count, workers):
    class Noting(mine.Stream):
        def __iter__(self):
            reader = get_worker_info().id if workers else 0
            samples = super().__iter__()
            return ((reader, int(sample)) for sample in samples)

    stream = Noting(count, dist.get_rank(), dist.get_world_size())
    fork = {"multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(stream, batch_size=None, num_workers=workers, **fork)
    return list(loader)


def judge(ranks, count, workers):
    times = Counter(sample for rank in ranks for _, sample in rank)
    if missing := [sample for sample in range(count) if not times[sample]]:
        return f"of {count} samples no rank got {some(missing)}"
    if twice := [sample for sample in times if times[sample] > 1]:
        return f"sample {min(twice)} came {times[min(twice)]} times"
    if strange := sorted(set(times) - set(range(count))):
        return f"there is no sample {strange[0]}"
    readers = [[reader for reader, _ in rank] for rank in ranks]
    each = [rank.count(reader) for rank in readers for reader in range(max(workers, 1))]
    if max(each) - min(each) > 1:
        return f"the workers, rank by rank, got {some(each)} samples"
    return None

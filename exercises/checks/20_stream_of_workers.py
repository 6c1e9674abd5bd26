"""Over all ranks and loader workers, each sample comes once."""

from collections import Counter

import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info

from exercises.checks.judge import MOST

CASES = ((24, 0), (24, 2), (25, 3), (2, 2))  # samples, workers
CASE = "{1} workers per rank: "


def observe(mine, count, workers):
    class Noting(mine.Stream):
        def __iter__(self):
            reader = get_worker_info().id if workers else 0
            return ((reader, int(sample)) for sample in super().__iter__())

    stream = Noting(count, dist.get_rank(), dist.get_world_size())
    fork = {"multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(stream, batch_size=None, num_workers=workers, **fork)
    return list(loader)


def facts(found, count, workers):
    times = Counter(sample for rank in found for _, sample in rank)
    each = [sum(r == n for r, _ in rank) for rank in found for n in range(max(workers, 1))]
    return {
        "samples that come more than once": sorted(s for s in times if times[s] > 1),
        "samples that never come": sorted(set(range(count)) - set(times)),
        "samples that are not in the stream": sorted(set(times) - set(range(count))),
        f"samples that one worker gets more than another{MOST}": max(1, max(each) - min(each)),
    }

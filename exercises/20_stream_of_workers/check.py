"""Over all ranks and loader workers, each sample comes once."""

from collections import Counter

import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info

from exercises.verdict import MOST

CASES = ((24, 0), (24, 2), (25, 3), (2, 2))  # samples, workers
CASE = "{1} workers per rank: "


def observe(mine, count, workers):
    """-> [(loader worker, sample)] of this rank"""

    class Noting(mine.Stream):
        def __iter__(self):
            reader = get_worker_info().id if workers else 0
            for sample in super().__iter__():
                yield reader, int(sample)

    stream = Noting(count, dist.get_rank(), dist.get_world_size())
    options = {"multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(stream, batch_size=None, num_workers=workers, **options)
    return list(loader)


def facts(found, count, workers):
    times = Counter()
    each = Counter()  # samples by (rank, worker)
    for number, rank in enumerate(found):
        for worker in range(max(workers, 1)):
            each[number, worker] = 0
        for worker, sample in rank:
            times[sample] += 1
            each[number, worker] += 1
    most = max(each.values()) - min(each.values())
    return {
        "samples that come more than once": sorted(s for s in times if times[s] > 1),
        "samples that never come": sorted(set(range(count)) - set(times)),
        "samples that are not in the stream": sorted(set(times) - set(range(count))),
        f"samples that one worker gets more than another{MOST}": max(1, most),
    }

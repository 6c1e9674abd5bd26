"""After each step the weights are those of one process, whichever heads the ranks use in it."""

import torch
import torch.distributed as dist

from exercises.common import Watch

# For each step, the tasks of ranks 0, 1 and 2.
TASKS = ((0, 1, 1), (1, 1, 1), (0, 0, 0), (1, 0, 0), (0, 0, 1))
ROWS_OF_BATCH = 6


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS_OF_BATCH, 2, dtype=torch.float64, generator=generator)
    y = 5 + 2 * x.sum(1, keepdim=True)
    return x, y, TASKS[step][rank]


def observe(mine):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    watch = Watch(mine.TwoTasks().double())
    mine.train(watch.model, [batch(step, rank) for step in range(len(TASKS))])
    return watch.facts()

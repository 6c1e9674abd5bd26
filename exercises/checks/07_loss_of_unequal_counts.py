"""After every step the weights are those of one process with the tokens of all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Watch, alone, first_difference, linear, some, together

LR, ROWS, CLASSES = 0.5, 8, 4
# the tokens that ranks 0, 1 and 2 have in each step: the rest of 8 rows is padding
COUNTS = ((6, 3, 4), (1, 8, 3), (5, 5, 5), (8, 0, 1))
HINTS = (
    "How much does one token count on a rank with 8 tokens, and on one with 2? Start with what "
    "the mean of a rank is divided by.",
    "DDP averages the ranks' means. With unequal counts that is not the mean of all: divide the "
    "sum of all by the number of all.",
    'All-reduce the count of (y != -100). The loss is the sum (reduction="sum") divided by it, '
    "times the world size, because DDP divides by that.",
)


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    y[torch.randperm(ROWS, generator=generator)[COUNTS[step][rank] :]] = -100
    return x, y


def observe(mine):
    watch = Watch(linear(5, 3, CLASSES))
    mine.train(watch.model, [batch(step, dist.get_rank()) for step in range(len(COUNTS))], LR)
    return watch.found()


def judge(ranks):
    batches = [
        together(batch(step, rank) for rank in range(len(ranks))) for step in range(len(COUNTS))
    ]
    wanted = alone(linear(5, 3, CLASSES), batches, F.cross_entropy, LR)
    if wrong := first_difference(ranks, wanted, rows=ROWS * len(COUNTS)):
        tokens = "; ".join(some(counts[: len(ranks)]) for counts in COUNTS)
        return f"the ranks have these numbers of tokens in each step: {tokens}; {wrong}"
    return None

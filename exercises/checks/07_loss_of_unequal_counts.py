"""After every step the weights are those of one process with the tokens of all ranks."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import note_rows, parameters, too_many_rows

WORLD_SIZES = (2, 3)
LR, ROWS, CLASSES = 0.5, 8, 4
# the tokens that ranks 0, 1 and 2 have in each step: the rest of 8 rows is padding
COUNTS = ((6, 3, 4), (1, 8, 3), (5, 5, 5), (8, 0, 1))
HINTS = (
    "How much does one token count on a rank with 8 tokens, and on one with 2? Start with what the "
    "mean of a rank is divided by.",
    "cross_entropy divides by the tokens of this rank, then DDP averages over the ranks: a mean of "
    "means. All tokens count alike if the sum of all is divided by the number of all.",
    'All-reduce the count of (y != -100). The loss is the sum (reduction="sum") divided by it, '
    "times the world size, because DDP divides by that.",
)


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    y[torch.randperm(ROWS, generator=generator)[COUNTS[step][rank] :]] = -100
    return x, y


def make_model():
    torch.manual_seed(5)
    return nn.Linear(3, CLASSES).double()


def observe(mine):
    rank = dist.get_rank()
    weights, rows = [], []
    for steps in range(1, len(COUNTS) + 1):
        model = make_model()
        rows = note_rows(model)
        mine.train(model, [batch(step, rank) for step in range(steps)], LR)
        weights.append(parameters(model))
    return {"weights": weights, "rows": rows}


def sums(model, step, world_size):
    """For each rank the gradient of the sum of its tokens' losses."""
    rows = []
    for rank in range(world_size):
        x, y = batch(step, rank)
        loss = F.cross_entropy(model(x), y, reduction="sum")
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    return torch.stack(rows)


def judge(ranks):
    """Each step starts where the last one was right, so its change is its gradient."""
    model = make_model()
    for step, counts in enumerate(COUNTS):
        counts = counts[: len(ranks)]
        gradients = sums(model, step, len(ranks))
        before = parameters(model)
        wanted = before - LR * gradients.sum(dim=0) / sum(counts)
        for number, rank in enumerate(ranks):
            found = rank["weights"][step]
            if not torch.allclose(found, wanted, rtol=0, atol=1e-6):  # a count may be float32
                change = (before - found) / LR
                return describe(step, number, counts, change, gradients)
        nn.utils.vector_to_parameters(wanted, model.parameters())
    return too_many_rows(ranks, ROWS * len(COUNTS))


def describe(step, number, counts, change, gradients):
    """How much a token of each rank has counted: the change is a sum of the ranks' gradients."""
    tokens = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
    if not change.isfinite().all():
        return (
            f"after step {step} ({tokens}) there are weights on rank {number} that are not finite"
        )
    parts = torch.linalg.lstsq(gradients.T, change[:, None]).solution[:, 0]
    if not torch.allclose(parts @ gradients, change, rtol=0, atol=1e-6):
        return (
            f"in step {step} there were {tokens} tokens; after it the weights of rank {number} are "
            f"not those of one process with all {sum(counts)} tokens"
        )
    counted = ", ".join(
        f"{part * sum(counts):.2f} times on rank {rank}" for rank, part in enumerate(parts.tolist())
    )
    return (
        f"in step {step} there were {sum(counts)} tokens: {tokens}. Each was to count once; in the "
        f"weights of rank {number} a token counted {counted}"
    )

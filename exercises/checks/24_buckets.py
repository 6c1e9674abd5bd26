"""Averages that are right, no bucket above its size, and no more calls than packing needs."""

import torch
import torch.distributed as dist

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 3)
CAP = 64  # bytes: eight float64
CASES = (
    [(2,), (3,), (1,), (4,), (3,), (5,)],
    [(2, 2), (4,), (), (3, 2), (1, 1), (7,)],  # full to the last byte; a number
    [(1,), (20,), (2,), (1,), (9,), (1,), (1,)],  # two that are larger than a bucket
    [],
)
HINTS = (
    "What has to be true when a tensor is to join the bucket that is open, and what is to be done "
    "if it is not? Do not forget the bucket that is open at the end.",
    "all_reduce one flat copy of the bucket's tensors, and copy its parts back.",
    "torch.cat([t.flatten() for t in bucket]), all_reduce, divide; then for each part of "
    "flat.split(sizes): tensor.copy_(part.view_as(tensor)).",
)


def gradients(rank, case):
    torch.manual_seed(100 * rank + case)
    made = [torch.rand(shape, dtype=torch.float64) for shape in CASES[case]]
    return [t.t() if t.ndim == 2 else t for t in made]  # a transposed one is not contiguous


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    notes = Collectives()
    found, wanted, calls = [], [], []
    for case in range(len(CASES)):
        tensors = gradients(rank, case)
        notes.calls.clear()
        mine.all_reduce_in_buckets(list(tensors), CAP)
        calls.append(list(notes.calls))
        found.append(tensors)
        everywhere = zip(*(gradients(r, case) for r in range(world_size)))
        wanted.append([sum(same) / world_size for same in everywhere])
    return {"found": found, "wanted": wanted, "calls": calls}


def judge(ranks):
    for case in range(len(CASES)):
        at = f"tensors of {[8 * t.numel() for t in ranks[0]['wanted'][case]]} bytes"
        for number, rank in enumerate(ranks):
            pairs = zip(rank["found"][case], rank["wanted"][case])
            for index, (found, wanted) in enumerate(pairs):
                if not torch.allclose(found, wanted, rtol=1e-9):
                    return (
                        f"{at}: tensor {index} on rank {number} is not the average; it begins "
                        f"with {found.flatten()[0]:.4f}, the average with {wanted.flatten()[0]:.4f}"
                    )
        if wrong := judge_calls(ranks[0]["calls"][case], ranks[0]["wanted"][case]):
            return f"{at}, at most {CAP} in a bucket: {wrong}"
    return None


def judge_calls(calls, tensors):
    if other := [name for name, _ in calls if name != "all_reduce"]:
        return f"only all_reduce is to be called, not {other[0]}"
    sizes = [tensor.nbytes for tensor in tensors]
    given = [size for _, size in calls]
    if sum(given) < sum(sizes):
        return f"all_reduce was given {sum(given)} of {sum(sizes)} bytes"
    for size in given:
        if size > CAP and size not in sizes:
            return f"all_reduce was given {size} bytes at a time"
    if len(calls) > buckets(sizes):
        return f"{len(calls)} calls of all_reduce, where {buckets(sizes)} are enough"
    return None


def buckets(sizes):
    """How many there are when neighbours share one for as long as they fit, from last to first."""
    count, room = 0, 0
    for size in reversed(sizes):
        if size > room:
            count, room = count + 1, CAP
        room -= size
    return count

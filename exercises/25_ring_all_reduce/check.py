"""Sums that are right, equal to the last bit, and no rank that sends more than its part."""

import torch
import torch.distributed as dist

from exercises.common import Collectives
from exercises.verdict import MOST

SHAPES = ((12,), (7,), (3, 5), (1,), (2,), (1000,), (1, 100), ())
CASES = [(shape, torch.int64 if shape == (3, 5) else torch.float64) for shape in SHAPES]
CASE = "a tensor of shape {}: "
POINT_TO_POINT = {"send", "recv", "recv_anysource"}  # isend, irecv, batch_isend_irecv, too


def make(rank, shape, dtype):
    """Whole numbers whose sums are exact, but not in float32."""
    torch.manual_seed(rank)
    return torch.randint(2**30, shape).to(dtype)


def observe(mine, shape, dtype):
    notes = Collectives().listen()
    tensor = make(dist.get_rank(), shape, dtype)
    mine.all_reduce(tensor)
    return {"tensor": tensor, "calls": list(notes.calls)}


def facts(found, *_):
    count = len(found)
    first = found[0]["tensor"]
    chunk = -(-first.numel() // count) * first.element_size()
    most = 2 * (count - 1) * chunk
    sent = [bytes_sent(rank["calls"]) for rank in found]
    names = set()
    for rank in found:
        names |= {name for name, _ in rank["calls"]}
    return {
        "the tensor on each rank": [rank["tensor"].long() for rank in found],
        "other calls than send, recv, isend, irecv": sorted(names - POINT_TO_POINT),
        f"bytes that a rank sends in its 2 (N - 1) chunks{MOST}": max(most, *sent),
        "the same bits on all ranks": all(torch.equal(r["tensor"], first) for r in found),
        "every rank sends": first.numel() < count or min(sent) > 0,
    }


def bytes_sent(calls):
    return sum(size for name, size in calls if name == "send")

"""Sums that are right, equal to the last bit, and no rank that sends more than its part."""

import torch
import torch.distributed as dist

from exercises.checks.common import POINT_TO_POINT, Collectives

SHAPES = ((12,), (7,), (3, 5), (1,), (2,), (1000,), (1, 100), ())
CASES = [(shape, torch.int64 if shape == (3, 5) else torch.float64) for shape in SHAPES]
HINTS = (
    "Play it with three ranks and three chunks on paper: after two steps, which chunk is the sum "
    "on which rank? That one is the first to go round in the second half.",
    "Each rank sends 2 (N - 1) chunks, however many ranks there are: in step s rank r sends chunk "
    "(r - s) % N and adds what comes to chunk (r - s - 1) % N. If all ranks send before they "
    "receive, all wait: start the sending, receive, then wait for it.",
    "sending = dist.isend(chunk, right); dist.recv(received, left); sending.wait(). In the second "
    "half, rank r sends chunk (r + 1 - s) % N and receives chunk (r - s) % N.",
)


def make(rank, shape, dtype):
    torch.manual_seed(rank)
    return (100 * torch.rand(shape, dtype=torch.float64)).to(dtype)


def observe(mine, shape, dtype):
    notes, tensor = Collectives(), make(dist.get_rank(), shape, dtype)
    mine.all_reduce(tensor)
    return {"tensor": tensor, "calls": list(notes.calls)}


def judge(ranks, shape, dtype):
    wanted = sum(make(rank, shape, dtype) for rank in range(len(ranks)))
    for number, values in enumerate(ranks):
        wrong = judge_rank(values, wanted, len(ranks))
        if wrong is None and not torch.equal(values["tensor"], ranks[0]["tensor"]):
            wrong = "has other bits than rank 0: they have rounded differently"
        if wrong:
            return f"a tensor of shape {list(shape)}: rank {number} {wrong}"
    return None


def judge_rank(values, wanted, count):
    tensor, wanted = values["tensor"].flatten(), wanted.flatten()
    wrong = ~torch.isclose(tensor, wanted, rtol=1e-12)
    if wrong.any():
        first = wrong.nonzero()[0].item()
        return (
            f"has {wrong.sum()} of {len(tensor)} elements that are not the sum; element {first} is "
            f"{tensor[first]:.10g}, the sum is {wanted[first]:.10g}"
        )
    if other := [name for name, _ in values["calls"] if name not in POINT_TO_POINT]:
        return f"called {other[0]}; only send, recv, isend and irecv are to be used"
    most = 2 * (count - 1) * -(-len(tensor) // count) * tensor.element_size()
    sent = sum(size for name, size in values["calls"] if name == "send")
    if sent > most:
        return f"sent {sent} bytes, where {most} are enough"
    if not sent and len(tensor) >= count:
        return "is right, but has sent nothing by dist.send or dist.isend"
    return None

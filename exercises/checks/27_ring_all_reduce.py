"""Sums that are right, equal to the last bit, and no rank that sends more than its part."""

import torch
import torch.distributed as dist

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 3)
SHAPES = ((12,), (7,), (3, 5), (1,), (2,), (1000,), (1, 100), ())
ALLOWED = {"send", "recv"}  # of the group: isend, irecv and batch_isend_irecv end there
LEARNT = "In a ring each rank sends 2 (N - 1) / N of the tensor, however many ranks there are."
HINTS = (
    "Play it with three ranks and three chunks on paper: after two steps, which chunk is the sum "
    "on which rank? That one is the first to go round in the second half.",
    "In step s rank r sends chunk (r - s) % N and adds what comes to chunk (r - s - 1) % N. If all "
    "ranks send before they receive, all wait: start the sending, receive, then wait for it.",
    "sending = dist.isend(chunk, right); dist.recv(received, left); sending.wait(). In the second "
    "half, rank r sends chunk (r + 1 - s) % N and receives chunk (r - s) % N.",
)


def make(rank, case):
    torch.manual_seed(100 * rank + case)
    made = torch.rand(SHAPES[case], dtype=torch.float64)
    return (100 * made).long() if case == 2 else made


def observe(mine):
    notes = Collectives()
    results = []
    for case in range(len(SHAPES)):
        tensor = make(dist.get_rank(), case)
        notes.calls.clear()
        mine.all_reduce(tensor)
        sent = sum(size for name, size in notes.calls if name == "send")
        names = notes.names()
        wanted = sum(make(rank, case) for rank in range(dist.get_world_size()))
        results.append({"tensor": tensor, "wanted": wanted, "sent": sent, "names": names})
    return {"results": results}


def judge(ranks):
    count = len(ranks)
    for case, shape in enumerate(SHAPES):
        seen = [rank["results"][case] for rank in ranks]
        for number, values in enumerate(seen):
            wrong = judge_rank(values, count)
            if wrong is None and not torch.equal(values["tensor"], seen[0]["tensor"]):
                wrong = "has other bits than rank 0: they have rounded differently"
            if wrong:
                return f"a tensor of shape {list(shape)}: rank {number} {wrong}"
    return None


def judge_rank(values, count):
    tensor, wanted = values["tensor"].flatten(), values["wanted"].flatten()
    wrong = ~torch.isclose(tensor, wanted, rtol=1e-12)
    if wrong.any():
        first = wrong.nonzero()[0].item()
        return (
            f"has {wrong.sum()} of {len(tensor)} elements that are not the sum; element {first} is "
            f"{tensor[first]:.4f}, the sum is {wanted[first]:.4f}"
        )
    if other := [name for name in values["names"] if name not in ALLOWED]:
        return f"called {other[0]}; only send, recv, isend and irecv are to be used"
    most = 2 * (count - 1) * -(-len(tensor) // count) * tensor.element_size()
    if values["sent"] > most:
        return f"sent {values['sent']} bytes, where {most} are enough"
    if not values["sent"] and len(tensor) >= count:
        return "is right, but has sent nothing by dist.send or dist.isend"
    return None

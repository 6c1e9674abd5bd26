"""Any two ranks get their mean by one send each, and wait for what they have started."""

from itertools import combinations

import torch
import torch.distributed as dist

from exercises.checks.common import POINT_TO_POINT, Collectives, Waited, digits, nbytes, some

CASES = ((3,), (100_000,))
CASE = "{:,} numbers: "
HINTS = (
    "In which line does each rank wait, and in which line would its peer have to be?",
    "A send may wait for its recv: of two ranks one receives first, or both start the send, "
    "receive, and then wait for it.",
    "sending = dist.isend(tensor, peer); dist.recv(theirs, peer); sending.wait(); or the lower "
    "rank sends first and the other one receives first.",
)


class Copies(Collectives):
    """Sends and receives copies: what is received is there when it is waited for, not sooner."""

    def clear(self):
        self.calls.clear()
        self.works, self.waited, self.changed = [], set(), False

    def noting(self, name, original):
        if name not in POINT_TO_POINT:
            return super().noting(name, original)

        def call(group, tensors, *args):
            copies = [tensor.clone() for tensor in tensors]
            self.calls.append((name, nbytes(tensors)))
            self.works.append(original(group, copies, *args))  # kept: a work that is gone ends
            number = len(self.works)
            return Waited(self.works[-1], lambda: self.done(number, name, tensors, copies))

        return call

    def done(self, number, name, tensors, copies):
        if number in self.waited:
            return
        self.waited.add(number)
        for tensor, copy in zip(tensors, copies):
            if name == "send":
                self.changed |= not torch.equal(tensor, copy)
            else:
                tensor.copy_(copy)


def observe(mine, count):
    notes, rank, found = Copies(), dist.get_rank(), []
    for pair in combinations(range(dist.get_world_size()), 2):
        if rank in pair:
            notes.clear()
            one, other = (torch.arange(count) + 10.0**number for number in pair)
            wanted, tensor = (one + other) / 2, one if rank == pair[0] else other
            mine.average(tensor, sum(pair) - rank)
            values = {"pair": pair, "tensor": tensor, "wanted": wanted, "waited": len(notes.waited)}
            found.append(values | {"calls": list(notes.calls), "changed": notes.changed})
    return found


def judge(ranks, count):
    for number, rank in enumerate(ranks):
        for values in rank:
            if wrong := judge_pair(**values):
                return f"when ranks {some(values['pair'])} meet, rank {number} {wrong}"
    return None


def judge_pair(pair, tensor, wanted, calls, waited, changed):
    if others := [name for name, _ in calls if name not in POINT_TO_POINT]:
        return f"calls {others[0]}; only send, recv, isend and irecv are to be used"
    if waited < len(calls):
        return "does not wait for each isend and irecv: nobody knows when they are done"
    if changed:
        return "changes the tensor before it has waited for its send"
    if not torch.equal(tensor, wanted):
        return f"gets {digits(tensor)}; the mean is {digits(wanted)}"
    if (sent := sum(size for name, size in calls if name == "send")) > tensor.nbytes:
        return f"sends {sent:,} bytes; its tensor has {tensor.nbytes:,}"
    return None

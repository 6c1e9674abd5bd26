"""The first ranks of the nodes have their mean, and nobody waits for ever."""

import torch.distributed as dist

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 4, 3)
LEARNT = "new_group is called by all ranks, members or not, and in one order."
HINTS = (
    "Which ranks wait, and in which line? Which ranks never come there?",
    "new_group waits for every rank of the job, also for those that will not be members.",
    "Call dist.new_group(firsts) on all ranks; after it, return None on those that are no members.",
)


def observe(mine):
    calls = Collectives().calls
    returned = [mine.mean_of_nodes(2.0 ** dist.get_rank() + n, 2) for n in range(2)]
    return {"returned": returned, "sent": [name for name, _ in calls if name != "barrier"]}


def judge(ranks):
    firsts = range(0, len(ranks), 2)
    for number, rank in enumerate(ranks):
        for n, returned in enumerate(rank["returned"]):
            wanted = sum(2.0**first + n for first in firsts) / len(firsts)
            wanted = wanted if number in firsts else None
            if returned != wanted:
                return f"rank {number} of {len(ranks)} was to get {wanted}; it got {returned!r}"
        if number not in firsts and rank["sent"]:
            return f"rank {number} is in no group and called {rank['sent'][0]}"
    return None

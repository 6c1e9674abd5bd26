"""Each rank has the mean of its node, and nothing is sent to other nodes."""

import torch.distributed as dist

from exercises.checks.common import POINT_TO_POINT, Collectives, nbytes

WORLD_SIZES = (4, 3)
PER_NODE = 2
HINTS = (
    "How many groups are made in all, and which ranks call new_group for each of them?",
    "Every rank calls new_group for every group, members or not, in one order: the n-th call of "
    "each rank is about the same group. Here the first call is about another group on each node.",
    "Call dist.new_group for the ranks of each node in a loop, on all ranks; use your own group.",
)


class Receivers(Collectives):
    """Notes who gets the values of a call."""

    def noting(self, name, original):
        def call(group, *args, **kwargs):
            ranks = dist.get_process_group_ranks(group)
            if any(map(nbytes, args)):  # not a barrier
                self.calls.append((name, [ranks[args[1]]] if name in POINT_TO_POINT else ranks))
            return original(group, *args, **kwargs)

        return call


def observe(mine):
    calls = Receivers().calls
    returned = [mine.mean_of_node(2.0 ** dist.get_rank() + n, PER_NODE) for n in range(2)]
    return {"returned": returned, "calls": calls}


def judge(ranks):
    values = [2.0**number for number in range(len(ranks))]
    for number, rank in enumerate(ranks):
        first = number // PER_NODE * PER_NODE
        node = values[first : first + PER_NODE]
        for n, returned in enumerate(rank["returned"]):
            if returned != (wanted := sum(node) / len(node) + n):
                return f"rank {number}: the mean of its node is {wanted}; it got {returned!r}"
        for name, receivers in rank["calls"]:
            if set(receivers) - set(range(first, first + PER_NODE)):
                return f"rank {number} sends a value to other nodes: {name} among ranks {receivers}"
    return None

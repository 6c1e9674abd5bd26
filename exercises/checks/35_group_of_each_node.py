"""Each rank has the mean of its node, and nothing is sent to other nodes."""

import torch.distributed as dist

from exercises.checks.common import Collectives, nbytes

WORLD_SIZES = (4, 3)
CASES = ((2,), (3,))  # ranks on a node
CASE = "{} ranks on a node: "
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
            if any(map(nbytes, args)) and not name.startswith("recv"):  # nor a barrier
                self.calls.append((name, [ranks[args[1]]] if name == "send" else ranks))
            return original(group, *args, **kwargs)

        return call


def observe(mine, per_node):
    calls = Receivers().calls
    returned = [mine.mean_of_node(3 * 2.0 ** dist.get_rank() + n, per_node) for n in range(2)]
    return {"returned": returned, "calls": list(calls)}


def judge(ranks, per_node):
    values = [3 * 2.0**number for number in range(len(ranks))]  # exact means of 2 and 3
    for number, rank in enumerate(ranks):
        first = number // per_node * per_node
        node = values[first : first + per_node]
        for n, returned in enumerate(rank["returned"]):
            if returned != (wanted := sum(node) / len(node) + n):
                return f"rank {number}: the mean of its node is {wanted}; it got {returned!r}"
        for name, receivers in rank["calls"]:
            if set(receivers) - set(range(first, first + per_node)):
                return f"rank {number} sends a value to other nodes: {name} among ranks {receivers}"
    return None

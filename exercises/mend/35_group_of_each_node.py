"""new_group: hangs, each rank makes the group of its own node only

Each rank is to get the mean of the values of its node. The job hangs when the groups are made or
used, as soon as there are two nodes. Mend `mean_of_node`; no rank sends a value to another node.

torchrun --standalone --nproc-per-node 4 exercises/mend/35_group_of_each_node.py   # shows it
python exercises/check.py 35                                                       # is it mended?
"""

import torch
import torch.distributed as dist


def mean_of_node(value, per_node):
    """-> the mean over the `per_node` ranks of this rank's node; the last node may have fewer."""
    first = dist.get_rank() // per_node * per_node
    ranks = list(range(dist.get_world_size()))[first : first + per_node]
    group = dist.new_group(ranks)
    total = torch.tensor(value)
    dist.all_reduce(total, group=group)
    return total.item() / len(ranks)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()}: {mean_of_node(float(dist.get_rank()), per_node=2)}")
    dist.barrier()  # until all have
    dist.destroy_process_group()

"""new_group: hangs, only its members have called it

The first rank of each node is to average a value with the first ranks of the other nodes; all other
ranks get None. Those first ranks wait for ever when they make their group. Mend `mean_of_nodes`,
keep its name, parameters and result; no rank sends a value but those of the group.

torchrun --standalone --nproc-per-node 4 exercises/mend/35_group_of_some.py   # shows it: Ctrl-C
python exercises/check.py 35
"""

import torch
import torch.distributed as dist


def mean_of_nodes(value, per_node):
    """-> on the first of each `per_node` ranks the mean of their values, None on the others"""
    if dist.get_rank() % per_node > 0:
        return None
    firsts = list(range(0, dist.get_world_size(), per_node))
    group = dist.new_group(firsts)
    total = torch.tensor(value)
    dist.all_reduce(total, group=group)
    return total.item() / len(firsts)


def main():
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()}: {mean_of_nodes(float(dist.get_rank()), per_node=2)}")
    dist.barrier()  # until all have


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

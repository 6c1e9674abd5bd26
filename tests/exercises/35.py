GIVEN = "it hangs"
GROUPS = "[dist.new_group(ranks) for ranks in nodes]  # all groups on all ranks, in one order"
LOCAL = "{mine: dist.new_group(nodes[mine], use_local_synchronization=True)}"
MINE = "    mine = dist.get_rank() // per_node\n"
REDUCE = "    dist.all_reduce(total, group=groups[mine])\n"
GATHERED = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, value)
    return sum(each[rank] for rank in nodes[mine]) / len(nodes[mine])
"""
START = "    everyone = list(range(dist.get_world_size()))\n"
RIGHT = {"named by its ranks": [(GROUPS, LOCAL), (START, START + MINE)]}
WRONG = {
    "the mean of all": ([(REDUCE, "    dist.all_reduce(total)\n")], "the mean of its node is"),
    "all values to all nodes": ([(REDUCE, GATHERED)], "rank 0 was to send two numbers"),
}

GIVEN = "it hangs"
MADE = (
    "    groups = [dist.new_group(ranks) for ranks in nodes]"
    "  # all groups on all ranks, in one order\n"
)
MINE = "    mine = dist.get_rank() // per_node\n"
LOCAL = "    groups = {mine: dist.new_group(nodes[mine], use_local_synchronization=True)}\n"
RETURN = "    return total.item() / len(nodes[mine])\n"
IN_FLOAT64 = """    each = [torch.zeros((), dtype=torch.float64) for _ in nodes[mine]]
    dist.all_gather(each, total.double(), group=groups[mine])
    return sum(each).item() / len(each)
"""
REDUCE = "    dist.all_reduce(total, group=groups[mine])\n"
GATHERED = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, value)
    return sum(each[rank] for rank in nodes[mine]) / len(nodes[mine])
"""
RIGHT = {
    "named by its ranks": [(MADE + MINE, MINE + LOCAL)],
    "gathered in float64": [(REDUCE + RETURN, IN_FLOAT64)],
}
WRONG = {
    "the mean of all": ([(REDUCE, "    dist.all_reduce(total)\n")], "the mean of its node is"),
    "nodes of two": (
        [("    everyone =", "    per_node = 2\n    everyone =")],
        "3 ranks on a node: ",
    ),
    "all values to all nodes": ([(REDUCE, GATHERED)], "rank 0 sends a value to other nodes"),
}

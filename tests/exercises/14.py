GIVEN = "rank 0 newest was to return (2"
GATHER = """    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, set(whole))
    epoch = max(set.intersection(*everywhere), default=0)  # the same on all ranks
"""
COUNTED = """    count = torch.zeros(100)
    count[[0, *whole]] = 1
    dist.all_reduce(count)
    epoch = int((count == dist.get_world_size()).nonzero().max())
"""
SMALLEST = """    newest = torch.tensor(max(whole, default=0))
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    epoch = newest.item()
"""
RANK_0 = """    newest = torch.tensor(max(whole, default=0))
    dist.broadcast(newest, src=0)
    epoch = newest.item()
"""
STATES = """    states = [read(path) for path in sorted(folder.glob("epoch_*.pt"))]
    whole = {state["epoch"]: state for state in states if state is not None}
"""
BY_SIZE = """    large = [path for path in folder.glob("epoch_*.pt") if path.stat().st_size > 1000]
    whole = {int(path.stem[6:]): path for path in large}
"""
RETURN = "    return epoch, whole.get(epoch)\n"
READ = "    return epoch, read(whole[epoch]) if epoch else None\n"
RIGHT = {"the ranks that have each epoch are counted": [(GATHER, COUNTED)]}
WRONG = {
    "the smallest of the newest": ([(GATHER, SMALLEST)], "rank 0 has [1, 2]; rank 1 has [1, 3]"),
    "whole if it is large": (
        [(STATES, BY_SIZE), (RETURN, READ)],
        "rank 0 has [1, 2, 3]; rank 1 has [1, 2]",
    ),
    "the newest of rank 0": ([(GATHER, RANK_0)], "newest was to return (2"),
}

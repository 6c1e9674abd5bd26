GIVEN = "the ranks have counted 1 + 20 = 21 images of 'cat'; on rank 0 totals says 51"
LOOP = (
    "    for name in sorted(counts):  # in one order on all ranks: the n-th call meets the n-th\n"
)
ONE = """        number = torch.tensor(counts[name])
        dist.all_reduce(number)
        summed[name] = number.item()
"""
TENSOR = """    names = sorted(counts)
    numbers = torch.tensor([counts[name] for name in names])
    dist.all_reduce(numbers)
    summed = dict(zip(names, numbers.tolist()))
"""
OBJECTS = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, counts)
    summed = {name: sum(other[name] for other in each) for name in counts}
"""
RANK_0 = """    names = [list(counts)]
    dist.broadcast_object_list(names, src=0)
    for name in names[0]:
"""
CLASS = """    class Totals(dict):
        pass

    summed = Totals()
"""
RIGHT = {
    "a subclass of dict": [("    summed = {}\n", CLASS)],
    "one tensor": [(LOOP + ONE, TENSOR)],
    "the dicts are gathered": [(LOOP + ONE, OBJECTS)],
    "in the order of rank 0": [(LOOP, RANK_0)],
}
WRONG = {
    "in the order of a set": ([("sorted(counts)", "set(counts)")], "on rank 0 totals says"),
    "sorted by a hash": (
        [("sorted(counts)", "sorted(counts, key=hash)")],
        "on rank 0 totals says",
    ),
    "a barrier before each": (
        [(LOOP, "    for name in counts:\n        dist.barrier()\n")],
        "images of 'cat'; on rank 0 totals says",
    ),
    "one tensor in the order of each rank": (
        [(LOOP + ONE, TENSOR.replace("sorted(counts)", "list(counts)"))],
        "images of 'cat'; on rank 0 totals says",
    ),
    "the counts of this rank times the world size": (
        [("        dist.all_reduce(number)\n", "        number *= dist.get_world_size()\n")],
        "1 + 20 = 21 images of 'cat'",
    ),
    "sorted by the numbers": (
        [("sorted(counts)", "sorted(counts, key=counts.get)")],
        "on rank 0 totals says",
    ),
    "on rank 0 alone": (
        [("dist.all_reduce(number)", "dist.reduce(number, dst=0)")],
        "on rank 1 totals says",
    ),
    "the first word": ([("sorted(counts)", "list(sorted(counts))[:1]")], "totals returned the"),
}

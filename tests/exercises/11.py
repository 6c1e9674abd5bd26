GIVEN = "images of 'cat'"
LOOP = (
    "    for name in sorted(counts):  # in one order on all ranks: the n-th call meets the n-th\n"
)
ONE = """        number = torch.tensor(counts[name])
        dist.all_reduce(number)
        summed[name] = number.item()
"""
OBJECTS = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, counts)
    summed = {name: sum(other[name] for other in each) for name in counts}
"""
RIGHT = {
    "the dicts are gathered": [(LOOP + ONE, OBJECTS)],
    "a subclass of dict is returned": [("{}", 'type("Totals", (dict,), {})()')],
}
WRONG = {
    "in the order of a set": ([("sorted(counts)", "set(counts)")], "totals says"),
    "sorted by the numbers": (
        [("sorted(counts)", "sorted(counts, key=counts.get)")],
        "totals says",
    ),
}

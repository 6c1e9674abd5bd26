"""Other right answers to exercise 11. Each stands below our solution in one file."""


# %% each rank gathers the dicts of all ranks
def totals(counts):
    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, counts)
    summed = {}
    for name in counts:
        summed[name] = sum(other[name] for other in each)
    return summed

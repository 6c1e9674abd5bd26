GIVEN = "rank 0 trains on them"
CALL = "    return random_split(dataset, [len(dataset) - count, count], generator)\n"
SENT = """    order = [torch.randperm(len(dataset), generator=generator).tolist()]
    dist.broadcast_object_list(order, src=0)
    return [torch.utils.data.Subset(dataset, part) for part in (order[0][count:], order[0][:count])]
"""
RIGHT = {"rank 0 draws the order and sends it": [(CALL, SENT)]}
WRONG = {
    "the global generator, with one seed": (
        [("torch.Generator().manual_seed(seed)", "torch.manual_seed(seed)")],
        "draws other random numbers",
    ),
    "a seed of each rank": (
        [("manual_seed(seed)", "manual_seed(seed + dist.get_rank())")],
        "rank 0 trains on them",
    ),
    "no seed": ([("manual_seed(seed)", "manual_seed(0)")], "a split of its own"),
}

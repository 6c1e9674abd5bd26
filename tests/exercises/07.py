GIVEN = (
    "in step 0 there were 9 tokens: 6 on rank 0, 3 on rank 1. Each was to count once; in the "
    "weights of rank 0 a token counted 0.75 times on rank 0, 1.50 times on rank 1"
)
COUNT = "        count = (y != -100).sum()\n        dist.all_reduce(count)\n"
LOSS = 'F.cross_entropy(ddp_model(x), y, reduction="sum") * dist.get_world_size() / count\n'
MEAN = "F.cross_entropy(ddp_model(x), y)"
SUM = 'F.cross_entropy(ddp_model(x), y, reduction="sum")\n'
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, batches)
    batches = [tuple(map(torch.cat, zip(*same))) for same in zip(*each)]
"""
DDP = "    ddp_model = DistributedDataParallel(model)\n"
RIGHT = {
    "gradients are scaled, by a quotient of integers": [
        (LOSS, SUM),
        (
            "        loss.backward()\n",
            "        loss.backward()\n"
            "        for parameter in model.parameters():\n"
            "            parameter.grad *= dist.get_world_size() / count\n",
        ),
    ],
    "the mean, weighted by the tokens of this rank": [
        ("count = (y != -100).sum()\n", "own = (y != -100).sum()\n        count = own.clone()\n"),
        (LOSS, f"{MEAN} * own * dist.get_world_size() / count\n"),
    ],
    "gradients are summed, then divided": [
        ("ddp_model = DistributedDataParallel(model)", "ddp_model = model"),
        (LOSS, SUM),
        (
            "        loss.backward()\n",
            "        loss.backward()\n"
            "        for parameter in model.parameters():\n"
            "            dist.all_reduce(parameter.grad)\n"
            "            parameter.grad /= count\n",
        ),
    ],
}
WRONG = {
    "a rank without tokens leaves the step out": (
        [(COUNT, "        if (y == -100).all():\n            continue\n" + COUNT)],
        "it hangs:\nrank 0 waits in line",
    ),
    "all data on every rank": (
        [(DDP, GATHER + DDP), (COUNT, ""), (LOSS, MEAN + "\n")],
        "the model of rank 0 was given 64 rows in all; with its own data alone they are 32",
    ),
    "the sum": (
        [(COUNT, ""), (LOSS, SUM)],
        "a token counted 4.50 times on rank 0, 4.50 times on rank 1",
    ),
    "not times the number of ranks": (
        [(" * dist.get_world_size() / count", " / count")],
        "a token counted 0.50 times on rank 0, 0.50 times on rank 1",
    ),
    "padding is counted as well": (
        [("(y != -100).sum()", "torch.tensor(len(y))")],
        "a token counted 0.56 times on rank 0, 0.56 times on rank 1",
    ),
    "the mean loss is all-reduced": (
        [
            (COUNT, ""),
            (LOSS, f"{MEAN}\n        dist.all_reduce(loss.detach())\n"),
        ],
        "a token counted 0.75 times on rank 0, 1.50 times on rank 1",
    ),
    "the mean times the tokens of this rank": (
        [(LOSS, f"{MEAN} * (y != -100).sum() / count\n")],
        "a token counted 0.50 times on rank 0, 0.50 times on rank 1",
    ),
}

GIVEN = "train_step is yours to write"
ZERO = "    optimizer.zero_grad()\n    count = 0\n"
LOSS = '        F.cross_entropy(model(x), y, reduction="sum").backward()  # .grad adds up\n'
COUNT = "    parts = [*gradients, torch.tensor([count])]\n"
REDUCE = "    dist.all_reduce(flat)\n"
MEANS = "        (F.cross_entropy(model(x), y) / len(micro_batches)).backward()\n"
SUMS = "    sums, count = flat[:-1], flat[-1]\n"
COUNTED = """    from torch.nn.parallel import DistributedDataParallel

    total = torch.tensor([sum(len(y) for _, y in micro_batches)])
    dist.all_reduce(total)
    ddp_model = DistributedDataParallel(model)
    *first, last = micro_batches

    def backward(x, y):
        loss = F.cross_entropy(ddp_model(x), y, reduction="sum")
        (loss / total * dist.get_world_size()).backward()

    optimizer.zero_grad()
    with ddp_model.no_sync():
        for x, y in first:
            backward(x, y)
    backward(*last)
    optimizer.step()
    return
"""
RIGHT = {
    "means of micro-batches, times their sizes": [
        (LOSS, "        (F.cross_entropy(model(x), y) * len(y)).backward()\n")
    ],
    "DDP with no_sync, and a count before": [(ZERO, COUNTED + ZERO)],
}
WRONG = {
    "the mean of the means": (
        [(LOSS, MEANS), ("torch.tensor([count])", "torch.tensor([1])")],
        "step 1, rank 0 with micro-batches of [5, 1, 2]: inner.weight is not what",
    ),
    "the ranks' means": (
        [
            (COUNT, "    for g in gradients:\n        g /= count\n" + COUNT),
            ("torch.tensor([count])", "torch.tensor([1])"),
        ],
        "step 1, rank 0 with micro-batches of [5, 1, 2]: inner.weight is not what",
    ),
    "the sum": ([(SUMS, "    sums, count = flat[:-1], 1\n")], "step 0, rank 0"),
    "nothing is communicated": (
        [(REDUCE, "")],
        "step 0, rank 0 with micro-batches of [4, 4]: inner.weight is not what one process gets",
    ),
    "the gradient of the step before": (
        [("    optimizer.zero_grad()\n", "")],
        "step 1, rank 0 with micro-batches of [5, 1, 2]: inner.weight is not what",
    ),
    "a call for each gradient": (
        [(REDUCE, "    for part in flat.split(8):\n        dist.all_reduce(part)\n")],
        "step 0, rank 0 with micro-batches of [4, 4]: 5 collectives, where one is enough",
    ),
    "all micro-batches at once": (
        [
            (
                "    for x, y in micro_batches:\n",
                "    for x, y in [[torch.cat(parts) for parts in zip(*micro_batches)]]:\n",
            )
        ],
        "step 0, rank 0 with micro-batches of [4, 4]: the model was given [8] samples",
    ),
    "one backward pass of all losses": (
        [
            (ZERO, ZERO + "    loss = 0\n"),
            (LOSS, '        loss += F.cross_entropy(model(x), y, reduction="sum")\n'),
            ("    gradients = [", "    loss.backward()\n    gradients = ["),
        ],
        "2 forward passes before the first backward pass",
    ),
    "only the last micro-batch": (
        [(LOSS, "        optimizer.zero_grad()\n" + LOSS)],
        "step 0, rank 0 with micro-batches of [4, 4]: inner.weight is not what",
    ),
}

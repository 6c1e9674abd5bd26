GIVEN = "evaluate is yours to write"
SUBSET = "Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))"
LOADER = "DataLoader(mine, batch_size)"
REDUCE = "    dist.all_reduce(total)  # after the loop: a rank without samples takes part as well\n"
LOSS = 'F.cross_entropy(logits, y, reduction="sum")'
TOTAL = "torch.zeros(2, dtype=torch.float64)  # float32 counts up to 16,777,216 only"
MODES = "    for module, training in modes:\n        module.training = training\n"
PAIR = """    from typing import NamedTuple

    class Result(NamedTuple):
        correct: int
        loss: float

    return Result(int(total[0]), total[1].item() / len(dataset))
"""
RIGHT = {
    "a NamedTuple": [("    return int(total[0]), total[1].item() / len(dataset)\n", PAIR)],
    "blocks": [
        (
            SUBSET,
            "Subset(dataset, torch.arange(len(dataset)).tensor_split("
            "dist.get_world_size())[dist.get_rank()].tolist())",
        )
    ],
    "a sum in float32, means times batch sizes": [
        (TOTAL, "torch.zeros(2)"),
        (LOSS, "F.cross_entropy(logits, y).item() * len(y)"),
    ],
}
WRONG = {
    "a frozen module trains afterwards": (
        [(MODES, "    model.train(modes[0][1])\n")],
        "on rank 0 a module was left in another mode",
    ),
    "all ranks evaluate all": (
        [(SUBSET, "dataset")],
        "10 samples: the model was given 10 + 10 inputs, 20 in all",
    ),
    "padded": (
        [
            (
                LOADER,
                "DataLoader(dataset, batch_size, "
                "sampler=torch.utils.data.DistributedSampler(dataset))",
            )
        ],
        "23 samples: the model was given 12 + 12 inputs, 24 in all",
    ),
    "rank 0 alone": (
        [(SUBSET, "Subset(dataset, range(len(dataset) if dist.get_rank() == 0 else 0))")],
        "the ranks were given [10, 0] inputs",
    ),
    "the means of batches": (
        [
            (LOSS, "F.cross_entropy(logits, y) / len(DataLoader(mine, batch_size))"),
            (
                "total[1].item() / len(dataset)",
                "total[1].item() / dist.get_world_size()",
            ),
        ],
        "a loss of",
    ),
    "one all_reduce per number": (
        [(REDUCE, "    dist.all_reduce(total[0])\n    dist.all_reduce(total[1])\n")],
        "rank 0 called all_reduce, all_reduce",
    ),
    "in every step": (
        [(REDUCE, "        dist.all_reduce(total)\n")],
        "rank 0 waits in line",
    ),
    "to rank 0": (
        [("dist.all_reduce(total)", "dist.reduce(total, dst=0)")],
        "rank 1 returned",
    ),
    "in training mode": ([("    model.eval()\n", "")], "10 samples: rank 0 returned"),
    "left in eval mode": (
        [(MODES, "")],
        "on rank 0 a module was left in another mode",
    ),
    "with gradients": ([("@torch.no_grad()\n", "")], "autograd"),
}

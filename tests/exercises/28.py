GIVEN = "sync_batch_norm is yours to write"
WIDE = "wide = x.double()"
TOTAL = "    total = SumOverRanks.apply(torch.cat([wide.sum(0), (wide * wide).sum(0), count]))\n"
BACKWARD = (
    "        total = gradient.clone()\n        dist.all_reduce(total)\n        return total\n"
)
RIGHT = {
    "PyTorch's all_reduce for autograd": [
        (TOTAL, TOTAL.replace("SumOverRanks.apply", "torch.distributed.nn.all_reduce"))
    ]
}
WRONG = {
    "squares in float32": ([(WIDE, "wide = x")], "mean of 3,000"),
    "all_reduce, which autograd does not see": (
        [(BACKWARD, "        return gradient\n")],
        "x.grad on rank 0 differs",
    ),
    "a call for each sum": (
        [
            (
                TOTAL,
                "    parts = [wide.sum(0), (wide * wide).sum(0), count]\n"
                "    total = torch.cat([SumOverRanks.apply(part) for part in parts])\n",
            )
        ],
        "one collective is enough",
    ),
}

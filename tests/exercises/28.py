GIVEN = "sync_batch_norm is yours to write"
WIDE = "wide = x.double()"
TOTAL = "    total = SumOverRanks.apply(torch.cat([wide.sum(0), (wide * wide).sum(0), count]))\n"
BACKWARD = (
    "        total = gradient.clone()\n        dist.all_reduce(total)\n        return total\n"
)
MEAN = "(total[:-1] / total[-1]).chunk(2)"
WHOLE = """    return Whole.apply(x, weight, bias, eps)


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mine = torch.cat([x.mean(0), x.var(0, unbiased=False), x.new_tensor([len(x)])])
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        means, variances, counts = torch.stack(parts).split([len(weight), len(weight), 1], dim=1)
        rows = counts.sum()
        mean = (counts * means).sum(0) / rows
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / rows
        scale = torch.rsqrt(variance + eps)
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, weight, scale, rows)
        return normal * weight + bias

    @staticmethod
    def backward(ctx, gradient):
        normal, weight, scale, rows = ctx.saved_tensors
        inner = gradient * weight
        sums = torch.stack([inner.sum(0), (inner * normal).sum(0)])
        dist.all_reduce(sums)
        of_x = scale * (inner - sums[0] / rows - normal * sums[1] / rows)
        return of_x, (gradient * normal).sum(0), gradient.sum(0), None


def not_called(x, weight, bias, eps):
"""
COUNT = "    count = torch.full_like(x[0, :1], len(x)).double()  # the parts have different sizes\n"
RIGHT = {
    "PyTorch's all_reduce for autograd": [
        (TOTAL, TOTAL.replace("SumOverRanks.apply", "torch.distributed.nn.all_reduce"))
    ],
    "formulas in the manner of nn.SyncBatchNorm": [(COUNT, WHOLE + COUNT)],
}
WRONG = {
    "squares in float32": (
        [(WIDE, "wide = x")],
        "parts of (4, 4) rows, float32 with a mean of 3,000: output on rank 0 differs",
    ),
    "the part alone": (
        [(TOTAL, "    total = torch.cat([x.sum(0), (x * x).sum(0), count])\n")],
        "parts of (4, 4) rows: output on rank 0 differs from that of the whole batch",
    ),
    "all_reduce, which autograd does not see": (
        [(BACKWARD, "        return gradient\n")],
        "parts of (4, 4) rows: x.grad on rank 0 differs",
    ),
    "statistics without gradients": (
        [(MEAN, "(total[:-1] / total[-1]).detach().chunk(2)")],
        "parts of (4, 4) rows: x.grad on rank 0 differs",
    ),
    "the mean of the means": (
        [
            (
                TOTAL,
                "    total = SumOverRanks.apply(torch.cat([x.mean(0), (x * x).mean(0), "
                "torch.ones_like(count)]))\n",
            )
        ],
        "parts of (5, 2) rows: output on rank 0 differs",
    ),
    "the mean of the gradients": (
        [(BACKWARD, BACKWARD.replace("return total", "return total / dist.get_world_size()"))],
        "parts of (4, 4) rows: x.grad on rank 0 differs",
    ),
    "the unbiased variance": (
        [
            (
                "mean_of_squares - mean**2",
                "(mean_of_squares - mean**2) * total[-1] / (total[-1] - 1)",
            )
        ],
        "output on rank 0 differs",
    ),
    "the whole weight.grad on every rank": (
        [(COUNT, WHOLE.replace("(gradient * normal).sum(0)", "sums[1] / weight") + COUNT)],
        "the ranks' parts of weight.grad add up to",
    ),
    "a call for each sum": (
        [
            (
                TOTAL,
                "    parts = [x.sum(0), (x * x).sum(0), count]\n"
                "    total = torch.cat([SumOverRanks.apply(part) for part in parts])\n",
            )
        ],
        "in the forward pass: all_reduce, all_reduce, all_reduce; one collective is enough",
    ),
}

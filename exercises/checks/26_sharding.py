"""As 24, by reduce-scatter and all-gather: each rank keeps Adam's state of its shard only."""

from exercises.checks import chain
from exercises.checks.chain import LAYER, LAYERS

PADDING = 1024  # bytes that rounding up may cost
HINTS = (
    "Which gradients does a rank need that updates one N-th of each bucket? Who needs what after?",
    "An all-reduce is a reduce-scatter and an all-gather; with the step between the two, a rank "
    "needs the gradients and Adam's state of its shard only. dist.reduce_scatter_single(shard, "
    "flat) (before PyTorch 2.14: reduce_scatter_tensor) gives each rank its part of the sum; "
    "dist.all_gather_single collects the updated parts.",
    "Make the buckets at the start: a flat, padded copy of their parameters, and a Parameter of "
    "this rank's chunk of it, for Adam. When all gradients of a bucket are there: reduce-scatter.",
)
observe, figures = chain.observe, chain.figures


def judge(ranks):
    if wrong := chain.judge(ranks):
        return wrong
    total = LAYERS * LAYER
    for number, rank in enumerate(ranks):
        if rank["state"] > 2 * total / len(ranks) + PADDING:
            return (
                f"rank {number} keeps {rank['state']:,} bytes of Adam's state; all of it is "
                f"{2 * total:,}, and 1/{len(ranks)} of that is enough"
            )
        reduced = [size for name, size in rank["calls"] if name.startswith("reduce_scatter")]
        others = [size for name, size in rank["calls"] if not name.startswith("reduce_scatter")]
        if sum(reduced) < total:
            return f"rank {number} gave reduce_scatter {sum(reduced):,} of {total:,} bytes"
        if max(sum(reduced), sum(others)) > total + PADDING:
            return (
                f"rank {number} gave reduce_scatter {sum(reduced):,} bytes and other calls "
                f"{sum(others):,}; the parameters have {total:,}, and once is enough"
            )
    return None

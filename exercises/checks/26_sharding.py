"""As 24, by reduce-scatter and all-gather: each rank keeps Adam's state of its shard only."""

from exercises.checks import chain
from exercises.checks.chain import LAYER, LAYERS

PADDING = 1024  # bytes that rounding up may cost
observe, figures = chain.observe, chain.figures


def judge(ranks):
    if wrong := chain.judge(ranks):
        return wrong
    total = LAYERS * LAYER
    for number, rank in enumerate(ranks):
        if rank["state"] > 2 * total / len(ranks) + PADDING:
            keeps = f"keeps {rank['state']:,} bytes of Adam's state"
            return f"rank {number} {keeps}, where 1/{len(ranks)} of {2 * total:,} is enough"
        reduced = [size for name, size in rank["calls"] if name.startswith("reduce_scatter")]
        others = [size for name, size in rank["calls"] if not name.startswith("reduce_scatter")]
        if sum(reduced) < total:
            return f"rank {number} gave reduce_scatter {sum(reduced):,} of {total:,} bytes"
        if max(sum(reduced), sum(others)) > total + PADDING:
            given = f"gave reduce_scatter {sum(reduced):,} bytes and other calls {sum(others):,}"
            return f"rank {number} {given}; the parameters have {total:,}, and once is enough"
    return None

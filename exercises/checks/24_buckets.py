"""As 23, and in few calls, none of which has more bytes than a bucket."""

from exercises.checks import chain

HINTS = (
    "What has to be true when a gradient is to join the bucket that is open, and what is to be "
    "done if it is not? Do not forget the bucket that is open at the end.",
    "Each call costs its latency: a bucket shares it, and the first still leaves early. "
    "all_reduce one flat copy of the bucket's gradients, and copy its parts back.",
    "torch.cat([p.grad.flatten() for p in bucket]), divide, all_reduce; then for each part of "
    "flat.split(sizes): p.grad.copy_(part.view_as(p)).",
)
CASES, observe, figures = chain.CAPS, chain.observe, chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap)

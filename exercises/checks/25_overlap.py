"""As 24, and the backward pass does not wait for the calls."""

from exercises.checks import chain

HINTS = (
    "Who waits for whom between the start of a call and the next layer's backward pass?",
    "dist.all_reduce(flat, async_op=True) returns at once; its wait() returns when it is done. "
    "What counts is not how long the calls take, but how long the step waits for them.",
    "Keep (work, flat, bucket) in a list; in `step`, work.wait() and copy the parts back.",
)
CASES, observe, figures = chain.CAPS, chain.observe, chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap) or chain.judge_exposed(ranks)

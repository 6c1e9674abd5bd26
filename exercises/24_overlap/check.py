"""As 23, and the backward pass does not wait for the calls."""

from exercises import chain

CASES = chain.CAPS
observe = chain.observe
figures = chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap) or chain.judge_exposed(ranks)

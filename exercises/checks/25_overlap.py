"""As 24, and the backward pass does not wait for the calls."""

from exercises.checks import chain

CASES, observe, figures = chain.CAPS, chain.observe, chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap) or chain.judge_exposed(ranks)

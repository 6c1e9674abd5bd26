"""As 23, and in few calls, none of which has more bytes than a bucket."""

from exercises.checks import chain

CASES, observe, figures = chain.CAPS, chain.observe, chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap)

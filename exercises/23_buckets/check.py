"""As 22, and in few calls, none of which has more bytes than a bucket."""

from exercises import chain

CASES = chain.CAPS
observe = chain.observe
figures = chain.figures


def judge(ranks, cap):
    return chain.judge(ranks) or chain.judge_calls(ranks, cap)

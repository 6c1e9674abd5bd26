"""Weights are those of one process; gradients are averaged while the backward pass goes on."""

from exercises import chain

observe = chain.observe
figures = chain.figures


def judge(ranks):
    return chain.judge(ranks) or chain.judge_each(ranks)

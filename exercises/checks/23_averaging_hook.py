"""Weights are those of one process; gradients are averaged while the backward pass goes on."""

from exercises.checks import chain

HINTS = (
    "When is the gradient of the last layer there, and when that of the first? `step` comes last.",
    "parameter.register_post_accumulate_grad_hook(f) calls f(parameter) when its .grad is there: "
    "DDP builds everything else upon such hooks.",
    "In the hook: parameter.grad /= dist.get_world_size(), dist.all_reduce(parameter.grad).",
)
observe, figures = chain.observe, chain.figures


def judge(ranks):
    return chain.judge(ranks) or chain.judge_each(ranks)

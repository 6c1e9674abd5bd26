"""Weights are those of one process; gradients are averaged while the backward pass goes on."""

from exercises.checks import chain

LEARNT = "A hook learns of each gradient when it is there: what DDP builds everything else upon."
HINTS = (
    "When is the gradient of the last layer there, and when that of the first? `step` comes last.",
    "parameter.register_post_accumulate_grad_hook(f) calls f(parameter) when its .grad is there.",
    "In the hook: parameter.grad /= dist.get_world_size(), dist.all_reduce(parameter.grad).",
)
observe, judge, figures = chain.observe, chain.judge, chain.figures

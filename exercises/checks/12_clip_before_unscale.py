"""Each step changes the weights as it would without a scaler; the loss is scaled all the same."""

import torch
import torch.distributed as dist

from exercises.checks.common import Watch, alone, first_difference, linear, rank_data, together

STEPS, MAX_NORM = 8, 1.0
OVERFLOW = 2  # in this step the last rank has an infinite gradient: all skip it, halve the scale
HINTS = (
    "Print what clip_grad_norm_ returns: the norm of the gradients that it was given.",
    "The scaler multiplies all gradients by 65,536. scaler.step divides them again, but the "
    "clipping comes before it. DDP averages before both, so all ranks see an infinite gradient.",
    "scaler.unscale_(optimizer) after backward() and before clip_grad_norm_; scaler.step then "
    "does not divide a second time.",
)


def data(rank):
    x, y = rank_data(rank)
    return x, 100 * y  # the 1e-6 that clip_grad_norm_ adds to a norm does not count


def observe(mine):
    watch, scales, (x, y) = Watch(linear(dist.get_rank())), [], data(dist.get_rank())

    def listen(_, inputs, out):
        if out.requires_grad:
            out.register_hook(lambda gradient: backward(gradient, out))

    def backward(gradient, out):
        unscaled = 2 * (out.detach() - y) / len(y)
        scales.append((gradient.norm() / unscaled.norm()).item())
        last = dist.get_rank() == dist.get_world_size() - 1
        return gradient * torch.inf if last and len(scales) == OVERFLOW else gradient

    watch.model.register_forward_hook(listen)
    mine.train(watch.model, x, y, MAX_NORM, STEPS)
    return watch.found() | {"scale": min(scales, default=1)}


def judge(ranks):
    if min(rank["scale"] for rank in ranks) < 2:
        return "the loss was not scaled before backward: in fp16 its small gradients would be 0"
    batch = together(map(data, range(len(ranks))))
    once = alone(linear(0), [batch] * (STEPS - 1), max_norm=MAX_NORM)
    wrong = first_difference(ranks, once[:OVERFLOW] + once[OVERFLOW - 1 :])
    if wrong and f"after step {OVERFLOW}" in wrong:
        return f"{wrong}. In that step the last rank has an infinite gradient: all are to skip it"
    return wrong

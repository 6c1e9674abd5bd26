"""Each step changes the weights as it would without a scaler; the loss is scaled all the same."""

import torch
import torch.distributed as dist

from exercises.checks.common import Watch, linear, rank_data

STEPS, MAX_NORM = 8, 1.0
OVERFLOW = 2  # in this pass the last rank has an infinite gradient: all skip the step
CASES = ((),)
CASE = f"(in backward pass {OVERFLOW} the last rank has an infinite gradient) "


def observe(mine):
    watch, scales, (x, y) = Watch(linear(dist.get_rank())), [], rank_data(dist.get_rank())
    y *= 100  # the 1e-6 that clip_grad_norm_ adds to a norm does not count

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
    return {"a scaled loss": min(scales, default=1) >= 2} | watch.facts()

"""Each step changes the weights as it would without a scaler; the loss is scaled all the same."""

import torch
import torch.distributed as dist

from exercises.common import Watch, linear, rank_data

STEPS = 8
MAX_NORM = 1.0
OVERFLOW = 2  # in this pass the last rank has an infinite gradient: all skip the step
CASES = ((),)
CASE = f"(in backward pass {OVERFLOW} the last rank has an infinite gradient) "


def observe(mine):
    rank = dist.get_rank()
    watch = Watch(linear(rank))
    x, y = rank_data(rank, scale=100)  # the 1e-6 that clip_grad_norm_ adds to a norm does not count
    scales = []

    def listen(module, inputs, out):
        if out.requires_grad:
            out.register_hook(lambda gradient: backward(gradient, out))

    def backward(gradient, out):
        unscaled = 2 * (out.detach() - y) / len(y)
        scales.append((gradient.norm() / unscaled.norm()).item())
        last = rank == dist.get_world_size() - 1
        if last and len(scales) == OVERFLOW:
            return gradient * torch.inf
        return gradient

    watch.model.register_forward_hook(listen)
    mine.train(watch.model, x, y, MAX_NORM, STEPS)
    return {"the loss is scaled": min(scales, default=1) >= 2} | watch.facts()

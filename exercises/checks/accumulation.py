"""What the checks of gradient accumulation share: the weights before each micro-batch, and whose
they have to be."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import parameters

LR = 0.3


def make_batches(count, rank):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(count, 4, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(count, 4, 2, dtype=torch.float64, generator=generator)
    return list(zip(x, y))


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 2).double()


def observe_case(mine, count, k):
    """-> this rank's weights before each micro-batch and in the end"""
    weights = []
    model = make_model(seed=dist.get_rank())
    model.register_forward_pre_hook(lambda *_: weights.append(parameters(model)))
    mine.train(model, make_batches(count, dist.get_rank()), k, LR)
    return [*weights, parameters(model)]


def alone(world_size, count, k):
    """The weights of one process with the micro-batches of all ranks."""
    model = make_model()
    together = list(zip(*(make_batches(count, rank) for rank in range(world_size))))
    weights = []
    for start in range(0, count, k):
        step = [batch for batches in together[start : start + k] for batch in batches]
        x, y = (torch.cat(parts) for parts in zip(*step))
        weights += [parameters(model)] * len(together[start : start + k])
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=LR).step()
    return [*weights, parameters(model)]


def judge_case(count, k, found):
    """`found` is what observe_case returned on each rank."""
    wanted = alone(len(found), count, k)
    for rank, weights in enumerate(found):
        if len(weights) != len(wanted):
            return f"rank {rank} made {len(weights) - 1} forward passes for {count} micro-batches"
    for done in range(1, count + 1):
        for rank, weights in enumerate(found):
            if not torch.allclose(weights[done], wanted[done], rtol=0, atol=1e-10):
                start = (done - 1) // k * k
                return f"rank {rank}: " + describe(start, done, weights, wanted)
    return None


def describe(start, done, weights, wanted):
    """The weights are wrong after `done` micro-batches; the step began at number `start`."""
    step = f"micro-batches {start} to {done - 1}" if done - start > 1 else f"micro-batch {start}"
    change, right = weights[done] - weights[start], wanted[done] - wanted[start]
    if not right.any():
        return f"the weights have changed after {step}, before the step was complete"
    if not change.any():
        return f"after {step} a step was to be made, but the weights have not changed"
    factor = (change @ right) / (right @ right)
    if torch.allclose(change, factor * right, rtol=0, atol=1e-10):
        return (
            f"the step after {step} moved the weights {factor:.2f} times as far as the mean over "
            f"the images of all ranks in it"
        )
    return (
        f"the step after {step} moved the weights elsewhere than the mean over the images of all "
        f"ranks in it"
    )

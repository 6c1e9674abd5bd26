"""Gradient accumulation with DDP: what no_sync saves, and three ways to use it wrongly.

torchrun --standalone --nproc-per-node 2 docs/training/examples/accumulation.py
"""

import os
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
MICRO_BATCHES = 4


def accumulate(ddp_model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        # no_sync must be around forward and backward.
        with nullcontext() if last else ddp_model.no_sync():
            loss = F.mse_loss(ddp_model(x), y) / len(micro_batches)
            loss.backward()


def variant(ddp_model, micro_batches, forward, backward):
    """Put no_sync around the first `forward` forward and the first `backward` backward passes."""
    for number, (x, y) in enumerate(micro_batches, start=1):
        with ddp_model.no_sync() if number <= forward else nullcontext():
            loss = F.mse_loss(ddp_model(x), y) / len(micro_batches)
        with ddp_model.no_sync() if number <= backward else nullcontext():
            loss.backward()


WAYS = {
    "no_sync for all but the last": accumulate,
    "without no_sync": partial(variant, forward=0, backward=0),
    "no_sync around backward only": partial(variant, forward=0, backward=MICRO_BATCHES - 1),
    "no_sync around forward only": partial(variant, forward=MICRO_BATCHES - 1, backward=0),
    "no_sync for the last, too": partial(variant, forward=MICRO_BATCHES, backward=MICRO_BATCHES),
}


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")  # The counts are the same with NCCL.
    report = print if dist.get_rank() == 0 else lambda *_: None
    torch.set_default_dtype(torch.float64)  # Rounding at 1e-16 hides no mistake.
    steps = [draw(seed) for seed in range(STEPS)]
    # Each step as one batch with the samples of all ranks and micro-batches.
    whole = [[(x.flatten(0, 2), y.flatten(0, 2))] for x, y in steps]
    expected = train(make_model(), accumulate, whole)  # without DDP
    own = [list(zip(x[dist.get_rank()], y[dist.get_rank()])) for x, y in steps]
    report(f"{dist.get_world_size()} ranks, {MICRO_BATCHES} micro-batches per optimizer step")
    report(f"{'':28}  all-reduced per step   largest difference of a weight")
    report(f"{'':28}  {'buckets':>8} {'KiB':>11}   to one process  between ranks")
    for name, way in WAYS.items():
        report(f"{name:28}  {examine(way, own, expected)}")


def examine(way, steps, expected):
    """Train in one of the ways -> what was all-reduced, and the largest errors of the weights."""
    ddp_model = DistributedDataParallel(make_model())
    handed = []
    ddp_model.register_comm_hook(handed, count_and_average)
    weights = train(ddp_model, way, steps)
    low = weights.clone()
    high = weights.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    buckets = len(handed) / STEPS
    kib = sum(handed) / STEPS / 1024
    off = largest(weights - expected)
    apart = largest(high - low)
    return f"{buckets:8.1f} {kib:11.1f}   {off:>14} {apart:>14}"


def count_and_average(handed, bucket):
    """DDP calls this hook with each bucket of gradients, in place of its own all-reduce."""
    handed.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


def largest(differences):
    value = differences.abs().max().item()
    if 0 < value < 1e-15:
        return "below 1e-15"
    return f"{value:.0e}" if value else "0"


def train(model, way, steps):
    """An optimizer step for each list of micro-batches -> all weights as one vector."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for micro_batches in steps:
        optimizer.zero_grad()
        way(model, micro_batches)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def draw(seed):
    """-> x and y of one step, for all ranks: [ranks, micro-batches, 16 samples, 64 features]"""
    torch.manual_seed(seed)
    x = torch.randn(dist.get_world_size(), MICRO_BATCHES, 16, 64)
    return x, x.sin()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

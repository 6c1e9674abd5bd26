"""Unequal numbers of tokens: several ways to divide the loss, compared with one process.

torchrun --standalone --nproc-per-node 2 docs/training/examples/loss_normalization.py
"""

import os
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WORDS = 20
LENGTH = 48
PADDING = -100
# The number of tokens in each micro-batch of each rank.
EQUAL = [[12, 12, 12]]
UNEQUAL = [[40, 8, 3], [6, 2, 1]]


def accumulate(ddp_model, micro_batches):
    count = sum((y != PADDING).sum() for x, y in micro_batches)
    dist.all_reduce(count)  # Now count has the tokens of all ranks and micro-batches.
    summed = torch.zeros_like(count, dtype=torch.float64)
    for number, (x, y) in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        with nullcontext() if last else ddp_model.no_sync():
            total = F.cross_entropy(ddp_model(x), y, ignore_index=PADDING, reduction="sum")
            loss = total * dist.get_world_size() / count  # DDP divides by the world size.
            loss.backward()
        summed += total.detach()
    dist.all_reduce(summed)
    return summed / count  # This loss can be printed: the mean over the tokens of all ranks.


def divide_later(ddp_model, micro_batches):
    """Also right, and useful if tokens cannot be counted before the first backward."""
    with_factor(ddp_model, micro_batches, lambda n: 1)
    count = sum((y != PADDING).sum() for x, y in micro_batches)
    dist.all_reduce(count)
    for parameter in ddp_model.parameters():
        parameter.grad *= dist.get_world_size() / count


def with_factor(ddp_model, micro_batches, factor):
    """Multiply the summed loss of each micro-batch by a factor that depends on the tokens."""
    own = torch.stack([(y != PADDING).sum() for x, y in micro_batches])
    every = own.clone()
    dist.all_reduce(every)  # Now every[i] has the tokens of micro-batch i on all ranks together.
    n = SimpleNamespace(ranks=dist.get_world_size(), micro_batches=len(micro_batches))
    for i, (x, y) in enumerate(micro_batches):
        n.here = own[i]
        n.rank = own.sum()
        n.micro_batch = every[i]
        n.all = every.sum()
        total = F.cross_entropy(ddp_model(x), y, ignore_index=PADDING, reduction="sum")
        (total * factor(n)).backward()


# "mean" is the default of cross_entropy: it divides by the tokens of this rank's micro-batch.
WAYS = {
    "sum * ranks / all tokens": accumulate,
    "sum, later gradients * ranks / all tokens": divide_later,
    "mean / micro-batches": partial(with_factor, factor=lambda n: 1 / n.here / n.micro_batches),
    "sum / tokens of the rank": partial(with_factor, factor=lambda n: 1 / n.rank),
    "sum * ranks / tokens of the micro-batch / micro-batches": partial(
        with_factor, factor=lambda n: n.ranks / n.micro_batch / n.micro_batches
    ),  # This counts the tokens of all ranks, but only of one micro-batch.
    "mean * ranks": partial(with_factor, factor=lambda n: n.ranks / n.here),
    "sum / all tokens": partial(with_factor, factor=lambda n: 1 / n.all),
}


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")  # It runs on CPUs. On GPUs the gradients are the same.
    torch.set_default_dtype(torch.float64)  # Rounding at 1e-16 hides no mistake.
    lines = [f"tokens of each rank's micro-batches: {EQUAL[0]}, or unequal: {UNEQUAL}"]
    lines += [f"{'':55}   equal  unequal numbers of tokens"]
    lines += [f"{'loss of a micro-batch':55}  length  length  relative error  angle"]
    for name, way in WAYS.items():
        (length, _, _), unequal = (compare(way, tokens) for tokens in (EQUAL, UNEQUAL))
        lines += [f"{name:55}  {length}  {'  '.join(unequal)}"]
    nothing = F.cross_entropy(torch.zeros(1, WORDS), torch.tensor([PADDING]))
    lines += [f"mean of a micro-batch without tokens: {nothing.item()}"]
    if dist.get_rank() == 0:
        print("\n".join(lines))


def compare(way, tokens):
    """-> length relative to the true gradient, relative error, angle to the true gradient"""
    ranks = range(dist.get_world_size())
    data = [draw(rank, tokens[rank % len(tokens)]) for rank in ranks]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    x, y = (torch.cat(parts) for parts in zip(*sum(data, [])))
    F.cross_entropy(model(x), y, ignore_index=PADDING).backward()  # one process, all data
    true = gradient(model)
    model.zero_grad()
    way(DistributedDataParallel(model), data[dist.get_rank()])
    found = gradient(model)
    length = found.norm() / true.norm()
    error = (found - true).norm() / true.norm()
    error = f"{error:.2f}" if error > 1e-14 else "below 1e-14"
    angle = F.cosine_similarity(found, true, dim=0).clamp(max=1).acos().rad2deg()
    return f"{length:5.3f}x", f"{error:>14}", f"{angle:4.1f}°"


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def draw(rank, tokens):
    """-> the micro-batches of a rank: words, and the word after each word. The rest is padding."""
    torch.manual_seed(rank)
    x = torch.randint(WORDS, (len(tokens), LENGTH))
    y = (x + rank + 1) % WORDS
    y[torch.arange(LENGTH) >= torch.tensor(tokens)[:, None]] = PADDING
    return list(zip(x, y))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

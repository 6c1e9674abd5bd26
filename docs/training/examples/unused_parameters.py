"""Parameters that get no gradient on some ranks: the error, the remedies, and what DDP computes.

torchrun --standalone --nproc-per-node 2 docs/training/examples/unused_parameters.py
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

# Each way has a name, the branches in step 1 and in step 2 (of rank 0, of the others), DDP's flags.
WAYS = [
    ("no flag, only a", ("a", "a"), ("a", "a"), {}),
    ("no flag, all on rank 0", ("abc", "a"), ("abc", "a"), {}),
    ("find_unused_parameters", ("ab", "a"), ("a", "b"), {"find_unused_parameters": True}),
    ("static_graph", ("ab", "a"), ("ab", "a"), {"static_graph": True}),
    ("static_graph, then b", ("a", "a"), ("b", "b"), {"static_graph": True}),
    ("b, c frozen before DDP", ("a", "a"), ("a", "a"), {}),
    ("b, c frozen after DDP", ("a", "a"), ("a", "a"), {}),
]


class Model(nn.Module):
    """A trunk and three branches. A step uses some of the branches. Each has one weight, a 1."""

    def __init__(self):
        super().__init__()
        names = ("trunk", "a", "b", "c")
        self.layers = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in names})
        nn.utils.vector_to_parameters(torch.ones(4), self.parameters())

    def forward(self, x, branches):
        return sum(self.layers[name](self.layers["trunk"](x)) for name in branches).sum()

    def freeze_b_and_c(self):
        self.layers["b"].requires_grad_(False)
        self.layers["c"].requires_grad_(False)

    def gradients(self):
        """Return the gradient of each parameter, a number or None."""
        return [None if p.grad is None else p.grad.item() for p in self.parameters()]


def two_steps(x, way, first, second, flags):
    """-> the trunk's gradient in step 1, how it ended, the numbers that a step all-reduces"""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=5))
    model = Model()
    trunk = "-"
    counts = [0]
    if way.endswith("before DDP"):
        model.freeze_b_and_c()
    ddp_model = DistributedDataParallel(model, process_group=group, **flags)
    if way.endswith("after DDP"):
        model.freeze_b_and_c()
    ddp_model.register_comm_hook((group, counts), counted_all_reduce)
    for step, branches in ((1, first), (2, second)):
        model.zero_grad()
        try:
            ddp_model(x, branches[min(rank, 1)]).backward()
        except RuntimeError as error:
            message = str(error).splitlines()[0].partition(". ")[0]
            print(f"rank {rank}, {way}: {message}\n", end="")
            waited = "Timed out" in message or "timeout" in message
            return trunk, f"{'timeout' if waited else 'error'} in step {step}", max(counts)
        if step == 1:
            trunk = f"{model.gradients()[0]:.1f}"
    return trunk, "ok", max(counts)


def counted_all_reduce(state, bucket):
    """DDP calls this hook once per bucket, in place of its own all-reduce."""
    group, counts = state
    counts.append(bucket.buffer().numel())
    return allreduce_hook(group, bucket)


def averages(x):
    """All ranks use the trunk and a, rank 0 uses b, no rank uses c -> the rows of a table."""
    branches = "ab" if dist.get_rank() == 0 else "a"
    world_size = dist.get_world_size()
    alone = Model()
    model = Model()
    alone(x, branches).backward()
    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)
    ddp_model(x, branches).backward()
    found = [None] * world_size
    dist.all_gather_object(found, (alone.gradients(), model.gradients()))
    own, averaged = ([*zip(*gradients)] for gradients in zip(*found))
    rows = ["parameter  own gradient on rank 0, 1, ...  .grad after backward of DDP"]
    differ = 0.0
    for name, before, after in zip(model.layers, own, averaged):
        expected = sum(gradient or 0.0 for gradient in before) / world_size
        differ = max([differ, *(abs((gradient or 0.0) - expected) for gradient in after)])
        rows.append(f"{name:<10} {', '.join(map(str, before)):<32} {', '.join(map(str, after))}")
    return [*rows, f"largest difference to (sum of own gradients) / (world size): {differ:.0e}"]


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    # It uses gloo even if there are GPUs, because NCCL's timeout would end the process.
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    x = torch.full((1, 1), 1.0 + 2 * rank)  # 1 on rank 0, 3 on rank 1
    rows = ["                        trunk's gradient  numbers  how rank 0, 1, ... ended"]
    for way, *plan in WAYS:
        found = [None] * world_size
        dist.all_gather_object(found, two_steps(x, way, *plan))
        trunks, ends, numbers = zip(*found)
        rows.append(f"{way:<23} {', '.join(trunks):<17} {max(numbers):<8} {', '.join(ends)}")
    rows += ["", *averages(x)]
    if rank == 0:
        print("\n".join(rows))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""Test a data-parallel step on two CPU ranks: it must give the weights of one process.

    python -m pytest docs/your_script/examples/ddp_testing.py

Set WITHOUT=average in the environment, and the test fails: each rank keeps its own gradient.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = 120  # After so many seconds a rank counts as hanging.


def step(wrap, x):
    """Take one step with the rows x -> the weights. The test checks this function."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    wrapped = wrap(model)  # DDP averages only while it exists, so keep it until backward is done.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped(x).square().mean().backward()
    optimizer.step()
    return model.weight.detach()


def batch():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def compare(rank, world_size):
    """Each rank calls this. If an assert fails here, the test raises the error again."""
    plain = os.environ.get("WITHOUT") == "average"
    wrap = (lambda model: model) if plain else DistributedDataParallel
    weights = step(wrap, batch()[rank::world_size])
    torch.testing.assert_close(weights, step(lambda model: model, batch()))


def on_rank(rank, function, world_size, file):
    """Start one rank. Spawned processes import this module, so the function is at top level."""
    group = {"rank": rank, "world_size": world_size, "timeout": timedelta(seconds=20)}
    dist.init_process_group("gloo", init_method=f"file://{file}", **group)
    try:
        function(rank, world_size)
    finally:
        dist.destroy_process_group()


def run(function, world_size, file):
    """Run a function on some ranks. Raise the error of the first that fails, or TimeoutError."""
    ranks = mp.spawn(on_rank, (function, world_size, file), nprocs=world_size, join=False)
    end = time.monotonic() + LIMIT
    try:
        while not ranks.join(timeout=1):
            if time.monotonic() > end:
                raise TimeoutError(f"a rank hangs after {LIMIT} s")
    finally:
        for process in ranks.processes:
            process.kill()


def test_two_ranks_take_the_step_of_one(tmp_path):
    run(compare, 2, tmp_path / "store")

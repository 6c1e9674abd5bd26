"""How long does a step take with DDP from scratch, naive and in buckets, against PyTorch's own?

Two ranks, one thread each. In every round each version takes some steps, in turn, so that all meet
the same noise; what counts are medians over the rounds, of the slower rank.

    python benchmarks/ddp_from_scratch.py
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")
from_scratch = importlib.import_module("03_ddp_spawn.from_scratch")

STEPS = 8  # of each version in each round
IMAGES = 120  # per rank, as in the stages on two ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = common.parse(parser, rounds=1).rounds
    print(f"2 ranks, {IMAGES} images each, {common.device_name()}, torch {torch.__version__}")
    print(f"{'milliseconds per step':26}   naive  buckets     DDP  naive/DDP  buckets/DDP")
    for net in ("ConvNet", "wide_net"):
        for cap in (None,) if net == "ConvNet" else (None, 4, 1):
            naive, buckets, ddp = common.on_ranks(2, measure, net, cap, rounds)[0]
            row = f"{net}, bucket_cap_mb={cap}"
            ratios = f"{naive / ddp:11.2f}{buckets / ddp:13.2f}"
            print(f"{row:26}{naive:8.2f}{buckets:9.2f}{ddp:8.2f}{ratios}", flush=True)


def measure(net, cap, rounds):
    """On a rank -> median milliseconds of a step of each version, of the slower rank."""
    make = stage1.ConvNet if net == "ConvNet" else common.wide_net
    nets = [make().to(memory_format=torch.channels_last) for _ in range(3)]
    versions = [
        from_scratch.NaiveDDP(nets[0]),
        from_scratch.BucketedDDP(nets[1], cap),
        DistributedDataParallel(nets[2], bucket_cap_mb=cap, broadcast_buffers=False),
    ]
    x, y = common.batch(IMAGES)
    seconds = [[time_steps(version, x, y) for version in versions] for _ in range(rounds + 1)]
    slower = torch.tensor(seconds[1:])  # the first round builds the buckets
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    return [1000 * statistics.median(column.tolist()) for column in slower.T]


def time_steps(model, x, y):
    """-> mean seconds of a step of forward, backward and gradient descent"""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (time.perf_counter() - started) / STEPS


if __name__ == "__main__":
    main()

"""How near do two ranks come to the limit, and what does each line of code bring?

The limit is a twin: the same two processes, the same steps, but nobody talks to anybody. Every
version runs stage 3's own `train_epoch` over batches in memory. In every round each version takes
its steps in turn, so that all meet the same noise; a share is the twin's time over the version's in
the same round. Printed are the median of the shares and the quarter and three-quarter marks.

    python benchmarks/limit.py
    python benchmarks/limit.py --batch-size 240
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
stage3 = importlib.import_module("03_ddp_spawn.train")
by_hand = importlib.import_module("03_ddp_spawn.by_hand")

CPU = torch.device("cpu")
VERSIONS = {  # name -> how the model is wrapped; indented: beside broadcast_buffers=False
    "twin: no communication": lambda model: model,
    "DDP, as it comes": DistributedDataParallel,
    "broadcast_buffers=False": lambda model: ddp(model),
    "  gradient_as_bucket_view": lambda model: ddp(model, gradient_as_bucket_view=True),
    "  static_graph": lambda model: ddp(model, static_graph=True),
    "  main thread on one core": lambda model: ddp(model),
    "buckets by hand": by_hand.BucketedDDP,
}


def ddp(model, **options):
    return DistributedDataParallel(model, broadcast_buffers=False, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=120, help="images per step, both ranks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each version in each round")
    args = parser.parse_args()
    if not hasattr(os, "sched_setaffinity"):
        parser.error("it ties threads to cores, which only Linux lets it do")
    if args.batch_size < 2 or args.batch_size % 2 or min(args.rounds, args.steps) < 2:
        parser.error("--batch-size has to be even, --rounds and --steps at least 2")
    name = stage3.device_name("cpu")
    print(f"2 ranks, {args.batch_size} images per step, {name}, torch {torch.__version__}")
    print(f"{'':28}{'ms per step':>12}{'share of the limit':>22}")
    rounds = by_hand.on_ranks(2, measure, args)[0]
    for version, times in rounds.items():
        shares = [twin / own for twin, own in zip(rounds["twin: no communication"], times)]
        low, middle, high = statistics.quantiles(shares, n=4)
        milliseconds = 1000 * statistics.median(times) / args.steps
        print(f"{version:28}{milliseconds:12.2f}{middle:12.2f} ({low:.2f}-{high:.2f})")


def measure(args):
    """On a rank -> {version: [seconds of a round, the slower rank's]}, the first round left out."""
    args.amp = "off"
    random = torch.Generator().manual_seed(dist.get_rank())
    shape = (args.steps, args.batch_size // 2, 28, 28)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    labels = torch.randint(10, shape[:2], generator=random)
    loader, everywhere = list(zip(images, labels)), os.sched_getaffinity(0)
    runs = {name: prepare(wrap, args) for name, wrap in VERSIONS.items()}
    seconds = {name: [] for name in VERSIONS}
    for _ in range(args.rounds + 1):
        for name, (model, *others) in runs.items():
            one_core = {sorted(everywhere)[dist.get_rank() % len(everywhere)]}
            os.sched_setaffinity(0, one_core if "one core" in name else everywhere)
            dist.barrier()
            started = time.perf_counter()
            stage3.train_epoch(model, loader, *others, CPU, args)
            seconds[name].append(time.perf_counter() - started)
    slower = torch.tensor(list(seconds.values()))
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    return dict(zip(VERSIONS, slower[:, 1:].tolist()))


def prepare(wrap, args):
    """-> wrapped model, optimizer, schedule, scaler, as stage 3 makes them"""
    torch.manual_seed(0)
    model = stage3.ConvNet().to(memory_format=torch.channels_last)
    steps = args.steps * (args.rounds + 1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return (wrap(model), *stage3.sgd_one_cycle(model, 0.01, steps), scaler)


if __name__ == "__main__":
    main()

"""Rank 777 of 1,024 without a cluster: what it reads, sends, holds, and when more do not pay.

Counted: samples, buckets, bytes, operations. The model is made on the device "meta", whose tensors
have a shape and no memory. Sampler, Adam and the count of operations are PyTorch's own; buckets are
filled as in stage 3's from_scratch.py. Tests compare these with real ranks. Assumed: what a device
computes and a link sends in a second. From both follows the time of a step, by the formulas in
benchmarks/scaling.py. docs/at_scale.md has the sources, and what is not in the model.

    python -m benchmarks.at_scale
    python -m benchmarks.at_scale --model vit_l_16 --ranks 64 --rank 63 --batch 512 --link NVLink
"""

import argparse
import importlib
import math
from collections import namedtuple
from functools import partial
from unittest.mock import patch

import torch
import torchvision
from torch.utils.data import DistributedSampler
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import common
from benchmarks.scaling import overlapped, ring

stage3 = importlib.import_module("03_ddp_spawn.train")
from_scratch = importlib.import_module("03_ddp_spawn.from_scratch")

MIB = 2**20
MOST = 4096
IMAGENET_SHAPE = (3, 224, 224)
IMAGENET_IMAGES = 1_281_167
MODELS = {  # what makes it, the shape of an image, how many images there are to train on
    "convnet": (stage3.make_model, (1, 28, 28), 60_000),
    "resnet50": (torchvision.models.resnet50, IMAGENET_SHAPE, IMAGENET_IMAGES),
    "vit_l_16": (torchvision.models.vit_l_16, IMAGENET_SHAPE, IMAGENET_IMAGES),
}
# Assumed: the seconds that a step of a ring and of a tree takes to start, and the bytes per second
# that a rank sends. The seconds are those of NCCL's own model for its protocol Simple.
Link = namedtuple("Link", "ring_step tree_step bandwidth")
LINKS = {
    "10Gb/s": Link(9.6e-6, 50e-6, 1.25e9),
    "100Gb/s": Link(9.6e-6, 50e-6, 12.5e9),
    "NVLink": Link(3.4e-6, 28e-6, 235e9),
}
# Bytes of gradients, and the part of a step's operations after which all of them are computed.
Bucket = namedtuple("Bucket", "bytes done")


def main() -> None:
    args = parse()
    shapes, buckets, flops = count(args.model)
    print(f"rank {args.rank} of {args.ranks:,}: {args.model}, {args.batch:,} images per step")
    print(reads(args))
    print(sends(buckets, args.ranks))
    print()
    print(holds(shapes, args))
    for link in args.link:
        print(f"\n{link}, {flops / 1e9:.3g} GFLOP per image at {args.tflops:g} TFLOP/s per rank")
        print(speed_table(predict(flops, buckets, args, LINKS[link])))


def parse() -> argparse.Namespace:
    parser = common.flags(__doc__)
    add = parser.add_argument
    add("--rank", type=int, default=777, help="which one (777)")
    add("--ranks", type=int, default=1024, help=f"up to {MOST} (1024)")
    add("--batch", type=int, default=8192, help="images per step, over all ranks (8192)")
    add("--model", choices=MODELS, default="resnet50")
    add("--link", choices=LINKS, nargs="+", default=["100Gb/s", "NVLink"])
    add("--tflops", type=float, default=60, help="TFLOP/s that a rank reaches (60)")
    add("--tree", action="store_true", help="all-reduce along a tree, not in a ring")
    add("--weak", action="store_true", help="the batch grows with the ranks (weak scaling)")
    args = common.parse(parser, tflops=1e-3)
    if not 0 <= args.rank < args.ranks <= MOST:
        parser.error(
            f"--rank {args.rank} of --ranks {args.ranks}: from 0, and at most {MOST} ranks"
        )
    if args.batch < 1 or args.batch % args.ranks:
        parser.error(f"--batch {args.batch} has to be divisible by --ranks {args.ranks}")
    return args


# ---------------------------------------------------------------- counted


def count(name: str) -> tuple[list[torch.Size], list[Bucket], int]:
    """-> shapes of the weights, DDP's buckets as they leave, operations per image."""
    make, image, _ = MODELS[name]
    # trunc_normal_ looks at the numbers that it draws, and on "meta" there are none.
    with torch.device("meta"), patch.object(torch.nn.init, "trunc_normal_"):
        model = make()
    weights = list(model.parameters())
    done = {}  # the operations after which a weight has its gradient, in the order of backward
    with FlopCounterMode(display=False) as counter:

        def note(i: int, _) -> None:
            done[i] = counter.get_total_flops()

        for i, weight in enumerate(weights):
            weight.register_post_accumulate_grad_hook(partial(note, i))
        model(torch.rand(2, *image, device="meta")).sum().backward()
    flops = counter.get_total_flops()
    sizes = [weight.nbytes for weight in weights]
    buckets = []
    for bucket in from_scratch.assign(list(done), sizes, MIB, 25 * MIB):  # DDP's default caps
        size = sum(sizes[i] for i in bucket)
        last = max(done[i] for i in bucket)
        buckets.append(Bucket(size, last / flops))
    return [weight.shape for weight in weights], buckets, flops // 2


def shard(shape: torch.Size, rank: int, ranks: int) -> list[int]:
    """-> the shape of what fully_shard leaves a rank: rows; the last ranks may get none."""
    rows = math.ceil(shape[0] / ranks)
    return [min(rows, max(0, shape[0] - rank * rows)), *shape[1:]]


def held(shapes: list) -> tuple[int, int, int]:
    """-> bytes of weights of these shapes, of their gradients, of Adam's state after a step."""
    weights = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    adam = torch.optim.Adam(weights)
    adam.step()
    of_weights = sum(weight.nbytes for weight in weights)
    of_gradients = sum(weight.grad.nbytes for weight in weights)
    of_adam = 0
    for state in adam.state.values():
        of_adam += sum(tensor.nbytes for tensor in state.values())
    return of_weights, of_gradients, of_adam


def reads(args: argparse.Namespace) -> str:
    _, _, images = MODELS[args.model]
    per_step = args.batch // args.ranks
    sampler = DistributedSampler(range(images), args.ranks, args.rank, seed=0)
    first = ", ".join(str(image) for image in list(sampler)[:5])
    steps = math.ceil(len(sampler) / per_step)
    padding = f"{sampler.total_size - images} images are read twice"
    return f"reads  images {first}, ...: {per_step} per step, {steps:,} steps per epoch; {padding}"


def sends(buckets: list[Bucket], ranks: int) -> str:
    sent = 2 * (ranks - 1) / ranks * sum(bucket.bytes for bucket in buckets) / MIB
    sizes = ", ".join(f"{bucket.bytes / MIB:.1f}" for bucket in buckets[:5])
    more = f" and {len(buckets) - 5} more" if len(buckets) > 5 else ""
    return f"sends  {sent:,.2f} MiB per step in rings, {len(buckets)} bucket(s): {sizes} MiB{more}"


def holds(shapes: list[torch.Size], args: argparse.Namespace) -> str:
    weights, gradients, adam = held(shapes)
    # ZeRO: one flat shard with as many numbers on each rank.
    numbers = sum(shape.numel() for shape in shapes)
    weights_shard, gradients_shard, adam_shard = held([[math.ceil(numbers / args.ranks)]])
    rows = {
        "DDP": (weights, gradients, adam),
        "ZeRO-1": (weights, gradients, adam_shard),
        "ZeRO-2": (weights, gradients_shard, adam_shard),
        "ZeRO-3": (weights_shard, gradients_shard, adam_shard),
    }
    for rank in sorted({0, args.rank, args.ranks - 1}):
        own = [shard(shape, rank, args.ranks) for shape in shapes]
        rows[f"fully_shard, rank {rank}"] = held(own)
    cells = []
    for name, row in rows.items():
        cells.append([name, *(f"{size / MIB:,.3f}" for size in (*row, sum(row)))])
    return common.table(["MiB, with Adam", "weights", "gradients", "Adam", "sum"], cells)


# ---------------------------------------------------------------- assumed


# A step on so many ranks, in seconds: the all-reduces after backward (sequential), or during it.
Row = namedtuple("Row", "ranks batch computing averaging sequential overlapped")


def predict(flops: int, buckets: list[Bucket], args: argparse.Namespace, link: Link) -> list[Row]:
    """Predict a step on 1, 2, 4, ... ranks, up to 4,096 and at most as many as there are images."""
    if args.tree:
        way = pipelined_tree
        latency = link.tree_step
    else:
        way = ring
        latency = link.ring_step
    rows = []
    for n in (2**i for i in range(MOST.bit_length())):
        batch = args.batch
        if args.weak:
            batch = args.batch // args.ranks * n
        if n > batch:
            break
        computing = flops * batch / n / (args.tflops * 1e12)
        each = [way(n, bucket.bytes, latency, link.bandwidth) for bucket in buckets]
        full = [computing * bucket.done for bucket in buckets]
        averaging = sum(each)
        sequential = computing + averaging
        rows.append(Row(n, batch, computing, averaging, sequential, overlapped(full, each)))
    return rows


def pipelined_tree(n: int, size: int, latency: float, bandwidth: float) -> float:
    """Seconds of an all-reduce that goes up and down a tree in pieces.

    A piece passes 2 log2(n) links, each of which takes `latency` seconds to start. A rank sends the
    vector of `size` bytes at most twice, and the pieces travel at the same time.
    """
    if n == 1:
        return 0.0
    return 2 * math.ceil(math.log2(n)) * latency + 2 * size / bandwidth


def speed_table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        speed = speedup(row, rows[0])
        ms = [f"{1000 * seconds:,.2f}" for seconds in row[2:]]
        cells.append([f"{row.ranks:,}", f"{row.batch:,}", *ms, f"{speed:,.1f}"])
    head = ["ranks", "images", "computing", "all-reduce", "sequential", "overlapped, ms", "speedup"]
    pays = [after.ranks for before, after in zip(rows, rows[1:]) if speedup(after, before) >= 1.5]
    end = f"Doubling makes it at least 1.5 times as fast up to {max(pays, default=1):,} ranks."
    return f"{common.table(head, cells)}\n{end}"


def speedup(row: Row, other: Row) -> float:
    """How many times the images per second of the other, both with overlap."""
    return row.batch / row.overlapped / (other.batch / other.overlapped)


if __name__ == "__main__":
    main()

"""Rank 777 of 1,024 without a cluster: what it reads, sends and holds.

The model is made on the device "meta", whose tensors have a shape and no memory. Sampler and Adam
are PyTorch's own. Buckets are filled as in stage 3's from_scratch.py. Tests compare what is counted
with real ranks. docs/speed/at_scale.md explains the output.

    python -m benchmarks.at_scale
    python -m benchmarks.at_scale --model vit_l_16 --ranks 64 --rank 63 --batch 512
"""

import argparse
import importlib
import math
from functools import partial
from unittest.mock import patch

import torch
import torchvision
from torch.utils.data import DistributedSampler

from benchmarks import common

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


def main() -> None:
    args = parse()
    shapes, buckets = count(args.model)
    print(f"rank {args.rank} of {args.ranks:,}: {args.model}, {args.batch:,} images per step")
    print(reads(args))
    print(sends(buckets, args.ranks))
    print()
    print(holds(shapes, args))


def parse() -> argparse.Namespace:
    parser = common.flags(__doc__)
    add = parser.add_argument
    add("--rank", type=int, default=777, help="which one (777)")
    add("--ranks", type=int, default=1024, help=f"up to {MOST} (1024)")
    add("--batch", type=int, default=8192, help="images per step, over all ranks (8192)")
    add("--model", choices=MODELS, default="resnet50")
    args = common.parse(parser)
    if not 0 <= args.rank < args.ranks <= MOST:
        parser.error(
            f"--rank {args.rank} of --ranks {args.ranks}: from 0, and at most {MOST} ranks"
        )
    if args.batch < 1 or args.batch % args.ranks:
        parser.error(f"--batch {args.batch} has to be divisible by --ranks {args.ranks}")
    return args


def count(name: str) -> tuple[list[torch.Size], list[int]]:
    """-> shapes of the weights, bytes of DDP's buckets in the order in which they are sent."""
    make, image, _ = MODELS[name]
    # trunc_normal_ looks at the numbers that it draws, and on "meta" there are none.
    with torch.device("meta"), patch.object(torch.nn.init, "trunc_normal_"):
        model = make()
    weights = list(model.parameters())
    done = []  # the weights, in the order in which backward computes their gradients

    def note(i: int, _) -> None:
        done.append(i)

    for i, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(partial(note, i))
    model(torch.rand(2, *image, device="meta")).sum().backward()
    sizes = [weight.nbytes for weight in weights]
    buckets = []
    for bucket in from_scratch.assign(done, sizes, MIB, 25 * MIB):  # DDP's default caps
        buckets.append(sum(sizes[i] for i in bucket))
    return [weight.shape for weight in weights], buckets


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


def sends(buckets: list[int], ranks: int) -> str:
    sent = 2 * (ranks - 1) / ranks * sum(buckets) / MIB
    sizes = ", ".join(f"{size / MIB:.1f}" for size in buckets[:5])
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


if __name__ == "__main__":
    main()

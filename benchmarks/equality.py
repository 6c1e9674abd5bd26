"""Does every stage compute what one process computes? How far apart are they after 20 steps?

Every way to train runs the `train_epoch` of its stage from the same weights on the same 20 batches
of 24 images, split over its ranks or threads, with the stages' optimizer and schedule. The table
shows the largest difference of any parameter to stage 1, with BatchNorm frozen, synchronised over
the ranks (from scratch, since PyTorch's needs GPUs), and plain, which is what the stages use on a
CPU.

    python -m benchmarks.equality
"""

import importlib

import torch
import torch.distributed as dist
import torch.nn as nn

from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")
stage2 = importlib.import_module("02_dp.train")
threads = importlib.import_module("02_dp.from_scratch")
stage3 = importlib.import_module("03_ddp_spawn.train")
from_scratch = importlib.import_module("03_ddp_spawn.from_scratch")
batchnorm = importlib.import_module("03_ddp_spawn.batchnorm")
stage4 = importlib.import_module("04_ddp_torchrun.train")
stage5 = importlib.import_module("05_multinode.train")

CPU = common.CPU
NORMS = ("frozen", "synced", "plain")
DTYPES = (torch.float64, torch.float32)
STEPS, BATCH, LR = 20, 24, 0.01


def main() -> None:
    args = common.parse(common.flags(__doc__))
    torch.set_num_threads(1)
    about = f"Largest difference of a parameter to stage 1: {STEPS} steps, {BATCH} images, lr {LR}"
    about += f"\n{common.about()}"
    titles = ["BatchNorm", *(f"{norm}, {str(dtype)[6:]}" for dtype in DTYPES for norm in NORMS)]
    rows = []
    for way, distances in table().items():
        found = (distances.get((dtype, norm)) for dtype in DTYPES for norm in NORMS)
        rows.append([way, *("-" if distance is None else f"{distance:.0e}" for distance in found)])
    common.show(args, "equality", {"about": about, "titles": titles, "rows": rows}, report)


def report(results: dict) -> str:
    return f"{results['about']}\n{common.table(results['titles'], results['rows'])}"


def table(world_sizes: tuple[int, ...] = (2, 3)) -> dict[str, dict]:
    """-> {way: {(dtype, norm): the largest difference of a parameter to stage 1}}"""
    cases = [(dtype, norm) for dtype in DTYPES for norm in NORMS]
    alone = {case: train_alone(*case) for case in cases}
    found = {}
    for n in world_sizes:
        trained = {case: train_on_threads(*case, n) for case in cases if case[1] != "synced"}
        found[f"stage 2 from scratch, {n} threads"] = trained
    for n in world_sizes:
        for name, trained in common.on_ranks(n, train_in_all_ways)[0].items():
            found[f"{name}, {n} ranks"] = trained
    return {
        way: {case: batchnorm.distance(trained[case], alone[case]) for case in trained}
        for way, trained in found.items()
    }


def train_alone(dtype: torch.dtype, norm: str) -> list[torch.Tensor]:
    """Stage 1's epoch -> the parameters after it."""
    # In one process, plain BatchNorm already sees all there is to synchronise.
    model = make_model(dtype, "frozen" if norm == "frozen" else "plain")
    stage1.train_epoch(model, batches(), common.scheduled_sgd(model, LR, STEPS), CPU)
    return parameters(model)


def train_on_threads(dtype: torch.dtype, norm: str, devices: int) -> list[torch.Tensor]:
    """Stage 2's epoch, with the DataParallel that works on threads."""
    model = make_model(dtype, norm)
    dp_model = threads.DataParallel(model, [CPU] * devices)
    stage2.train_epoch(dp_model, batches(), common.scheduled_sgd(model, LR, STEPS), CPU)
    return parameters(model)


def train_in_all_ways() -> dict[str, dict]:
    """On one of several ranks: the epochs of stages 3 to 5, and of DDP from scratch."""
    stages = {"stage 3": stage3, "stage 4": stage4, "stage 5": stage5}
    ways = {name: (stage, common.ddp) for name, stage in stages.items()}
    ways |= {"stage 3, naive from scratch": (stage3, from_scratch.NaiveDDP)}
    ways |= {"stage 3, buckets from scratch": (stage3, from_scratch.BucketedDDP)}
    found = {}
    for name, (stage, wrap) in ways.items():
        found[name] = {}
        for dtype in DTYPES:
            for norm in NORMS:
                model = make_model(dtype, norm)
                optimizer = common.scheduled_sgd(model, LR, STEPS)
                scaler = torch.amp.GradScaler("cpu", enabled=False)
                loader = batches(dist.get_rank(), dist.get_world_size())
                stage.train_epoch(wrap(model), loader, optimizer, scaler, CPU, "off")
                found[name][dtype, norm] = parameters(model)
    return found


class FrozenBatchNorm(nn.BatchNorm2d):
    """Normalizes by its running statistics also in training, and leaves them as they are."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


def make_model(dtype: torch.dtype, norm: str) -> nn.Module:
    """The ConvNet with the same weights every time, and the wanted kind of BatchNorm in it."""
    torch.manual_seed(0)
    model = stage1.ConvNet()
    if norm == "frozen":
        for block in (model.block1, model.block2):
            block[1] = FrozenBatchNorm(block[1].num_features)
    if norm == "synced":
        batchnorm.convert(model)
    model.to(dtype)
    model.register_forward_pre_hook(to_the_type_of_its_weights)
    return model


def to_the_type_of_its_weights(model: nn.Module, inputs: tuple) -> tuple:
    return (inputs[0].to(model.linear.weight.dtype),)


def batches(rank: int = 0, world_size: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's shard of the same batches of random images and labels."""
    whole = common.batches(STEPS, BATCH)
    return [(x[rank::world_size], y[rank::world_size]) for x, y in whole]


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    main()

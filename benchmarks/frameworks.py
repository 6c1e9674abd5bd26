"""Is stage 3's training step quicker than Accelerate's and Fabric's, and if not, why not?

All ways train the same ConvNet on the same images with the same optimizer, in the same two
processes (ranks) of one thread each. The frameworks are used as their documentation shows: as they
come, and with the option that makes them quicker here ("no buffers" is broadcast_buffers=False).
Before anything is timed, all ways that communicate must have arrived at the same parameters. The
upper bound is the same two processes without communication.

In every round each way takes its steps once, so that all meet the same noise, and a ratio is one of
times from the same round. A time is the slower rank's. Printed are medians over the rounds and, in
brackets, the quarter and three-quarter marks. "ours again" is the same as ours: how far its ratio
is from 1 is how far noise alone takes one.

The second table shows what each way adds to plain DDP in the Python of a step. A model of one
parameter on one rank has next to nothing to compute and no rank to wait for: what is left is that.

    python benchmarks/frameworks.py
    python benchmarks/frameworks.py --batch-size 120 --results timings
"""

import argparse
import importlib
import os
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

try:
    import accelerate
    import lightning_fabric
    from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs
    from lightning_fabric.strategies import DDPStrategy
except ImportError as error:
    print(f"{error}: pip install accelerate lightning-fabric", file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")

CPU = common.CPU
BOUND, OURS, PLAIN = "no communication (upper bound)", "ours: stage 3", "plain DDP"
PHASES = ("data", "forward", "backward", "optimizer")
EPOCH = 500  # steps; so many of the tiny model's are timed at a time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=240, help="images per step, both ranks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each way in each round")
    parser.add_argument("--results", type=Path, help="folder for frameworks.json")
    args = common.parse(parser, batch_size=4, rounds=2, steps=2)
    if args.batch_size % 2:
        parser.error("--batch-size has to be even")
    versions = {"torch": torch.__version__, "accelerate": accelerate.__version__}
    versions |= {"lightning-fabric": lightning_fabric.__version__}
    about = f"2 ranks, {args.batch_size} images per step, {common.device_name()}, "
    about += ", ".join(map(" ".join, versions.items()))
    print(about, flush=True)

    difference, seconds = common.on_ranks(2, measure, args)[0]
    apart = f"after {args.steps} steps parameters differ by {difference:.0e}"
    if not seconds:
        sys.exit(f"benchmarks/frameworks.py: the ways do not compute the same: {apart}")
    print("all ways that communicate compute the same: " + (apart if difference else "bit for bit"))
    print(table_of_steps(seconds, args.steps))
    tiny = common.on_ranks(1, measure_tiny, args)[0]
    print(table_of_overheads(tiny, statistics.median(seconds[OURS]) / args.steps))
    if args.results:
        results = {"about": about, "device_name": common.device_name(), "versions": versions}
        results |= {"batch_size": args.batch_size, "rounds": args.rounds, "steps": args.steps}
        results |= {"largest_difference": difference, "seconds": seconds}
        results |= {"tiny_steps": EPOCH, "tiny_seconds": tiny}
        common.write_json(args.results / "frameworks.json", results)


# ---------------------------------------------------------------- the ways


def ours(task, wrap):
    """Stage 3's train_epoch, as it is. wrap: what makes a DDP model of a model."""
    model, optimizer, schedule = task.start()
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    rest = (task.shard_of_rank(), optimizer, scaler, CPU, "off")
    ddp_model = wrap(model)
    return model, lambda: stage3.train_epoch(ddp_model, *rest)[1].seconds()


def plain(task):
    """The frameworks' loop with neither framework."""
    model, optimizer, schedule = task.start()
    rest = (task.shard_of_rank(), optimizer, schedule, torch.Tensor.backward)
    return model, partial(train_epoch, ddp(model), *rest)


def with_accelerate(task, *handlers):
    """As in Accelerate's quick tour: everything is prepared, and backward is the accelerator's."""
    accelerator = accelerate.Accelerator(
        cpu=True,
        # The loader returns the batch of all ranks, and the schedule counts those; as it comes,
        # Accelerate would step the schedule once per rank.
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        kwargs_handlers=list(handlers),
    )
    model, optimizer, schedule = task.start()
    batch_size = dist.get_world_size() * task.per_rank
    loader = DataLoader(task.for_blocks(), batch_size, collate_fn=tuple)
    prepared = accelerator.prepare(model, loader, optimizer, schedule)
    return model, partial(train_epoch, *prepared, accelerator.backward)


def with_fabric(task, strategy):
    """As in Fabric's "Convert PyTorch code to Fabric": launch, set up, and Fabric's backward."""
    world_size = dist.get_world_size()
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=world_size, strategy=strategy)
    fabric.launch()  # finds that it is in a rank already
    model, optimizer, schedule = task.start()
    loader = DataLoader(task.for_sampler(), task.per_rank, collate_fn=tuple)
    fabric_loader = fabric.setup_dataloaders(loader)
    fabric_model, fabric_optimizer = fabric.setup(model, optimizer)
    rest = (fabric_loader, fabric_optimizer, schedule, fabric.backward)
    return model, partial(train_epoch, fabric_model, *rest)


def train_epoch(model, loader, optimizer, schedule, backward):
    """The loop that both frameworks' documentation shows, with what stage 3 measures in its own."""
    model.train()
    total_loss = torch.zeros(())
    watch = stage3.Stopwatch(CPU)
    for images, labels in loader:
        x = images.unsqueeze(1).float() / 255
        watch.lap("data")
        loss = F.cross_entropy(model(x), labels)
        watch.lap("forward")
        optimizer.zero_grad()
        backward(loss)
        watch.lap("backward")
        optimizer.step()
        schedule.step()
        total_loss += loss.detach()
        watch.lap("optimizer")
    dist.all_reduce(total_loss)
    return watch.seconds()


def ddp(model):
    return DistributedDataParallel(model, broadcast_buffers=False)


WAYS = {  # name -> function of a task that returns the bare model, and what trains it for an epoch
    BOUND: partial(ours, wrap=lambda model: model),
    OURS: partial(ours, wrap=ddp),
    "ours, DDP as it comes": partial(ours, wrap=DistributedDataParallel),
    "Accelerate": with_accelerate,
    "Accelerate, no buffers": lambda task: with_accelerate(
        task, DistributedDataParallelKwargs(broadcast_buffers=False)
    ),
    "Fabric": partial(with_fabric, strategy="ddp"),
    "Fabric, no buffers": lambda task: with_fabric(task, DDPStrategy(broadcast_buffers=False)),
    "ours again": partial(ours, wrap=ddp),
}
TINY_WAYS = {PLAIN: plain} | {name: WAYS[name] for name in (OURS, "Accelerate", "Fabric")}


class Task:
    """What all ways are given: a model, and the same images on each rank in each step."""

    def __init__(self, make_model, size, steps, per_rank, epochs):
        """size: height and width of an image. per_rank: images per rank and step."""
        self.make_model, self.per_rank, self.all_steps = make_model, per_rank, steps * epochs
        generator = torch.Generator().manual_seed(0)
        shape = (steps, dist.get_world_size(), per_rank)
        self.images = torch.randint(256, (*shape, *size), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(10, shape, generator=generator)

    def start(self):
        """-> model, optimizer, schedule, as stage 3 makes them: the same numbers every time"""
        torch.manual_seed(0)
        model = self.make_model().to(memory_format=torch.channels_last)
        return model, *common.sgd_one_cycle(model, 0.01, self.all_steps)

    def for_sampler(self):
        """For DistributedSampler, which is Fabric's and ours: ranks get image by image in turn."""
        images, labels = self.images.transpose(1, 2), self.labels.transpose(1, 2)
        return common.Digits(images.flatten(0, 2), labels.flatten(0, 2))

    def for_blocks(self):
        """For Accelerate, where the first rank gets the first part of a batch, and so on."""
        return common.Digits(self.images.flatten(0, 2), self.labels.flatten(0, 2))

    def shard_of_rank(self):
        """-> the loader of stage 3, without shuffling, which each framework does its own way"""
        images = self.for_sampler()
        sampler = DistributedSampler(images, shuffle=False)
        return DataLoader(images, self.per_rank, sampler=sampler, collate_fn=tuple)


# ---------------------------------------------------------------- on the ranks


def measure(args):
    """On a rank -> largest difference of parameters, {way: [seconds of a round, slower rank]}.

    The first round is not timed: after it the models are compared. If they differ, no times.
    """
    act_as_torchrun()
    task = Task(stage3.ConvNet, (28, 28), args.steps, args.batch_size // 2, args.rounds + 1)
    common.evaluate_once()
    models, epochs = {}, {}
    for name, way in WAYS.items():
        models[name], epochs[name] = way(task)
        epochs[name]()
    difference = largest_difference([model for name, model in models.items() if name != BOUND])
    if not difference < 1e-6:
        return difference, {}
    seconds = {name: [] for name in WAYS}
    for number in range(args.rounds):
        # The order is new in each round, the same on both ranks: none always follows the bound.
        for name in random.Random(number).sample(list(WAYS), len(WAYS)):
            seconds[name].append(seconds_of(epochs[name]))
    slower = torch.tensor(list(seconds.values()), dtype=torch.float64)
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    return difference, dict(zip(WAYS, slower.tolist()))


def measure_tiny(args):
    """On one rank, with a model of one parameter -> {way: [{phase: seconds} of each round]}"""
    act_as_torchrun()
    task = Task(one_parameter, (1, 1), EPOCH, 1, args.rounds + 1)
    epochs = {name: way(task)[1] for name, way in TINY_WAYS.items()}
    rounds = [[epoch() for epoch in epochs.values()] for _ in range(args.rounds + 1)]
    return dict(zip(TINY_WAYS, map(list, zip(*rounds[1:]))))


def one_parameter():
    return nn.Sequential(nn.Flatten(), nn.Linear(1, 10, bias=False))


def act_as_torchrun():
    """Set what torchrun sets: by that the frameworks know that they are in a rank, and in which.

    With OMP_NUM_THREADS they leave the number of threads alone.
    """
    rank, world_size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "frameworks"}
    os.environ |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {"OMP_NUM_THREADS": "1"}


def seconds_of(epoch):
    dist.barrier()
    started = time.perf_counter()
    epoch()
    return time.perf_counter() - started


@torch.no_grad()
def largest_difference(models):
    """-> by how much a parameter of any model, on any rank, differs from rank 0's first model"""
    all_parameters = torch.stack([flat(model.parameters()) for model in models])
    expected = all_parameters[0].clone()
    dist.broadcast(expected, src=0)
    difference = (all_parameters - expected).abs().max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    return difference.item()


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


# ---------------------------------------------------------------- what came out


def table_of_steps(seconds, steps):
    lines = [f"\n{'':30}{'ms per step':>12}{'time / ours':>20}{'share of the bound':>22}"]
    for way, own in seconds.items():
        to_ours = quartiles([mine / time for mine, time in zip(own, seconds[OURS])])
        to_bound = quartiles([bound / mine for mine, bound in zip(own, seconds[BOUND])])
        milliseconds = 1000 * statistics.median(own) / steps
        lines.append(f"{way:30}{milliseconds:12.2f}{to_ours:>20}{to_bound:>22}")
    return "\n".join(lines)


def quartiles(numbers, form=".2f"):
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def table_of_overheads(tiny, step):
    """tiny: {way: [{phase: seconds} per round]}. step: seconds of one of ours, for comparison."""
    headings = "".join(f"{phase:>10}" for phase in PHASES)
    lines = [f"\n{'microseconds per step':24}{headings}{'in all':>22}{'of our step':>13}"]
    for way, rounds in tiny.items():
        own = [in_phases(phases) for phases in rounds]
        if way != PLAIN:  # more than plain DDP in the same round
            own = [[a - b for a, b in zip(*pair)] for pair in zip(own, map(in_phases, tiny[PLAIN]))]
        sign = "" if way == PLAIN else "+"
        cells = [f"{statistics.median(phase):{sign}10.0f}" for phase in zip(*own)]
        total = [sum(phases) for phases in own]
        cells.append(f"{quartiles(total, sign + '.0f'):>22}")
        cells.append(f"{statistics.median(total) / 1e6 / step:{sign}13.1%}")
        lines.append(f"{way:24}{''.join(cells)}")
    return "\n".join(lines)


def in_phases(seconds):
    """Seconds of an epoch -> microseconds of a step, per phase; stage 3 cuts backward in two."""
    seconds = seconds | {"backward": seconds["backward"] + seconds.get("exposed", 0)}
    return [1e6 * seconds[phase] / EPOCH for phase in PHASES]


if __name__ == "__main__":
    main()

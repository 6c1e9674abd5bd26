"""Is stage 3's training step quicker than Accelerate's and Fabric's, and if not, why not?

All ways train the same ConvNet on the same images with the same optimizer, in the same two
processes (ranks) of one thread each. The frameworks are used as their documentation shows: as they
come, and with the option that makes them quicker here ("no buffers" is broadcast_buffers=False).
Before anything is timed, all ways that communicate must have arrived at the same parameters. "ours
again" is the same as ours: its ratio shows what noise alone does. A time is the slower rank's.

    python -m benchmarks.frameworks
    python -m benchmarks.frameworks --batch-size 120
"""

import importlib
import os
import statistics
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
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

from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")

CPU = common.CPU
BOUND, OURS = "no communication (upper bound)", "ours: stage 3"


def main():
    parser = common.flags(__doc__, batch_size=240, rounds=12, steps=40)
    args = common.parse(parser, batch_size=4, rounds=2, steps=2)
    if args.batch_size % 2:
        parser.error("--batch-size has to be even")
    versions = f"accelerate {accelerate.__version__}, "
    versions += f"lightning-fabric {lightning_fabric.__version__}"
    about = f"2 ranks, {args.batch_size} images per step, {common.about()}, {versions}"
    difference, seconds = common.on_ranks(2, measure, args)[0]
    if not seconds:
        sys.exit(f"frameworks: the ways do not compute the same: {difference:.0e} apart")
    results = {"about": about, "steps": args.steps}
    results |= {"largest_difference": difference, "seconds": seconds}
    common.show(args, "frameworks", results, report)


# ---------------------------------------------------------------- the ways


def ours(task, wrap):
    """Stage 3's train_epoch, as it is. wrap: what makes a DDP model of a model."""
    model, optimizer, schedule = task.start()
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    images = task.for_sampler()
    sampler = DistributedSampler(images, shuffle=False)  # each framework shuffles its own way
    loader = DataLoader(images, task.per_rank, sampler=sampler, collate_fn=tuple)
    rest = (loader, optimizer, scaler, CPU, "off")
    return model, partial(stage3.train_epoch, wrap(model), *rest)


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


WAYS = {  # name -> function of a task that returns the bare model, and what trains it for an epoch
    BOUND: partial(ours, wrap=lambda model: model),
    OURS: partial(ours, wrap=common.ddp),
    "ours, DDP as it comes": partial(ours, wrap=DistributedDataParallel),
    "Accelerate": with_accelerate,
    "Accelerate, no buffers": lambda task: with_accelerate(
        task, DistributedDataParallelKwargs(broadcast_buffers=False)
    ),
    "Fabric": partial(with_fabric, strategy="ddp"),
    "Fabric, no buffers": lambda task: with_fabric(task, DDPStrategy(broadcast_buffers=False)),
    "ours again": partial(ours, wrap=common.ddp),
}


class Task:
    """What all ways are given: a model, and the same images on each rank in each step."""

    def __init__(self, steps, per_rank, epochs):
        """per_rank: images per rank and step."""
        self.per_rank, self.all_steps = per_rank, steps * epochs
        made = common.digits(steps * dist.get_world_size() * per_rank)
        shape = (steps, dist.get_world_size(), per_rank)
        self.images = made.data.view(*shape, 28, 28)
        self.labels = made.targets.view(shape)

    def start(self):
        """-> model, optimizer, schedule, as stage 3 makes them: the same numbers every time"""
        torch.manual_seed(0)
        model = stage3.ConvNet().to(memory_format=torch.channels_last)
        return model, *common.sgd_one_cycle(model, 0.01, self.all_steps)

    def for_sampler(self):
        """For DistributedSampler, which is Fabric's and ours: ranks get image by image in turn."""
        images, labels = self.images.transpose(1, 2), self.labels.transpose(1, 2)
        return common.Digits(images.flatten(0, 2), labels.flatten(0, 2))

    def for_blocks(self):
        """For Accelerate, where the first rank gets the first part of a batch, and so on."""
        return common.Digits(self.images.flatten(0, 2), self.labels.flatten(0, 2))


# ---------------------------------------------------------------- on the ranks


def measure(args):
    """On a rank -> largest difference of parameters, {way: [seconds of a round, slower rank]}.

    After an epoch that is not timed the models are compared. If they differ, there are no times.
    """
    act_as_torchrun()
    task = Task(args.steps, args.batch_size // 2, args.rounds + 2)
    common.evaluate_once()
    models, epochs = {}, {}
    for name, way in WAYS.items():
        models[name], train = way(task)
        epochs[name] = partial(seconds_of, train)
        train()
    difference = largest_difference([model for name, model in models.items() if name != BOUND])
    if not difference < 1e-6:
        return difference, {}
    seconds = common.in_turns(args.rounds, epochs)
    slower = torch.tensor(list(seconds.values()), dtype=torch.float64)
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    return difference, dict(zip(WAYS, slower.tolist()))


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
    vectors = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    expected = vectors[0].clone()
    dist.broadcast(expected, src=0)
    difference = (torch.stack(vectors) - expected).abs().max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    return difference.item()


# ---------------------------------------------------------------- what came out


def report(results):
    """By how much the parameters of the ways differ, and a line per way."""
    difference, seconds = results["largest_difference"], results["seconds"]
    apart = f"{difference:.0e} apart" if difference else "bit for bit"
    rows = []
    for way, own in seconds.items():
        to_ours = [mine / time for mine, time in zip(own, seconds[OURS])]
        to_bound = [bound / mine for mine, bound in zip(own, seconds[BOUND])]
        milliseconds = 1000 * statistics.median(own) / results["steps"]
        ratios = common.deciles(to_ours), common.deciles(to_bound)
        rows.append([way, f"{milliseconds:.2f}", *ratios])
    table = common.table(["", "ms per step", "time / ours", "share of the bound"], rows)
    return f"{results['about']}\nall ways that communicate compute the same: {apart}\n{table}"


if __name__ == "__main__":
    main()

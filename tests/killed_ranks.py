"""What ranks do in tests/test_snapshots.py: in its own file, since spawned processes import it."""

import contextlib
import importlib
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F

stage5 = importlib.import_module("05_multinode.train")
CPU = torch.device("cpu")


class Killed(Exception):
    """The end of a process, as far as what it held in memory goes."""


class WithDropout(stage5.ConvNet):
    """A model that draws random numbers in every step, other ones on every rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(100 + dist.get_rank())

    def forward(self, x):
        return super().forward(F.dropout(x, 0.1, self.training))


def settings(folder: Path, name: str, data: Path, **more) -> SimpleNamespace:
    """The flags of a short run: 2 epochs of 5 steps, a snapshot after each of them."""
    flags = {"epochs": 2, "batch_size": 24, "lr": 0.02, "seed": 0, "amp": "off", "data": data}
    flags |= {"device": "cpu", "threads": 1, "workers": 0, "timeout": 60, "load": None}
    flags |= {"tensorboard": None, "target_accuracy": None, "start": 0.0, "hosts": 1}
    flags |= {"world_size": dist.get_world_size(), "record": folder / name}
    flags |= {"checkpoint": folder / f"{name}.pt", "snapshot": folder / f"{name}.snapshot"}
    return SimpleNamespace(**flags | {"snapshot_every": 1} | more)


def train(args: SimpleNamespace, kill_after: int | None = None, kill_before: bool = False) -> int:
    """Train, or be killed before or after a snapshot is written -> how many were asked for."""
    count = itertools.count(1)
    save = stage5.Run.save

    def save_or_die(run, *where):
        number = next(count)
        if number == kill_after and kill_before:
            raise Killed
        save(run, *where)
        if number == kill_after:
            raise Killed

    stage5.ConvNet, plain = WithDropout, stage5.ConvNet
    stage5.Run.save = save_or_die
    try:
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            stage5.train(args, CPU, dist.get_rank(), dist.get_world_size())
    finally:
        stage5.Run.save, stage5.ConvNet = save, plain
    return next(count) - 1


def kill_everywhere(folder: Path, data: Path, amp: str) -> dict:
    """On each rank: one undisturbed run, then one for each place to be killed at.

    Returns {(snapshot, before it was written?): distance to the undisturbed run}.
    """
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    undisturbed = settings(folder, f"undisturbed-{amp}", data, amp=amp)
    snapshots = train(undisturbed)
    found = {}
    for place in itertools.product(range(1, snapshots + 1), (False, True)):
        args = settings(folder, f"killed-{amp}-{place[0]}-{place[1]}", data, amp=amp)
        with contextlib.suppress(Killed):
            train(args, *place)
        dist.barrier()
        train(args)
        dist.barrier()
        found[place] = distance(undisturbed.checkpoint, args.checkpoint)
    return found


def kill_again_and_again(folder: Path, data: Path, lives: list[list[tuple]]) -> list[float]:
    """On each rank: for each list of places, a run that is killed at one after the other."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    undisturbed = settings(folder, "undisturbed", data)
    train(undisturbed)
    found = []
    for number, places in enumerate(lives):
        args = settings(folder, f"often-{number}", data)
        for place in places:
            with contextlib.suppress(Killed):
                train(args, *place)
            dist.barrier()
        train(args)
        dist.barrier()
        found.append(distance(undisturbed.checkpoint, args.checkpoint))
    return found


def distance(one: Path, other: Path) -> float:
    """The largest difference in a tensor of two checkpoints, as a part of its largest number."""
    models = [torch.load(path, weights_only=True)["model"] for path in (one, other)]
    pairs = [(models[0][name].double(), models[1][name].double()) for name in models[0]]
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)

"""What ranks do in tests/test_snapshots.py: in its own file, since spawned processes import it."""

import contextlib
import importlib
import io
import itertools
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset, TensorDataset

resume = importlib.import_module("05_multinode.resume")
stage5 = importlib.import_module("05_multinode.train")
CPU = torch.device("cpu")


# ---------------------------------------------------------------- resume.py, by exceptions


class WithDropout(stage5.ConvNet):
    """A model that draws random numbers in every step, other ones on every rank."""

    def forward(self, x):
        return super().forward(F.dropout(x, 0.1, self.training))


class Witness(nn.Module):
    """A model that remembers the first pixel of each image that it has seen, batch by batch."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(28 * 28, 10), []

    def forward(self, x):
        self.seen.append((255 * x[:, 0, 0, 0]).round().int().tolist())
        return self.linear(x.flatten(1))


def flags(snapshot: Path, amp: str = "off") -> SimpleNamespace:
    """Those of a short run of resume.py: 2 epochs of 5 steps for 120 images."""
    values = {"epochs": 2, "batch_size": 24, "lr": 0.02, "seed": 0, "amp": amp, "every": 1}
    return SimpleNamespace(snapshot=snapshot, **values)


def live(args: SimpleNamespace, data: Dataset, places: list[tuple] = ()) -> dict:
    """A run that is killed at one place after the other, and resumed -> the model's state_dict."""
    for place in (*places, None):
        torch.manual_seed(0)
        model = WithDropout()
        with contextlib.suppress(resume.Killed):
            resume.run(args, CPU, data, model, place)
        dist.barrier()
    return model.state_dict()


def kill(folder: Path, data: Path, amp: str, lives: list[list[tuple]]) -> list[float]:
    """On each rank: an undisturbed run, then one for each life -> their distances to the first."""
    data = digits(data)
    undisturbed = live(flags(folder / "undisturbed", amp), data)
    found = []
    for number, places in enumerate(lives):
        state = live(flags(folder / f"life {number}", amp), data, places)
        found.append(difference(undisturbed, state))
    return found


def resume_on_nodes_without_a_shared_disk(folder: Path, data: Path) -> tuple[int, float]:
    """Two ranks, each a node of its own, whose snapshots differ -> steps done, distance at the end.

    Rank 0 finds the snapshot of step 3, rank 1 that of step 7: all have to resume from step 7.
    """
    data, rank = digits(data), dist.get_rank()
    os.environ["LOCAL_RANK"] = "0"
    undisturbed = live(flags(folder / "undisturbed"), data)
    for step, number in ((3, 0), (7, 1)):
        torch.manual_seed(0)
        with contextlib.suppress(resume.Killed):
            resume.run(flags(folder / f"disk {number}"), CPU, data, WithDropout(), (step, "after"))
        dist.barrier()
    torch.manual_seed(0)
    model = WithDropout()
    done = resume.run(flags(folder / f"disk {rank}"), CPU, data, model)
    return done, difference(undisturbed, model.state_dict())


def digits(folder: Path) -> TensorDataset:
    train_set, _ = stage5.load_mnist(folder)
    return TensorDataset(train_set.data, train_set.targets)


def images_seen(snapshot: Path, place: tuple | None) -> list[list[int]]:
    """Run until the place, or to the end -> the images that this rank has trained on, by step."""
    images = torch.zeros(120, 28, 28, dtype=torch.uint8)
    images[:, 0, 0] = torch.arange(120)
    model = Witness()
    with contextlib.suppress(resume.Killed):
        data = TensorDataset(images, torch.arange(120) % 10)
        resume.run(flags(snapshot), CPU, data, model, place)
    return model.seen[2:]  # the first two are the passes of settle


# ---------------------------------------------------------------- train.py, by SIGKILL


def train(folder: Path, data: Path, amp: str, place: tuple | None = None) -> None:
    """Train stage 5 for 3 epochs of 5 steps. place: (rank, what, count); that rank dies there.

    rank: 0, or -1 for the last one.
    """
    files = {name: folder / name for name in ("checkpoint", "snapshot")}
    values = {"epochs": 3, "batch_size": 24, "lr": 0.02, "seed": 0, "amp": amp, "data": data}
    values |= {"device": "cpu", "threads": 1, "workers": 0, "record": folder}
    if place and place[0] % dist.get_world_size() == dist.get_rank():
        die_at(*place[1:])
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        stage5.train(SimpleNamespace(**values, **files), CPU)


def die_at(what: str, count: int) -> None:
    """This process gets SIGKILL at the count-th time of what: a step, or a moment of saving."""
    number, save, replace = itertools.count(1), torch.save, os.replace

    def due() -> bool:
        return next(number) == count

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def half(state: dict, file: Path | io.BytesIO, **options) -> None:
        if isinstance(file, str | Path) and due():  # not what is pickled to be broadcast
            image = io.BytesIO()
            save(state, image)
            Path(file).write_bytes(image.getvalue()[: image.tell() // 2])
            die()
        save(state, file, **options)

    def renamed(source: Path, target: Path) -> None:
        last = due()
        if last and what == "before renaming":
            die()
        replace(source, target)
        if last:
            die()

    if what == "step":
        register_optimizer_step_post_hook(lambda *_: die() if due() else None)
    elif what == "amid writing":
        torch.save = half
    else:
        os.replace = renamed


# ---------------------------------------------------------------- comparing


def distance(one: Path, other: Path) -> float:
    """The largest difference in a tensor of two checkpoints, as a part of its largest number."""
    return difference(*(torch.load(path, weights_only=True)["model"] for path in (one, other)))


def difference(one: dict, other: dict) -> float:
    pairs = [(one[name].double(), other[name].double()) for name in one]
    found = [(a - b).abs().max() / a.abs().max().clamp(min=1e-30) for a, b in pairs]
    return torch.stack(found).max().item()  # nan if there is one

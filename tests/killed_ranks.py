"""What ranks do in tests/test_snapshots.py: in its own file, since spawned processes import it."""

import contextlib
import importlib
import io
import itertools
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

resume = importlib.import_module("05_multinode.resume")
stage5 = importlib.import_module("05_multinode.train")
CPU = torch.device("cpu")


# ---------------------------------------------------------------- resume.py


def resume_from_the_newest(folder: Path) -> tuple[int, float]:
    """Rank 0's disk has step 3's snapshot, rank 1's that of step 7 -> (steps done, distance)."""
    undisturbed = resume.weights_of(folder / "undisturbed")
    own = folder / f"disk {dist.get_rank()}"
    for step in (7, 3):
        resume.train_to(folder / f"{step}", (step, "after"))
        dist.barrier()
    shutil.copy(folder / ("7" if dist.get_rank() else "3"), own)
    done = resume.Training(own).done
    return done, resume.distance(resume.train_to(own).weights(), undisturbed)


# ---------------------------------------------------------------- train.py, by SIGKILL


def train(folder: Path, data: Path, amp: str, place: tuple | None = None) -> None:
    """Train stage 5 for 3 epochs of 5 steps. place: (rank, what, count); that rank dies there.

    rank: 0, or -1 for the last one.
    """
    files = {name: folder / name for name in ("checkpoint", "snapshot")}
    values = {"epochs": 3, "batch_size": 24, "lr": 0.02, "seed": 0, "amp": amp, "data": data}
    values |= {"device": "cpu", "threads": 1, "workers": 0, "record": folder / "runs.jsonl"}
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

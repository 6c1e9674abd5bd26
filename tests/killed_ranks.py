"""What ranks do in tests/test_snapshots.py: in its own file, since spawned processes import it."""

import contextlib
import importlib
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


def stops() -> bool:
    """Only rank 1 was told to stop -> does this rank stop?"""
    signals = [signal.SIGTERM] if dist.get_rank() == 1 else []
    return resume.any_rank(signals, dist.group.WORLD)


# ---------------------------------------------------------------- train.py, by SIGKILL


def train(folder: Path, data: Path, amp: str, last_step: int = 0, lr: float = 0.02) -> None:
    """Train stage 5 for 3 epochs of 5 steps. The last rank gets SIGKILL after its last_step."""
    args = SimpleNamespace(
        epochs=3,
        batch_size=24,
        lr=lr,
        device="cpu",
        amp=amp,
        threads=1,
        workers=0,
        seed=0,
        data=data,
        snapshot=folder / "snapshot",
        checkpoint=folder / "checkpoint",
        record=folder / "runs.jsonl",
    )
    if last_step and dist.get_rank() == dist.get_world_size() - 1:
        steps = itertools.count(1)
        register_optimizer_step_post_hook(
            lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(steps) == last_step else None
        )
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        stage5.train(args, CPU)


def save_again_and_again(path: Path) -> None:
    """Save snapshots of more and more epochs until something ends this process."""
    state = {"model": torch.nn.Linear(1000, 1000)}
    for epochs in itertools.count(1):
        stage5.save_snapshot(path, {}, [{}] * epochs, state)


# ---------------------------------------------------------------- comparing


def distance(one: Path, other: Path) -> float:
    """The largest difference in a tensor of two checkpoints, as a part of its largest number."""
    return difference(*(torch.load(path, weights_only=True)["model"] for path in (one, other)))


def difference(one: dict, other: dict) -> float:
    pairs = [(one[name].double(), other[name].double()) for name in one]
    found = [(a - b).abs().max() / a.abs().max().clamp(min=1e-30) for a, b in pairs]
    return torch.stack(found).max().item()  # nan if there is one

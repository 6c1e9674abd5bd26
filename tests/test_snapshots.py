"""Stage 5's snapshots: killed anywhere and started again, a run ends as if nothing had happened.

train.py saves one after every epoch, resume.py after every step, or when it is told to stop.
"""

import argparse
import importlib
import itertools
import os
import signal

import killed_ranks
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import LINUX, draw_digits
from killed_ranks import distance

from benchmarks.common import on_ranks

resume = importlib.import_module("05_multinode.resume")
stage5 = importlib.import_module("05_multinode.train")


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """120 digits to train on and 30 to test on."""
    return draw_digits(tmp_path_factory.mktemp("few"), 120, 30)


@pytest.fixture
def alone():
    """The only rank of a process group, in this process: starting one would take seconds."""
    with stage5.process_group(
        torch.device("cpu"), 60, store=dist.HashStore(), rank=0, world_size=1
    ):
        yield


# ---------------------------------------------------------------- train.py: after every epoch


@LINUX
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ranks", "amp", "lives"),
    [
        (2, "off", [(8, 1)]),
        pytest.param(2, "off", [(3, 0), (7, 1), (8, 2)], marks=pytest.mark.slow),
        pytest.param(1, "fp16", [(8, 1)], marks=pytest.mark.slow),
    ],
)
def test_killed_and_started_again_ends_with_the_same_weights(
    tmp_path, few_digits, monkeypatch, ranks, amp, lives
):
    """lives: the step after which a rank is killed, and the epochs in the snapshot then."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    on_ranks(ranks, killed_ranks.train, undisturbed, few_digits, amp)
    for step, epochs in lives:
        with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
            on_ranks(ranks, killed_ranks.train, killed, few_digits, amp, step)
        assert epochs_in(killed / "snapshot") == epochs
    on_ranks(ranks, killed_ranks.train, killed, few_digits, amp)
    assert distance(undisturbed / "checkpoint", killed / "checkpoint") == 0
    states = [torch.load(folder / "snapshot") for folder in (undisturbed, killed)]
    assert killed_ranks.difference(*(state["model"] for state in states)) == 0
    assert states[0]["scaler"] == states[1]["scaler"]
    assert bool(states[0]["scaler"]) == (amp == "fp16")
    losses = [[epoch["loss"] for epoch in state["history"]] for state in states]
    assert losses[0] == losses[1] and len(losses[0]) == 3


def epochs_in(path):
    return len(torch.load(path)["history"]) if path.exists() else 0


def test_a_save_that_breaks_off_leaves_the_snapshot_before_it(
    alone, tmp_path, few_digits, monkeypatch
):
    save, snapshots = torch.save, []

    def breaks_off(state, file):
        save(state, file)
        if isinstance(file, str):  # not what is pickled to be broadcast
            snapshots.append(file)
        if len(snapshots) == 2:
            os.truncate(file, 1000)
            raise OSError("no space left")

    monkeypatch.setattr(torch, "save", breaks_off)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    with pytest.raises(OSError, match="no space left"):
        killed_ranks.train(tmp_path, few_digits, "off")
    assert epochs_in(tmp_path / "snapshot") == 1


@pytest.fixture
def refused(alone, capsys):
    """Load a snapshot on the only rank -> the line with which it is refused."""

    def load(path, settings):
        with pytest.raises(SystemExit) as stopped:
            stage5.load_snapshot(path, settings, {"model": torch.nn.Linear(10, 100)})
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and error.count("\n") == 1
        return error

    return load


def test_train_refuses_a_snapshot_that_is_damaged_or_none(refused, tmp_path):
    path, model = tmp_path / "s", torch.nn.Linear(10, 100)
    torch.save({"settings": {}, "history": [], "model": model.state_dict()}, path)
    assert stage5.load_snapshot(path, {}, {"model": model}) == []
    for content in (b"", b"a letter", path.read_bytes()[:-100]):
        path.write_bytes(content)
        assert f"error: --snapshot {path} is damaged, or is not a snapshot (" in refused(path, {})
    torch.save({"model": model.state_dict()}, path)  # a checkpoint
    assert "is not a snapshot (KeyError('settings'))" in refused(path, {})


def test_all_ranks_and_the_snapshot_have_the_same_settings(refused, tmp_path, monkeypatch):
    path, settings = tmp_path / "s", {"lr": 0.15, "images": 60_000}
    torch.save({"settings": settings, "history": [], "model": {}}, path)
    for name, value in ("lr", 0.01), ("images", 1200):
        line = refused(path, settings | {name: value})
        told = f"{value} on this node, {settings[name]} in"
        assert f"error: {name} differs: {told} --snapshot {path}" in line

    def receive(found, src):
        found[0] = settings  # rank 0's

    monkeypatch.setattr(dist, "broadcast_object_list", receive)
    line = refused(None, settings | {"lr": 0.01})
    assert "error: lr differs: 0.01 on this node, 0.15 on rank 0" in line


# ---------------------------------------------------------------- resume.py: amid an epoch


@pytest.mark.parametrize("place", [(1, "before"), (5, "after"), (8, "before")])
def test_killed_and_resumed_on_one_rank(alone, tmp_path, place):
    """The model draws dropout masks in every step: their random numbers are resumed, too."""
    undisturbed = resume.weights_of(tmp_path / "undisturbed")
    assert torch.equal(resume.weights_of(tmp_path / "killed", place), undisturbed)


@pytest.mark.slow
def test_the_newest_snapshot_of_all_nodes_is_taken(tmp_path):
    ranks = on_ranks(2, killed_ranks.resume_from_the_newest, tmp_path)
    assert ranks[0] == (7, 0.0) and ranks[1][0] == 7


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demonstration(reader):
    result = reader.run("python 05_multinode/resume.py", timeout=390)
    assert result.code == 0 and result.err == "", result
    lines = result.out.splitlines()
    assert len(lines) == 2 + len(resume.PARTS) and lines[0].startswith("2 ranks, ")
    assert lines[1].startswith("ok ") and lines[1].endswith("resumed: distance 0e+00")
    assert min(float(part.split()[-1]) for part in lines[2:]) > 1e-3


def test_told_to_stop_it_saves_and_resumes_with_the_next_step(alone, tmp_path, capsys, monkeypatch):
    assert resume.any_rank([signal.SIGTERM]) and not resume.any_rank([])
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(name, told=()):
        args = argparse.Namespace(snapshot=tmp_path / name, steps=6, pause=0)
        answers = itertools.chain(told, itertools.repeat(False))
        monkeypatch.setattr(resume, "any_rank", lambda told: next(answers))
        resume.save_in_time(args)
        return capsys.readouterr().out.splitlines()

    assert run("told", [False] * 3 + [True])[1] == "resume: told to stop, saved after step 3"
    begun, end = run("told")
    assert begun == "resume: 1 rank(s), 3 of 6 steps done" and end == run("undisturbed")[1]

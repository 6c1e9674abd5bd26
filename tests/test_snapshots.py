"""Stage 5's snapshots: killed anywhere and started again, a run ends as if nothing had happened.

train.py saves one after every epoch, resume.py after every step, or when it is told to stop.
"""

import argparse
import importlib
import itertools
import signal
import time

import killed_ranks
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import LINUX, draw_digits, wait_for
from killed_ranks import distance
from ranks import on_ranks

resume = importlib.import_module("05_multinode.resume")
stage5 = importlib.import_module("05_multinode.train")


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """120 digits to train on and 30 to test on."""
    return draw_digits(tmp_path_factory.mktemp("few"), 120, 30)


@pytest.fixture
def alone():
    """The only rank of a process group, in this process: starting one would take seconds."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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


@LINUX
def test_a_snapshot_is_whole_whenever_its_writer_is_killed(tmp_path):
    path = tmp_path / "snapshot"
    for milliseconds in (0, 3, 7, 20, 50):
        save = killed_ranks.save_again_and_again
        writer = mp.get_context("fork").Process(target=save, args=[path])
        writer.start()
        wait_for(path.exists)
        time.sleep(milliseconds / 1000)
        writer.kill()
        writer.join()
        snapshot = torch.load(path)
        assert len(snapshot["history"]) > 0 and snapshot["model"]["weight"].shape == (1000, 1000)
        path.unlink()


@pytest.mark.parametrize("content", [b"", b"a letter", None], ids=["empty", "text", "cut"])
def test_a_damaged_snapshot_is_named(alone, tmp_path, content):
    path = tmp_path / "snapshot"
    stage5.save_snapshot(path, {}, [], {"model": torch.nn.Linear(10, 100)})
    assert stage5.load_snapshot(path)["history"] == []
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(SystemExit) as raised:
        stage5.load_snapshot(path)
    (line,) = str(raised.value).splitlines()
    assert str(path) in line and "damaged" in line


@pytest.mark.slow
def test_with_a_damaged_snapshot_no_rank_is_left_waiting(reader):
    (reader.folder / "snapshot").write_text("a letter")
    result = reader.stage("05_multinode", "--device cpu --snapshot snapshot")
    assert result.code == 1 and "is damaged" in result.err, result
    assert (reader.folder / "snapshot").read_text() == "a letter", "nothing is overwritten"


def test_a_snapshot_of_other_settings_is_refused(alone, tmp_path, few_digits, monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    killed_ranks.train(tmp_path, few_digits, "off")
    before = (tmp_path / "snapshot").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        killed_ranks.train(tmp_path, few_digits, "off", lr=0.01)
    line = stopped.value.code
    assert "\n" not in line and str(tmp_path / "snapshot") in line
    assert "'lr': 0.02" in line and "'lr': 0.01" in line
    assert (tmp_path / "snapshot").read_bytes() == before


def test_all_ranks_have_the_same_settings(alone, monkeypatch):
    def gather(found, settings):
        found[:] = [settings, settings | {"lr": 0.15}]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(SystemExit) as stopped:
        stage5.check_settings({"lr": 0.01})
    assert "0.01" in stopped.value.code and "0.15" in stopped.value.code


# ---------------------------------------------------------------- resume.py: amid an epoch


@pytest.mark.parametrize("place", [(1, "before"), (5, "after"), (8, "before")])
def test_killed_and_resumed_on_one_rank(alone, tmp_path, place):
    """The model draws dropout masks in every step: their random numbers are resumed, too."""
    undisturbed = resume.weights_of(tmp_path / "undisturbed")
    assert torch.equal(resume.weights_of(tmp_path / "killed", place), undisturbed)


def test_the_newest_snapshot_of_all_nodes_is_taken(tmp_path):
    ranks = on_ranks(2, killed_ranks.resume_from_the_newest, tmp_path)
    assert ranks[0] == (7, 0.0) and ranks[1][0] == 7


def test_a_signal_that_one_rank_gets_stops_all():
    assert on_ranks(2, killed_ranks.stops) == [True, True]


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
    assert resume.any_rank([signal.SIGTERM], dist.group.WORLD)
    assert not resume.any_rank([], dist.group.WORLD)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(name, told=()):
        args = argparse.Namespace(snapshot=tmp_path / name, steps=6, pause=0)
        answers = itertools.chain(told, itertools.repeat(False))
        monkeypatch.setattr(resume, "any_rank", lambda *_: next(answers))
        resume.save_in_time(args)
        return capsys.readouterr().out.splitlines()

    assert run("told", [False] * 3 + [True])[1] == "resume: told to stop, saved after step 3"
    begun, end = run("told")
    assert begun == "resume: 1 rank(s), 3 of 6 steps done" and end == run("undisturbed")[1]

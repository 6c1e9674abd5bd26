"""Stage 5's snapshots: killed anywhere and started again, a run ends as if nothing had happened.

train.py saves one after every epoch, resume.py also amid an epoch.
"""

import contextlib
import importlib
import io
import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import killed_ranks
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import (
    LINUX,
    Result,
    draw_digits,
    family,
    one_line,
    ranks_of,
    record_of,
    wait_for,
    wait_for_line,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_ranks import distance
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.common import on_ranks

resume = importlib.import_module("05_multinode.resume")
stage5 = importlib.import_module("05_multinode.train")
SETTINGS = {"script": "resume.py", "seed": 0}
FEW = settings(max_examples=30, deadline=None)


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

# What happens to one run of 3 epochs of 5 steps, one after the other, and how many epochs are in
# the snapshot then. In the last life but one it is the checkpoint that is half written.
LIVES = [
    ((0, "amid writing", 1), 0),
    ((0, "after renaming", 1), 1),
    ((-1, "step", 9), 2),
    ((0, "before renaming", 1), 2),
    ((0, "amid writing", 2), 3),
]


@LINUX
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ranks", "amp", "lives"),
    [
        (2, "off", [((-1, "step", 8), 1)]),
        pytest.param(2, "off", LIVES, marks=pytest.mark.slow),
        pytest.param(1, "fp16", LIVES[1:2], marks=pytest.mark.slow),
    ],
)
def test_killed_and_started_again_ends_with_the_same_weights(
    tmp_path, few_digits, monkeypatch, ranks, amp, lives
):
    """A rank gets SIGKILL, and with it all end: in an epoch, between two, and while it saves."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    on_ranks(ranks, killed_ranks.train, undisturbed, few_digits, amp)
    for place, epochs in lives:
        with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
            on_ranks(ranks, killed_ranks.train, killed, few_digits, amp, place)
        assert epochs_in(killed / "snapshot") == epochs, place
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
@pytest.mark.slow
def test_two_nodes_killed_at_random_moments(reader):
    """All processes get SIGKILL; a run that is done trains nothing and writes its files again."""
    flags = "-e 8 -b 24 --lr 0.02 --device cpu --checkpoint {0}.pt --snapshot {0} --record {0}r"
    assert reader.stage("05_multinode", flags.format("undisturbed")).code == 0
    done = 0
    for _ in range(2):
        nodes = reader.start_stage("05_multinode", flags.format("killed"))
        wait_for_line(*nodes, start="05_multinode: ")
        time.sleep(random.uniform(0, 2))
        for pid in itertools.chain(*map(family, nodes)):
            with contextlib.suppress(ProcessLookupError):  # torchrun's end has ended it
                os.kill(pid, signal.SIGKILL)
        for node in nodes:
            reader.finish(node)
        before, done = done, epochs_in(reader.folder / "killed")
        assert done >= before
    result = reader.stage("05_multinode", flags.format("killed"))
    assert result.code == 0 and f"{done} epoch(s) done\n" in result.out, result
    assert result.out.count("epoch  ") == 8 - done
    assert distance(reader.folder / "undisturbed.pt", reader.folder / "killed.pt") == 0
    (reader.folder / "killed.pt").unlink()
    name, record = record_of(reader.folder / "killedr")
    (reader.folder / "killedr" / name).unlink()
    again = reader.stage("05_multinode", flags.format("killed"))
    assert again.code == 0 and "8 epoch(s) done\n" in again.out, again
    assert "\nepoch" not in again.out and record_of(reader.folder / "killedr") == (name, record)
    assert distance(reader.folder / "undisturbed.pt", reader.folder / "killed.pt") == 0


@pytest.mark.parametrize(
    ("snapshot", "found"),
    [
        ({"settings": {"seed": 7}, "history": []}, "'seed': 7"),
        ({"settings": SETTINGS, "history": []}, "'script': 'resume.py'"),
        ({"model": {}}, "None"),
    ],
)
def test_train_refuses_a_snapshot_of_another_run(alone, tmp_path, capsys, snapshot, found):
    torch.save(snapshot, tmp_path / "s")
    with pytest.raises(SystemExit) as stopped:
        stage5.load_snapshot(tmp_path / "s", {"seed": 0}, {})
    assert stopped.value.code == 2
    first = capsys.readouterr().err
    assert f"error: --snapshot {tmp_path / 's'} is damaged or of another run: " in first
    assert found in first and first.count("\n") == 1


# ---------------------------------------------------------------- resume.py: amid an epoch

# Some of the places where resume.py itself kills its small network, on two ranks and on three.
PLACES = [
    [(1, "before")],
    [(5, "after")],
    [(3, "before"), (3, "before"), (3, "after"), (8, "before")],
]


def test_killed_and_resumed_on_one_rank(alone, tmp_path, few_digits):
    """The model draws dropout masks in every step: their random numbers are resumed, too."""
    assert killed_ranks.kill(tmp_path, few_digits, "off", PLACES) == [0.0] * 3


@pytest.mark.slow
def test_killed_and_resumed_on_two_ranks(tmp_path, few_digits):
    """Rank 0's model is the one that is saved; BatchNorm's statistics differ on the other rank."""
    found = on_ranks(2, killed_ranks.kill, tmp_path, few_digits, "off", PLACES)
    assert found[0] == [0.0] * 3


@pytest.mark.slow
def test_the_newest_snapshot_of_all_nodes_is_taken(tmp_path, few_digits):
    ranks = on_ranks(2, killed_ranks.resume_on_nodes_without_a_shared_disk, tmp_path, few_digits)
    assert ranks[0] == (7, 0.0) and ranks[1][0] == 7


@given(st.data())
@FEW
def test_what_was_read_and_what_is_left_make_the_epoch(data):
    """Also when the run goes on with another number of ranks."""
    before, after = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    batch = before * after * data.draw(st.integers(1, 3))
    images, epoch = data.draw(st.integers(batch, 300)), data.draw(st.integers(0, 3))
    step = data.draw(st.integers(0, images // batch))

    def read(ranks, start, stop=None):
        for rank in range(ranks):
            sampler = DistributedSampler(range(images), ranks, rank, seed=1)
            sampler.set_epoch(epoch)
            loader = DataLoader(range(images), batch // ranks, sampler=sampler)
            yield torch.cat([torch.tensor([]), *itertools.islice(loader, start, stop)]).tolist()

    first = sum(read(before, 0, step), [])
    rest = sum(read(after, step), [])
    assert len(first) == step * batch and set(first) | set(rest) == set(range(images))
    assert len(first + rest) - images in range(after), "only the end of the epoch is padded"


@pytest.mark.slow
def test_one_rank_trains_on_what_two_have_left_of_the_epoch(alone, tmp_path, capsys):
    first = on_ranks(2, killed_ranks.images_seen, tmp_path / "s", (3, "after"))
    rest = [killed_ranks.images_seen(tmp_path / "s", None)]
    assert "2 rank(s) before, 1 now: other random numbers" in capsys.readouterr().out
    steps = [sum(step, []) for ranks in (first, rest) for step in zip(*ranks)]
    assert [len(step) for step in steps] == [24] * 10
    for epoch in (steps[:5], steps[5:]):
        assert sorted(sum(epoch, [])) == list(range(120))
    assert steps[:5] != steps[5:]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demonstration(reader):
    result = reader.run("python 05_multinode/resume.py", timeout=390)
    assert result.code == 0 and result.err == "", result
    lines = result.out.splitlines()
    assert len(lines) == 2 * (2 + len(resume.PARTS))
    for ranks, (first, second, *parts) in ((2, lines[:8]), (3, lines[8:])):
        assert first.startswith(f"{ranks} ranks, ") and second.endswith("resumed: distance 0e+00")
        assert second.startswith("ok ")
        far = [float(part.split()[-1]) for part in parts]
        assert min(far[:5]) > 1e-3 and far[5] < 1e-5  # 0 on two ranks: there is no order to them


@LINUX
@pytest.mark.slow
def test_ctrl_c_in_the_demonstration_leaves_nothing(reader):
    temp = reader.folder / "tmp"
    temp.mkdir()
    process = reader.start("python 05_multinode/resume.py", TMPDIR=str(temp))
    wait_for(lambda: list(temp.glob("*/undisturbed")))
    os.killpg(process.pid, signal.SIGINT)
    assert reader.finish(process, timeout=60).code != 0
    assert not list(temp.iterdir())


# ---------------------------------------------------------------- snapshots that cannot be used


def write(path, **state):
    resume.write_snapshot(path, {"settings": SETTINGS, "weights": torch.arange(99.0), **state})


def step_in(path):
    return resume.read_snapshot(path, SETTINGS)[0]["step"]


def test_the_one_before_is_kept_and_takes_the_place_of_a_damaged_one(tmp_path, capsys):
    path = tmp_path / "snapshot"
    write(path, step=1)
    write(path, step=2)
    assert step_in(path) == 2
    path.write_bytes(path.read_bytes()[:-100])
    state, refused = resume.read_snapshot(path, SETTINGS)
    assert (state["step"], refused) == (1, True)
    assert f"refusing {path}: damaged" in capsys.readouterr().err
    write(path, step=3)  # what was refused must not take the place of the good one
    assert step_in(resume.previous(path)) == 1
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"snapshot", "snapshot.previous", "snapshot.refused"}


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_crash_between_the_renames_leaves_a_snapshot(tmp_path, monkeypatch, capsys, renamed):
    path, replace, count = tmp_path / "snapshot", os.replace, itertools.count()

    def crash(source, target):
        if next(count) == renamed:
            raise KeyboardInterrupt
        replace(source, target)

    write(path, step=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", crash)
        write(path, step=2)
    assert step_in(path) == 1
    write(path, step=3)
    assert step_in(path) == 3 and step_in(resume.previous(path)) == 1
    assert capsys.readouterr().err == "" and len(list(tmp_path.iterdir())) == 2


@given(st.data())
@FEW
def test_a_flipped_bit_is_noticed_or_does_not_matter(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "snapshot"
    write(path, step=1)
    image = bytearray(path.read_bytes())
    image[data.draw(st.integers(0, len(image) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(image)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        state, refused = resume.read_snapshot(path, SETTINGS)
    assert refused == (state is None) == ("refusing" in printed.getvalue())
    assert refused or state["step"] == 1 and torch.equal(state["weights"], torch.arange(99.0))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"a letter", "damaged, or not a snapshot"),
        ({"model": {}}, "damaged, or not a snapshot"),
        ({"settings": SETTINGS | {"seed": 7}}, "of another run: seed 7 instead of 0"),
        ({"settings": {"seed": 0}}, "of another run: script None instead of resume.py"),
    ],
    ids=["text", "checkpoint", "another seed", "of train.py"],
)
def test_what_is_no_snapshot_of_this_run_is_refused_by_name(tmp_path, capsys, file, reason):
    path = tmp_path / "s"
    if isinstance(file, bytes):
        path.write_bytes(file)
    else:
        torch.save(file, path)
    before = path.read_bytes()
    assert resume.read_snapshot(path, SETTINGS) == (None, True)
    assert f"resume.py: refusing {path}: {reason}" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_run_does_not_begin_over_a_snapshot_that_is_none(alone, tmp_path, capsys):
    path = tmp_path / "s"
    path.write_text("a letter")
    with pytest.raises(SystemExit) as stopped:
        killed_ranks.images_seen(path, None)
    assert stopped.value.code == 2 and path.read_text() == "a letter"
    assert "resume.py: error: there is no good snapshot" in capsys.readouterr().err


def test_a_full_disk_ends_no_training_and_spoils_no_snapshot(tmp_path, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "snapshot"
    write(path, step=1)
    (tmp_path / "snapshot.tmp").symlink_to("/dev/full")
    write(path, step=2)
    assert capsys.readouterr().err == "resume.py: no snapshot (No space left on device)\n"
    assert step_in(path) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]


# ---------------------------------------------------------------- under torchrun


@LINUX
@pytest.mark.slow
def test_a_rank_that_is_killed_with_sigkill(reader):
    """torchrun starts all ranks again, and they go on from the snapshot."""
    torchrun = "torchrun --standalone --nproc-per-node 2 --max-restarts 2"
    run = "05_multinode/resume.py -b 24 --lr 0.02 --device cpu --timeout 20 --every 4"
    assert reader.run(f"{torchrun} {run} --checkpoint a.pt --snapshot a").code == 0
    restarting = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or most restarts would fail
    process = reader.start(f"{torchrun} {run} --checkpoint b.pt --snapshot b", **restarting)
    wait_for(lambda: (reader.folder / "b.previous").exists())
    os.kill(ranks_of(process, "resume.py")[1], signal.SIGKILL)
    result = reader.finish(process)
    assert result.code == 0 and "resume.py: 0 step(s)" not in result.out, result
    assert result.out.count("step(s) done before") == 1
    assert distance(reader.folder / "a.pt", reader.folder / "b.pt") == 0
    assert not list(reader.folder.glob("*.tmp"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-b 25", "--batch-size 25 is not divisible by 2 ranks"),
        ("--timeout nan", "--timeout nan: at least 1"),
        ("--every 0", "--every 0: at least 1"),
        ("--snapshot nowhere/s", "cannot write nowhere/s"),
        ("--checkpoint .", "cannot write ."),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capsys, flags, reason):
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert_refused(f"--device cpu {flags}", reason, monkeypatch, capsys)
    assert not list(tmp_path.iterdir())


def test_flags_without_torchrun(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert_refused("--every 5", "flags are for a start with torchrun", monkeypatch, capsys)


def assert_refused(flags, reason, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["resume.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        resume.parse()
    one_line(Result(stopped.value.code, *capsys.readouterr()), "resume.py", reason)

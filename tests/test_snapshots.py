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
from functools import cache, partial
from pathlib import Path

import killed_ranks
import pytest
import torch
import torch.multiprocessing as mp
from conftest import (
    LINUX,
    TEST_IMAGES,
    Reader,
    Result,
    draw_digits,
    family,
    free_port,
    one_line,
    ranks_of,
    record_of,
    wait_for,
    wait_for_line,
)
from hypothesis import given
from hypothesis import strategies as st
from killed_ranks import distance
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.common import on_ranks

resume = importlib.import_module("05_multinode.resume")
SLOW = partial(pytest.param, marks=pytest.mark.slow)
PLACES = list(itertools.product(range(1, 11), ("before", "after")))  # around 10 snapshots
SETTINGS = {"script": "resume.py", "seed": 0}
MEET = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{}"


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """120 digits to train on and 30 to test on."""
    return draw_digits(tmp_path_factory.mktemp("few"), 120, 30)


def kill_all(processes):
    for process in processes:
        for pid in family(process):
            with contextlib.suppress(ProcessLookupError):  # torchrun's end has ended it
                os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- train.py: after every epoch

# What happens to one run of 3 epochs of 5 steps, one after the other, and how many epochs are in
# the snapshot then. In the last life but one it is the checkpoint that is half written.
LIVES = [
    ((-1, "step", 3), 0),
    ((0, "amid writing", 1), 0),
    ((0, "before renaming", 1), 0),
    ((0, "after renaming", 1), 1),
    ((-1, "step", 2), 1),
    ((0, "amid writing", 1), 1),
    ((-1, "step", 9), 2),
    ((0, "amid writing", 2), 3),
]


@LINUX
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ranks", "amp", "lives"),
    [(2, "off", LIVES[3:4]), SLOW(2, "bf16", LIVES), SLOW(1, "fp16", LIVES)],
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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_processes_killed_at_random_moments(reader, ranks):
    """On one node, and on two with a rank each."""
    flags = "-e 8 -b 24 --lr 0.02 --device cpu --checkpoint {0}.pt --snapshot {0}"
    assert reader.stage("05_multinode", flags.format("undisturbed"), ranks).code == 0
    done = 0
    for _ in range(4):
        nodes = reader.start_stage("05_multinode", flags.format("killed"), ranks)
        wait_for_line(*nodes, start="05_multinode: ")
        time.sleep(random.uniform(0, 2))
        kill_all(nodes)
        for node in nodes:
            reader.finish(node)
        before, done = done, epochs_in(reader.folder / "killed")
        assert done >= before
    result = reader.stage("05_multinode", flags.format("killed"), ranks)
    assert result.code == 0 and f"{done} epoch(s) done\n" in result.out, result
    assert result.out.count("epoch  ") == 8 - done
    assert distance(reader.folder / "undisturbed.pt", reader.folder / "killed.pt") == 0


@pytest.mark.slow
def test_a_finished_run_trains_nothing_and_writes_record_and_checkpoint(reader):
    flags = "-e 1 -b 24 --lr 0.02 --device cpu --snapshot s --record r --checkpoint c/model.pt"
    assert reader.stage("05_multinode", flags).code == 0
    model, saved = reader.folder / "c/model.pt", reader.folder / "saved.pt"
    os.rename(model, saved)
    name, record = record_of(reader.folder / "r")
    (reader.folder / "r" / name).unlink()
    before = (reader.folder / "s").read_bytes()
    result = reader.stage("05_multinode", flags)
    assert result.code == 0 and "2 node(s), 1 epoch(s) done\n" in result.out, result
    assert "\nepoch" not in result.out and "milliseconds per step: " in result.out
    assert record_of(reader.folder / "r") == (name, record)
    assert distance(saved, model) == 0
    assert (reader.folder / "s").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epochs": 2, "batch_size": 24, "lr": 0.02, "seed": 7, "amp": "off"}, "'seed': 7"),
        ({"script": "resume.py", "epochs": 2}, "'script': 'resume.py'"),
        (None, "None"),
    ],
)
def test_train_refuses_a_snapshot_of_another_run(reader, settings, told):
    path = reader.folder / "s"
    torch.save({"settings": settings, "history": []} if settings else {"model": {}}, path)
    before = path.read_bytes()
    flags = "-e 2 -b 24 --lr 0.02 --device cpu --snapshot s"
    result = reader.stage("05_multinode", flags, ranks=1)
    first = result.err.splitlines()[0]
    assert first.startswith("05_multinode: error: --snapshot s is of another run: "), result
    assert told in first and "exitcode  : 2 " in result.err and result.code == 1
    assert "Traceback" not in result.err.partition("exitcode")[0], result
    assert (
        path.read_bytes() == before and not (reader.folder / "checkpoints/05_multinode.pt").exists()
    )


@LINUX
@pytest.mark.slow
def test_a_full_disk_leaves_the_last_snapshot_of_train(tmp_path, few_digits, monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        on_ranks(1, killed_ranks.train, tmp_path, few_digits, "off", (0, "after renaming", 1))
    before = (tmp_path / "snapshot").read_bytes()
    (tmp_path / "snapshot.tmp").symlink_to("/dev/full")
    with pytest.raises(mp.ProcessRaisedException, match="enforce fail|No space left"):
        on_ranks(1, killed_ranks.train, tmp_path, few_digits, "off")
    assert (tmp_path / "snapshot").read_bytes() == before


# ---------------------------------------------------------------- resume.py: amid an epoch


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ranks", "amp"), [SLOW(1, "fp16"), (2, "bf16"), SLOW(3, "off")])
def test_killed_around_every_snapshot_and_resumed(tmp_path, few_digits, ranks, amp):
    """The model draws dropout masks, other ones on each rank: their random numbers go on, too."""
    lives = [[place] for place in PLACES]
    found = on_ranks(ranks, killed_ranks.kill, tmp_path, few_digits, amp, lives)[0]
    assert found == [0.0] * 20, dict(zip(PLACES, found))


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, few_digits):
    """Before any step is done, twice at the same step, in a row: a run has many lives."""
    dice = random.Random(0)
    lives = [[(1, "before")], *(dice.choices(PLACES, k=4) for _ in range(5))]
    assert on_ranks(2, killed_ranks.kill, tmp_path, few_digits, "off", lives)[0] == [0.0] * 6


@given(st.data())
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


@pytest.mark.parametrize("after", [2, SLOW(3), SLOW(1)])
def test_a_run_that_resumes_trains_on_what_is_left_of_the_epoch(tmp_path, after):
    first = on_ranks(2, killed_ranks.images_seen, tmp_path / "s", (3, "after"))
    rest = on_ranks(after, killed_ranks.images_seen, tmp_path / "s", None)
    steps = [sum(step, []) for ranks in (first, rest) for step in zip(*ranks)]
    assert [len(step) for step in steps] == [24] * 10
    for epoch in (steps[:5], steps[5:]):
        assert sorted(sum(epoch, [])) == list(range(120))
    assert steps[:5] != steps[5:]


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_and_says_what_is_lost(reader):
    before, after = 2, 3
    flags = "-b 24 --lr 0.02 --device cpu --snapshot s --every 20"
    run = "torchrun --standalone --nproc-per-node {} 05_multinode/resume.py {} {}"
    assert reader.run(run.format(before, "--checkpoint a.pt", flags)).code == 0
    os.replace(reader.folder / "s.previous", reader.folder / "s")  # that of step 80 of 100
    result = reader.run(run.format(after, "--checkpoint b.pt", flags))
    assert result.code == 0, result
    assert f"resume.py: {before} rank(s) before, {after} now: other random numbers" in result.out
    assert "resume.py: 80 step(s) done before; " in result.out
    assert f" of {TEST_IMAGES} images correct" in result.out
    assert 0 < distance(reader.folder / "a.pt", reader.folder / "b.pt") < 0.1


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
        assert [part.split("without the ")[1][:22].strip() for part in parts] == [*resume.PARTS]
        far = [float(part.split()[-1]) for part in parts]
        assert min(far[:5]) > 1e-3 and far[5] < 1e-5  # 0 on two ranks: there is no order to them


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(("send", "number"), [("killpg", 2), ("kill", 2), ("kill", 15)])
def test_whatever_stops_the_demonstration_leaves_nothing(reader, send, number):
    temp = reader.folder / "tmp"
    temp.mkdir()
    process = reader.start("python 05_multinode/resume.py", TMPDIR=str(temp))
    wait_for(lambda: list(temp.glob("*/undisturbed")))
    getattr(os, send)(process.pid, number)
    result = reader.finish(process, timeout=60)
    assert result.code == 128 + number and not list(temp.iterdir()), result
    assert result.err == ("\nresume.py: interrupted\n" if number == signal.SIGINT else "")


# ---------------------------------------------------------------- snapshots that cannot be used


def write(path, **state):
    resume.write_snapshot(path, {"settings": SETTINGS, "weights": torch.arange(99.0), **state})


def test_the_one_before_is_kept_and_takes_the_place_of_a_damaged_one(tmp_path, capsys):
    path = tmp_path / "snapshot"
    write(path, step=1)
    write(path, step=2)
    assert resume.read_snapshot(path, SETTINGS)[0]["step"] == 2
    path.write_bytes(path.read_bytes()[:-100])
    state, refused = resume.read_snapshot(path, SETTINGS)
    assert (state["step"], refused) == (1, True)
    assert f"refusing {path}: damaged" in capsys.readouterr().err
    write(path, step=3)  # what was refused must not take the place of the good one
    assert resume.read_snapshot(resume.previous(path), SETTINGS)[0]["step"] == 1
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
    assert resume.read_snapshot(path, SETTINGS)[0]["step"] == 1
    write(path, step=3)
    assert resume.read_snapshot(path, SETTINGS)[0]["step"] == 3
    assert resume.read_snapshot(resume.previous(path), SETTINGS)[0]["step"] == 1
    assert capsys.readouterr().err == "" and len(list(tmp_path.iterdir())) == 2


@given(st.data())
def test_a_flipped_bit_is_noticed_or_does_not_matter(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "snapshot"
    write(path, step=1)
    image = bytearray(path.read_bytes())
    image[data.draw(st.integers(0, len(image) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(image)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        state, refused = resume.read_snapshot(path, SETTINGS)
    assert refused == (state is None) == ("refusing" in said.getvalue())
    assert refused or state["step"] == 1 and torch.equal(state["weights"], torch.arange(99.0))


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("text", "damaged, or not a snapshot (BadZipFile)"),
        ("empty", "damaged, or not a snapshot (BadZipFile)"),
        ("checkpoint", "damaged, or not a snapshot (KeyError)"),
        ("settings", "damaged, or not a snapshot (TypeError)"),
        ("foreign", "of another run: seed 7 instead of 0"),
        ("of train.py", "of another run: script None instead of resume.py"),
    ],
)
def test_what_is_no_snapshot_of_this_run_is_refused_by_name(tmp_path, capsys, file, says):
    path = tmp_path / "s"
    if file == "checkpoint":
        torch.save({"model": {}}, path)
    elif file == "settings":
        write(path, settings=5)
    elif file == "foreign":
        write(path, settings=SETTINGS | {"seed": 7})
    elif file == "of train.py":
        write(path, settings={"seed": 0})
    else:
        path.write_bytes(b"a letter" if file == "text" else b"")
    before = path.read_bytes()
    assert resume.read_snapshot(path, SETTINGS) == (None, True)
    assert capsys.readouterr().err == f"resume.py: refusing {path}: {says}\n"
    assert path.read_bytes() == before


def test_a_run_does_not_begin_over_a_snapshot_that_is_none(reader):
    path = reader.folder / "s"
    path.write_text("a letter")
    torchrun = "torchrun --standalone --nproc-per-node 2 05_multinode/resume.py"
    result = reader.run(f"{torchrun} --device cpu --snapshot s")
    assert result.code == 1 and result.out == "", result
    told = [line for line in result.err.splitlines() if line.startswith("resume.py: ")]
    assert told[0].startswith("resume.py: refusing s: damaged, or not a snapshot")
    assert told[1].startswith("resume.py: error: there is no good snapshot") and len(told) == 2
    assert path.read_text() == "a letter" and not (reader.folder / "resume.pt").exists()


def test_a_full_disk_ends_no_training_and_spoils_no_snapshot(tmp_path, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "snapshot"
    write(path, step=1)
    (tmp_path / "snapshot.tmp").symlink_to("/dev/full")
    write(path, step=2)
    assert capsys.readouterr().err == "resume.py: no snapshot (No space left on device)\n"
    assert resume.read_snapshot(path, SETTINGS)[0]["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]


@pytest.mark.slow
def test_the_newest_of_all_nodes_is_taken(reader):
    """Nodes need not share a disk: only the one that had rank 0 has a snapshot."""
    run = "05_multinode/resume.py -b 24 --lr 0.02 --device cpu --checkpoint {}.pt --snapshot {}"
    alone = "torchrun --standalone --nproc-per-node 2 "
    assert reader.run(alone + run.format("a", "disk0")).code == 0
    os.replace(reader.folder / "disk0.previous", reader.folder / "disk1")
    meet = f"{MEET.format(free_port())} "
    nodes = [reader.start(meet + run.format("b", disk)) for disk in ("disk1", "nothing")]
    result = reader.finish_all(nodes)
    assert result.code == 0 and "resume.py: 50 step(s) done before" in result.out, result
    assert distance(reader.folder / "a.pt", reader.folder / "b.pt") == 0


# ---------------------------------------------------------------- really killed


KILLED = "05_multinode/resume.py -b 24 --lr 0.02 --device cpu --timeout 20 --every 4"
RESTARTING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or most restarts would fail


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, small_data):
    """-> a function: number of ranks -> the model of a run that nobody disturbed"""
    reader = Reader(tmp_path_factory.mktemp("undisturbed"), small_data)

    @cache
    def train(ranks):
        torchrun = f"torchrun --standalone --nproc-per-node {ranks} {KILLED}"
        assert reader.run(f"{torchrun} --checkpoint {ranks}.pt --snapshot {ranks}").code == 0
        return reader.folder / f"{ranks}.pt"

    return train


def wait_for_snapshots(path, number):
    """Wait until so many snapshots have been written."""
    patience, seen = time.monotonic() + 90, set()
    while len(seen) < number:
        assert time.monotonic() < patience, f"{len(seen)} snapshots"
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.002)


@LINUX
@pytest.mark.slow
def test_a_rank_that_is_killed_with_sigkill(reader, undisturbed):
    """torchrun starts all ranks again, and they go on from the snapshot."""
    torchrun = f"torchrun --standalone --nproc-per-node 3 --max-restarts 2 {KILLED}"
    process = reader.start(f"{torchrun} --checkpoint killed.pt --snapshot s", **RESTARTING)
    for snapshots in (4, 14):  # of 25; it is killed twice
        wait_for_snapshots(reader.folder / "s", snapshots)
        os.kill(ranks_of(process, "resume.py")[2], signal.SIGKILL)
    result = reader.finish(process)
    assert result.code == 0 and "resume.py: 0 step(s)" not in result.out, result
    assert result.out.count("step(s) done before") == 1
    assert distance(undisturbed(3), reader.folder / "killed.pt") == 0
    assert not list(reader.folder.glob("*.tmp"))


@LINUX
@pytest.mark.slow
def test_a_node_that_is_killed_with_sigkill(reader, undisturbed):
    """Both torchruns are started again, as a scheduler would."""

    def start():
        line = f"{MEET.format(free_port())} {KILLED} --checkpoint killed.pt --snapshot s"
        return [reader.start(line) for _ in range(2)]

    nodes = start()
    wait_for_snapshots(reader.folder / "s", 6)
    kill_all(nodes[:1])
    assert all(reader.finish(node, timeout=90).code != 0 for node in nodes)
    result = reader.finish_all(start())
    assert result.code == 0 and "step(s) done before" in result.out, result
    assert "resume.py: 0 step(s)" not in result.out
    assert distance(undisturbed(2), reader.folder / "killed.pt") == 0


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("-e 0", "--epochs 0: at least 1"),
        ("-b 0", "--batch-size 0: at least 1"),
        ("-b 25", "--batch-size 25 is not divisible by 2 ranks"),
        ("--lr nan", "--lr nan: at least 0"),
        ("--every 0", "--every 0: at least 1"),
        ("--timeout 0.5", "--timeout 0.5: at least 1"),
        ("--snapshot nowhere/s", "cannot write nowhere/s"),
        ("--snapshot .", "cannot write ."),
        ("--checkpoint nowhere/c", "cannot write nowhere/c"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capsys, flags, told):
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert_refused(f"--device cpu {flags}", told, monkeypatch, capsys)
    assert not list(tmp_path.iterdir())


def test_flags_without_torchrun(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert_refused("--every 5", "flags are for a start with torchrun", monkeypatch, capsys)


def assert_refused(flags, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["resume.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        resume.parse()
    one_line(Result(stopped.value.code, *capsys.readouterr(), 0), "resume.py", told)

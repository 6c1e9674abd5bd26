"""Stage 5's snapshots: killed anywhere and started again, a run ends as if nothing had happened."""

import contextlib
import importlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TEST_IMAGES, Reader, family, free_port
from hypothesis import given
from hypothesis import strategies as st
from killed_ranks import distance, kill_again_and_again, kill_everywhere
from test_failures import LINUX, ranks_of

on_ranks = importlib.import_module("03_ddp_spawn.by_hand").on_ranks
stage5 = importlib.import_module("05_multinode.train")
SLOW = partial(pytest.param, marks=pytest.mark.slow)
SETTINGS = {"stage": "05_multinode", "seed": 0}


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """120 digits to train on and 30 to test on."""
    folder = tmp_path_factory.mktemp("few")
    command = [sys.executable, ROOT / "tools/draw_digits.py", folder, "--train", "120"]
    subprocess.run([*command, "--test", "30"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    return folder


# ---------------------------------------------------------------- killed and resumed


@pytest.mark.parametrize(
    ("ranks", "amp", "near"), [SLOW(1, "fp16", 0), (2, "bf16", 0), SLOW(3, "off", 0)]
)
def test_killed_at_every_step_and_resumed(tmp_path, few_digits, ranks, amp, near):
    """The model draws dropout masks, other ones on each rank: their random numbers go on, too."""
    found = on_ranks(ranks, kill_everywhere, tmp_path, few_digits, amp)[0]
    assert len(found) == 2 * 10, "before and after each of 2 x 5 snapshots"
    assert max(found.values()) <= near, found
    losses = [json.loads(path.read_text())["train_loss"] for path in tmp_path.glob("*/*.json")]
    assert len(losses) == 21
    assert all(one == pytest.approx(losses[0], abs=near, rel=near) for one in losses)


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, few_digits):
    """Before any step is done, twice at the same step, in a row: a run has many lives."""
    dice = random.Random(0)
    places = [(step, before) for step in range(1, 11) for before in (False, True)]
    lives = [[(1, True)], *(dice.choices(places, k=4) for _ in range(5))]
    assert on_ranks(2, kill_again_and_again, tmp_path, few_digits, lives)[0] == [0.0] * 6


@given(st.data())
def test_what_was_dealt_and_what_is_left_make_the_epoch(data):
    """Also when the run goes on with another number of ranks."""
    before, after = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    batch = before * after * data.draw(st.integers(1, 3))
    images, epoch = data.draw(st.integers(batch, 300)), data.draw(st.integers(0, 3))
    step = data.draw(st.integers(0, images // batch))

    def deal(ranks, dealt, stop=None):
        for rank in range(ranks):
            sampler = stage5.ResumableSampler(range(images), ranks, rank, seed=1)
            sampler.set_epoch(epoch)
            sampler.dealt = dealt
            share = list(sampler)
            assert len(share) == len(sampler)
            yield share[:stop]

    first = sum(deal(before, 0, step * batch // before), [])
    rest = sum(deal(after, step * batch // after), [])
    assert len(first) == step * batch and set(first) | set(rest) == set(range(images))
    assert len(first + rest) - images in range(after), "only the end of the epoch is padded"


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_and_says_what_is_lost(reader):
    before, after = 2, 3
    flags = "-b 24 --lr 0.02 --device cpu --snapshot s --snapshot-every 20"
    run = "torchrun --standalone --nproc-per-node {} 05_multinode/train.py {} {}"
    assert reader.run(run.format(before, "-e 2 --checkpoint a.pt", flags)).code == 0
    os.replace(reader.folder / "s.previous", reader.folder / "s")  # the one of step 40 of epoch 2
    result = reader.run(run.format(after, "-e 2 --checkpoint b.pt", flags))
    assert result.code == 0, result
    told = f"resuming after 1 epoch(s) and 40 step(s) of {before} rank(s); with {after} random"
    assert told in result.out and "epoch  2/2" in result.out and "epoch  1/2" not in result.out
    (path,) = (reader.folder / "timings").glob(f"*-{after}xcpu.json")
    record = json.loads(path.read_text())
    assert record["resumed"] == [{"epoch": 1, "step": 40, "ranks": before}]
    assert record["test_total"] == TEST_IMAGES and len(record["train_loss"]) == 2
    assert 0 < distance(reader.folder / "a.pt", reader.folder / "b.pt") < 0.1


# ---------------------------------------------------------------- snapshots that cannot be used


def write(path, **state):
    stage5.write_snapshot(path, {"settings": SETTINGS, "weights": torch.arange(99.0), **state})


def test_the_one_before_is_kept_and_takes_the_place_of_a_damaged_one(tmp_path, capsys):
    path = tmp_path / "deep" / "snapshot"
    write(path, step=1)
    write(path, step=2)
    assert stage5.read_snapshot(path, SETTINGS)[0]["step"] == 2
    path.write_bytes(path.read_bytes()[:-100])
    state, refused = stage5.read_snapshot(path, SETTINGS)
    assert (state["step"], refused) == (1, True)
    assert f"refusing {path}: damaged" in capsys.readouterr().err
    write(path, step=3)  # what was refused must not take the place of the good one
    assert stage5.read_snapshot(stage5.previous(path), SETTINGS)[0]["step"] == 1
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"snapshot", "snapshot.previous", "snapshot.refused"}


@given(st.data())
def test_a_flipped_bit_is_noticed_or_does_not_matter(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "snapshot"
    write(path, step=1)
    image = bytearray(path.read_bytes())
    image[data.draw(st.integers(0, len(image) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(image)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        state, refused = stage5.read_snapshot(path, SETTINGS)
    assert refused == (state is None) == ("refusing" in said.getvalue())
    assert refused or state["step"] == 1 and torch.equal(state["weights"], torch.arange(99.0))


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("text", "damaged, or not a snapshot (BadZipFile)"),
        ("empty", "damaged, or not a snapshot (BadZipFile)"),
        ("checkpoint", "damaged, or not a snapshot (KeyError)"),
        ("foreign", "of another run: seed 7 instead of 0"),
    ],
)
def test_what_is_no_snapshot_of_this_run_is_refused_by_name(tmp_path, capsys, file, says):
    path = tmp_path / "s"
    if file == "checkpoint":
        torch.save({"model": {}}, path)
    elif file == "foreign":
        write(path, settings=SETTINGS | {"seed": 7})
    else:
        path.write_bytes(b"a letter" if file == "text" else b"")
    before = path.read_bytes()
    assert stage5.read_snapshot(path, SETTINGS) == (None, True)
    assert capsys.readouterr().err == f"05_multinode: refusing {path}: {says}\n"
    assert path.read_bytes() == before


def test_a_run_does_not_begin_over_a_snapshot_that_is_none(reader):
    path = reader.folder / "s"
    path.write_text("a letter")
    result = reader.stage("05_multinode", "--device cpu --snapshot s", ranks=1)
    assert result.code == 1, result
    first, second = result.err.splitlines()[:2]
    assert first.startswith("05_multinode: refusing s: damaged, or not a snapshot")
    assert second.startswith("05_multinode: error: there is no snapshot to go on from")
    assert path.read_text() == "a letter" and not (reader.folder / "checkpoints").exists()


def test_a_full_disk_ends_no_training_and_spoils_no_snapshot(tmp_path, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "snapshot"
    write(path, step=1)
    (tmp_path / "snapshot.tmp").symlink_to("/dev/full")
    write(path, step=2)
    assert "no snapshot, No space left on device; the last one stays" in capsys.readouterr().err
    assert stage5.read_snapshot(path, SETTINGS)[0]["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]


@pytest.mark.slow
def test_the_newest_of_all_hosts_is_taken(reader):
    """Hosts need not share a disk: only the one that had rank 0 has a snapshot."""
    run = "-e 2 -b 24 --lr 0.02 --device cpu --checkpoint {}.pt --snapshot {}"
    assert reader.stage("05_multinode", run.format("a", "disk0")).code == 0
    old = reader.folder / "disk0.previous"
    meet = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:"
    meet += f"{free_port()} 05_multinode/train.py "
    os.replace(old, reader.folder / "disk1")
    hosts = [reader.start(meet + run.format("b", disk)) for disk in ("disk1", "nothing")]
    result = reader.finish_all(hosts)
    assert result.code == 0 and "resuming after 1 epoch(s) and 0 step(s)\n" in result.out, result
    assert distance(reader.folder / "a.pt", reader.folder / "b.pt") == 0


# ---------------------------------------------------------------- really killed


KILLED = "05_multinode/train.py -e 2 -b 24 --lr 0.02 --device cpu --timeout 20 --snapshot-every 4"
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
    for snapshots in (4, 14):  # of 26; it is killed twice
        wait_for_snapshots(reader.folder / "s", snapshots)
        os.kill(ranks_of(process)[2], signal.SIGKILL)
    result = reader.finish(process)
    assert result.code == 0 and result.out.count("resuming after") == 2, result
    assert distance(undisturbed(3), reader.folder / "killed.pt") == 0
    assert not list(reader.folder.glob("*.tmp"))


@LINUX
@pytest.mark.slow
def test_a_host_that_is_killed_with_sigkill(reader, undisturbed):
    """Both torchruns are started again, as a scheduler would."""
    flags = KILLED.partition(" ")[2] + " --checkpoint killed.pt --snapshot s"
    hosts = reader.start_stage("05_multinode", flags)
    wait_for_snapshots(reader.folder / "s", 6)
    for pid in family(hosts[0]):
        os.kill(pid, signal.SIGKILL)
    assert all(reader.finish(host, timeout=90).code != 0 for host in hosts)
    result = reader.stage("05_multinode", flags)
    assert result.code == 0 and "resuming after" in result.out, result
    assert distance(undisturbed(2), reader.folder / "killed.pt") == 0

"""Bad input at random: flags, data, snapshots. It works, or it ends in one line and exit code 2."""

import importlib
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

stage1, stage3, stage5 = (
    importlib.import_module(f"{stage}.train")
    for stage in ("01_baseline", "03_ddp_spawn", "05_multinode")
)
pytestmark = pytest.mark.slow
OFTEN = settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,  # a run that fails can be repeated
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(["inf", "-inf", "nan", "1e400", "0x10", "1_000", "", " ", "²", "9" * 30]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)
FLAGS = ["epochs", "batch-size", "lr", "threads", "workers", "seed", "world-size", "timeout", "amp"]
PATHS = st.sampled_from([".", "x" * 300, "/dev/null/x", "sub/deep/er", "ä 数", "x\ny", "-", "~"])


def refused(call, capsys):
    """-> what the call returns, or None if it has ended with code 2 and a line that says why."""
    try:
        return call()
    except SystemExit as stopped:
        error = capsys.readouterr().err
        assert stopped.code == 2 and "error: " in error.splitlines()[-1] + error, error
        assert "Traceback" not in error
        return None


@OFTEN
@given(flags=st.dictionaries(st.sampled_from(FLAGS), NUMBERS, max_size=3))
def test_flags(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.chdir(tmp_path)
    words = [f"--{name}={value}" for name, value in flags.items()]
    monkeypatch.setattr(sys, "argv", ["train.py", "--device=cpu", *words])
    started = []
    monkeypatch.setattr(stage3.mp, "spawn", lambda *args, **more: started.append(more))
    monkeypatch.setattr(stage3, "load_mnist", lambda root: None)
    monkeypatch.setattr(stage3.signal, "signal", lambda *_: None)
    refused(stage3.main, capsys)
    for more in started:
        assert 1 <= more["nprocs"] <= 512


@OFTEN
@given(flag=st.sampled_from(["record", "checkpoint"]), path=PATHS)
def test_paths(tmp_path, monkeypatch, capsys, flag, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", f"--{flag}={path}"])
    refused(lambda: stage1.parse(stage1.base_parser()), capsys)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()], "nothing is half-written"


@st.composite
def damages(draw):
    """A function that damages bytes: cut off, a few of them changed, some put in between."""
    kind = draw(st.sampled_from(["cut", "flip", "insert", "replace"]))
    places = draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
    extra = draw(st.binary(min_size=1, max_size=30))

    def damage(data):
        data = bytearray(data)
        for place in places:
            at = int(place * len(data))
            if kind == "cut":
                return bytes(data[:at])
            if kind == "flip":
                data[at] ^= extra[0] or 1
            if kind == "insert":
                data[at:at] = extra
        return extra if kind == "replace" else bytes(data)

    return damage


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """A snapshot of stage 5 as it is saved, the parts that it must hold, and a place for a copy."""
    folder = tmp_path_factory.mktemp("snapshot")
    model = stage5.ConvNet()
    parts = {"model": model.state_dict(), "optimizer": {"lr": 0.1}, "history": [], "settings": {}}
    stage5.save(folder / "whole", lambda file: torch.save(parts, file))
    state = dict.fromkeys(("model", "optimizer"))
    data = (folder / "whole").read_bytes()
    return SimpleNamespace(parts=parts, state=state, data=data, copy=folder / "copy")


@OFTEN
@given(damage=damages())
def test_a_damaged_snapshot_is_found_or_does_no_harm(snapshot, damage):
    snapshot.copy.write_bytes(damage(snapshot.data))
    found = stage5.read_snapshot(snapshot.copy, snapshot.state)
    if found:
        assert found.keys() == snapshot.parts.keys()
        for name, tensor in snapshot.parts["model"].items():
            assert torch.equal(found["model"][name], tensor), name


@pytest.fixture(scope="module")
def mnist(small_data, tmp_path_factory):
    """A copy of the small data, of which one file at a time is damaged."""
    root = tmp_path_factory.mktemp("fuzzed")
    shutil.copytree(small_data, root, dirs_exist_ok=True)
    return root


@OFTEN
@given(damage=damages(), number=st.integers(0, 3))
def test_a_damaged_data_file(mnist, monkeypatch, capsys, damage, number):
    monkeypatch.setattr(stage1.MNIST, "mirrors", [])  # nothing is asked of a network
    path = sorted(Path(mnist, "MNIST", "raw").glob("*-ubyte"))[number]
    whole = path.read_bytes()
    try:
        path.write_bytes(damage(whole))
        refused(lambda: stage1.load_mnist(mnist), capsys)
    finally:
        path.write_bytes(whole)

"""The parts of the stages, called as functions."""

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT

stage1 = importlib.import_module("01_baseline.train")
stage3 = importlib.import_module("03_ddp_spawn.train")
CPU = torch.device("cpu")


def test_the_stopwatch_books_every_moment_to_a_phase():
    watch = stage1.Stopwatch(CPU)
    started = time.perf_counter()
    for _ in range(2):
        time.sleep(0.02)
        watch.lap("data")
        time.sleep(0.01)
        watch.lap("step")
    whole = time.perf_counter() - started
    seconds = watch.seconds()
    assert list(seconds) == ["data", "step"]
    assert sum(seconds.values()) == pytest.approx(whole, abs=0.005)
    assert seconds["data"] >= 0.04 and seconds["step"] >= 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_stopwatch_waits_for_the_gpu_only_at_the_end():
    x = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    watch = stage1.Stopwatch(torch.device("cuda"))
    started = time.perf_counter()
    for _ in range(5):
        x @ x
    watch.lap("forward")
    queued = time.perf_counter() - started
    assert watch.seconds()["forward"] > 2 * queued


def test_the_learning_rate_rises_for_a_fifth_and_falls_to_nothing():
    for steps in (1, 2, 5, 7, 10, 100, 1500):
        optimizer, schedule = stage1.sgd_one_cycle(stage1.ConvNet(), 0.1, steps)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert max(rates) == pytest.approx(0.1) and min(rates) > 0
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1]) and peak <= steps / 5
        assert rates[peak:] == sorted(rates[peak:], reverse=True)
        assert optimizer.param_groups[0]["lr"] == 0


def test_no_steps_need_no_schedule():
    stage1.sgd_one_cycle(stage1.ConvNet(), 0.1, 0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_shares_of_the_test_set_add_up_to_the_whole(small_data, world_size):
    _, _, test_set = stage1.load_mnist(small_data)
    model = stage1.ConvNet()
    whole = stage1.evaluate(model, test_set, CPU)
    shares = [stage1.evaluate(model, test_set, CPU, r, world_size) for r in range(world_size)]
    assert sum(shares).tolist() == whole.tolist()
    assert whole[1] == len(test_set)


@pytest.mark.parametrize(
    ("batch", "ranks", "nearest"), [(121, 2, 120), (1, 4, 4), (7, 8, 8), (100, 3, 99)]
)
def test_the_error_names_the_nearest_batch(capsys, batch, ranks, nearest):
    with pytest.raises(SystemExit):
        stage1.check_batch(batch, ranks)
    assert f"{nearest} does" in capsys.readouterr().err
    stage1.check_batch(nearest, ranks)


def test_a_number_is_within_its_bounds():
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--share", type=stage1.number(float, 0, 1))
    assert parser.parse_args(["--share", "0.5"]).share == 0.5
    for text in ("-0.1", "1.1", "nan", "half"):
        with pytest.raises(argparse.ArgumentError, match="float from 0 to 1"):
            parser.parse_args(["--share", text])


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "record.json"
    stage1.write_whole(path, lambda temp: temp.write_text("old"))

    def fail(temp):
        temp.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        stage1.write_whole(path, fail)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_the_group_is_left_also_when_training_raises():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    args = argparse.Namespace(timeout=10)
    with pytest.raises(RuntimeError, match="in training"):
        with stage3.process_group(args, CPU, rank=0, world_size=1, store=store):
            assert dist.is_initialized()
            raise RuntimeError("in training")
    assert not dist.is_initialized()


THREADS_AFTER_THE_GROUP = """
import argparse, importlib, os, sys
import torch, torch.distributed as dist
stage = importlib.import_module("03_ddp_spawn.train")
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def gloo_threads():
    comms = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
    return sum("gloo" in comm for comm in comms)

def train():
    model = stage.DistributedDataParallel(stage.ConvNet())
    for _ in range(3):
        model(torch.rand(4, 1, 28, 28)).sum().backward()
    global during
    during = gloo_threads()
    if "raise" in sys.argv:
        raise ValueError
    return model if "keep" in sys.argv else None

args = argparse.Namespace(timeout=10)
try:
    with stage.process_group(args, torch.device("cpu"), rank=0, world_size=1, store=store):
        kept = train()
except ValueError as error:
    kept = error
print(during > 0, gloo_threads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads through /proc")
def test_leaving_the_group_ends_its_threads():
    """What process_group's comment says: they end, unless something keeps the group alive."""

    def threads(*argv):
        command = [sys.executable, "-c", THREADS_AFTER_THE_GROUP, *argv]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        return run.stdout.strip()

    assert threads() == "True 0"
    assert threads("raise") == "True 0", "or a rank that fails may hang"
    assert threads("keep") != "True 0", "a living DDP model keeps them"


def test_a_rank_that_is_not_the_first_on_its_host_says_nothing(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(SystemExit) as stopped:
        stage1.stop("bad input")
    assert stopped.value.code == 2 and capsys.readouterr().err == ""


def test_the_lower_half_is_copied_by_the_tool(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT / "tools"))
    import sync_shared_half as sync

    for name, lower in (("01_a", "new"), ("02_b", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(f"upper {name}\n{sync.RULE}\n{lower}\n")
    monkeypatch.setattr(sync, "ROOT", Path(tmp_path))
    monkeypatch.setattr(sys, "argv", ["sync_shared_half.py", "--check"])
    assert sync.main() == 1
    monkeypatch.setattr(sys, "argv", ["sync_shared_half.py"])
    assert sync.main() == 0
    assert (tmp_path / "02_b" / "train.py").read_text() == f"upper 02_b\n{sync.RULE}\nnew\n"
    assert os.listdir(tmp_path / "02_b") == ["train.py"]

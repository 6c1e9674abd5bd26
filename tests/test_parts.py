"""The parts of the stages, called as functions."""

import contextlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import LINUX, ROOT

stage1 = importlib.import_module("01_baseline.train")
stage3 = importlib.import_module("03_ddp_spawn.train")
CPU = torch.device("cpu")


def test_the_stopwatch_adds_every_moment_to_a_phase(monkeypatch):
    monkeypatch.setattr(stage1.time, "perf_counter", iter([0, 1, 3, 7, 15]).__next__)
    watch = stage1.Stopwatch(CPU)
    for phase in ("data", "optimizer", "data", "optimizer"):
        watch.lap(phase)
    assert watch.seconds() == {"data": 1 + 4, "optimizer": 2 + 8}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_shards_of_the_test_set_add_up_to_the_whole(small_data, world_size):
    _, test_set = stage1.load_mnist(Path(small_data))
    model = stage1.ConvNet()
    whole = stage1.evaluate(model, test_set, CPU)
    shards = [stage1.evaluate(model, test_set, CPU, r, world_size) for r in range(world_size)]
    assert sum(shards).tolist() == whole.tolist()
    assert whole[1] == len(test_set)


def test_a_gloo_group_is_left_also_when_training_raises():
    here = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    with pytest.raises(RuntimeError, match="in training"):
        with stage3.process_group(CPU, 10, **here):
            assert dist.is_initialized()
            raise RuntimeError("in training")
    assert not dist.is_initialized()


@pytest.mark.parametrize("raises", [True, False])
def test_an_nccl_group_is_left_only_if_nothing_was_raised(monkeypatch, raises):
    """destroy_process_group would wait for ranks that wait for this one, and hide the traceback."""
    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(str(device)))
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: calls.append((*a, k)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("left"))
    with pytest.raises(RuntimeError) if raises else contextlib.nullcontext():
        with stage3.process_group(torch.device("cuda", 1), 10):
            if raises:
                raise RuntimeError
    assert calls[0] == "cuda:1" and calls[1][0] == "nccl"
    assert calls[1][1]["device_id"] == torch.device("cuda", 1), "with its index"
    assert ("left" in calls) != raises


THREADS_AFTER_THE_GROUP = """
import importlib, os, tempfile
import torch, torch.distributed as dist
stage = importlib.import_module("03_ddp_spawn.train")
here = {"init_method": f"file://{tempfile.mkdtemp()}/rank", "rank": 0, "world_size": 1}

def gloo_threads():
    comms = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
    return sum("gloo" in comm for comm in comms)

def train():
    model = stage.DistributedDataParallel(stage.ConvNet())
    for _ in range(3):
        model(torch.rand(4, 1, 28, 28)).sum().backward()
    global during
    during = gloo_threads()
    raise ValueError

try:
    with stage.process_group(torch.device("cpu"), 10, **here):
        train()
except ValueError as error:
    kept = error
print(during > 0, gloo_threads())
"""


@pytest.mark.slow
@LINUX
def test_leaving_the_group_ends_its_threads():
    """If something keeps the group alive, such as a frame of the traceback, the rank may hang."""
    command = [sys.executable, "-c", THREADS_AFTER_THE_GROUP]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "True 0", result

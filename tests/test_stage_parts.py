"""The parts of the stages, called as functions."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import LINUX, ROOT
from torch.utils.data import DataLoader, Subset

stage1 = importlib.import_module("01_baseline.train")
CPU = torch.device("cpu")


def test_the_stopwatch_adds_every_moment_to_a_phase(monkeypatch):
    monkeypatch.setattr(stage1.time, "perf_counter", iter([0, 1, 3, 7, 15]).__next__)
    watch = stage1.Stopwatch(CPU)
    for phase in ("data", "optimizer", "data", "optimizer"):
        watch.lap(phase)
    assert watch.seconds() == {"data": 1 + 4, "optimizer": 2 + 8}


def test_images_become_floats_between_0_and_1():
    images = torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8)
    x, y = stage1.to_device(images, torch.tensor([7]), CPU)
    assert x.tolist() == [[[[0.0, pytest.approx(0.2)], [pytest.approx(0.4), 1.0]]]]
    assert y.tolist() == [7]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_shards_of_the_test_set_add_up_to_the_whole(small_data, world_size):
    _, test_set = stage1.load_mnist(Path(small_data))
    model = stage1.make_model()
    whole, _ = stage1.evaluate(model, DataLoader(test_set, batch_size=500), CPU)
    correct = 0
    total = 0
    for rank in range(world_size):
        shard = Subset(test_set, range(rank, len(test_set), world_size))
        part, images = stage1.evaluate(model, DataLoader(shard, batch_size=20), CPU)
        correct += part
        total += images
    assert correct == whole > 0
    assert total == len(test_set)


THREADS_AFTER_THE_GROUP = """
import importlib, os, sys, tempfile
import torch, torch.distributed as dist
stage = importlib.import_module("03_ddp_spawn.train")

def gloo_threads():
    count = 0
    for thread in os.listdir("/proc/self/task"):
        count += "gloo" in open(f"/proc/self/task/{thread}/comm").read()
    return count

here = {"init_method": f"file://{tempfile.mkdtemp()}/rank", "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **here)
args = stage.parse_args()
stage.train(args, torch.device("cpu"))
during = gloo_threads()
dist.destroy_process_group()
print(during > 0, gloo_threads())
"""


@pytest.mark.slow
@LINUX
def test_nothing_keeps_the_group_alive_after_it_was_destroyed(reader):
    """If something did, such as a DDP object that was not freed, the rank might hang at its end."""
    (reader.folder / "threads.py").write_text(f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n")
    with open(reader.folder / "threads.py", "a") as file:
        file.write(THREADS_AFTER_THE_GROUP)
    command = [sys.executable, "threads.py", "-e", "1", "--device", "cpu", "--world-size", "1"]
    options = {"cwd": reader.folder, "env": reader.env, "capture_output": True, "text": True}
    result = subprocess.run(command, timeout=120, **options)
    assert result.stdout.splitlines()[-1:] == ["True 0"], result

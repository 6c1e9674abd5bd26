"""A model saved by any stage loads in any other, and counts the same on any number of ranks."""

import importlib
import re

import pytest
import torch
from conftest import STAGES, TEST_IMAGES


def checkpoint_of(trained, stage):
    folder, result = trained(stage)
    assert result.code == 0, result
    return folder / f"checkpoints/{stage}.pt"


def count(result):
    """The number of correct test images in the closing line."""
    correct, total = re.search(r"([\d,]+) of ([\d,]+) test images correct", result.out).groups()
    assert int(total) == TEST_IMAGES
    return int(correct)


@pytest.mark.parametrize("saver", STAGES)
def test_a_checkpoint_holds_the_bare_model(trained, saver):
    checkpoint = torch.load(checkpoint_of(trained, saver), weights_only=True)
    bare = importlib.import_module("01_baseline.train").ConvNet()
    assert checkpoint["model"].keys() == bare.state_dict().keys(), "no module. prefix"
    assert sum(parameter.numel() for parameter in bare.parameters()) == 29034


@pytest.mark.parametrize("saver", STAGES)
@pytest.mark.parametrize("loader", STAGES)
def test_every_stage_loads_what_every_stage_saved(trained, saver, loader):
    module = importlib.import_module(f"{loader}.train")
    model = module.ConvNet()
    module.load_model(checkpoint_of(trained, saver), model)
    saved = torch.load(checkpoint_of(trained, saver), weights_only=True)["model"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("saver", STAGES)
def test_the_printed_count_is_that_of_the_saved_model(called, trained, saver):
    result = called("01_baseline/train.py", f"-e 0 --load {checkpoint_of(trained, saver)}")
    assert result.code == 0 and count(result) == count(trained(saver)[1]), result


@pytest.mark.parametrize(
    ("stage", "ranks"),
    [("02_dp", 1), ("03_ddp_spawn", 4), ("04_ddp_torchrun", 1), ("05_multinode", 2)],
)
def test_the_count_does_not_depend_on_the_ranks(reader, trained, stage, ranks):
    result = reader.stage(stage, f"-e 0 --load {checkpoint_of(trained, STAGES[2])}", ranks=ranks)
    assert result.code == 0 and count(result) == count(trained(STAGES[2])[1]), result


def test_evaluating_writes_nothing(reader, trained):
    path = checkpoint_of(trained, "01_baseline")
    before = path.stat().st_mtime_ns
    assert reader.stage("01_baseline", f"-e 0 --load {path}").code == 0
    assert path.stat().st_mtime_ns == before
    assert not (reader.folder / "timings").exists()
    assert not (reader.folder / "checkpoints").exists()

"""A model saved by any stage loads in any other, and counts the same on any number of ranks."""

import importlib
import re

import pytest
import torch
from conftest import STAGES, TEST_IMAGES, Reader


@pytest.fixture(scope="session")
def trained(tmp_path_factory, small_data):
    """Train each stage once -> reader, {stage: (its checkpoint, the closing count)}."""
    reader = Reader(tmp_path_factory.mktemp("trained"), small_data)
    saved = {}
    for stage in STAGES:
        amp = " --amp fp16" if stage == "04_ddp_torchrun" else ""
        result = reader.stage(stage, f"-e 2 -b 24 --lr 0.02 --device cpu{amp}")
        assert result.code == 0, result
        saved[stage] = reader.folder / "checkpoints" / f"{stage}.pt", count(result)
    return reader, saved


def count(result):
    """The number of correct test images in the closing line."""
    correct, total = re.search(r"([\d,]+) of ([\d,]+) test images correct", result.out).groups()
    assert int(total) == TEST_IMAGES
    return int(correct)


@pytest.mark.parametrize("saver", STAGES)
def test_a_checkpoint_holds_the_bare_model(trained, saver):
    checkpoint = torch.load(trained[1][saver][0], weights_only=True)
    bare = importlib.import_module("01_baseline.train").ConvNet()
    assert checkpoint["model"].keys() == bare.state_dict().keys(), "no module. prefix"
    assert sum(parameter.numel() for parameter in bare.parameters()) == 29034


def test_the_scaler_is_saved_with_the_model(trained):
    checkpoint = torch.load(trained[1]["04_ddp_torchrun"][0], weights_only=True)
    assert checkpoint["scaler"]["scale"] > 0


@pytest.mark.parametrize("saver", STAGES)
@pytest.mark.parametrize("loader", STAGES)
def test_every_stage_loads_what_every_stage_saved(trained, saver, loader):
    module = importlib.import_module(f"{loader}.train")
    model = module.ConvNet()
    module.load_model(trained[1][saver][0], model)
    saved = torch.load(trained[1][saver][0], weights_only=True)["model"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("saver", STAGES)
def test_the_printed_count_is_that_of_the_saved_model(trained, saver):
    reader, saved = trained
    path, printed = saved[saver]
    result = reader.stage("01_baseline", f"-e 0 --load {path}")
    assert result.code == 0 and count(result) == printed, result


@pytest.mark.parametrize(
    ("stage", "ranks"),
    [("02_dp", 1), (STAGES[2], 1), (STAGES[2], 4), (STAGES[3], 3), (STAGES[4], 2)],
)
def test_the_count_does_not_depend_on_the_ranks(trained, stage, ranks):
    reader, saved = trained
    path, printed = saved["03_ddp_spawn"]
    result = reader.stage(stage, f"-e 0 --load {path}", ranks=ranks)
    assert result.code == 0 and count(result) == printed, result


def test_evaluating_writes_nothing(reader, trained):
    path, _ = trained[1]["01_baseline"]
    before = path.stat().st_mtime_ns
    assert reader.stage("01_baseline", f"-e 0 --load {path}").code == 0
    assert path.stat().st_mtime_ns == before
    assert not (reader.folder / "timings").exists()
    assert not (reader.folder / "checkpoints").exists()


def test_training_goes_on_from_a_loaded_model(trained):
    reader, saved = trained
    path, printed = saved["04_ddp_torchrun"]
    flags = f"-e 1 -b 24 --lr 0.001 --amp fp16 --load {path} --checkpoint more.pt --record more"
    result = reader.stage("03_ddp_spawn", flags)
    assert result.code == 0, result
    assert count(result) > 0.9 * printed, "it did not start from nothing"

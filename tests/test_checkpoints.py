"""A checkpoint holds the bare model, and the count in the record is the saved model's."""

import importlib
from pathlib import Path

import pytest
import torch
from conftest import STAGES, TEST_IMAGES, record_of

stage1 = importlib.import_module("01_baseline.train")


def load(trained, stage):
    """The checkpoint of a stage that has trained -> stage 1's model with its weights."""
    folder, result = trained(stage)
    assert result.code == 0, result
    model = stage1.ConvNet()
    checkpoint = torch.load(folder / f"checkpoints/{stage}.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])  # fails if the keys begin with "module."
    return model


@pytest.mark.parametrize("stage", STAGES)
def test_the_recorded_count_is_that_of_the_saved_model(trained, small_data, stage):
    """Stages 3 to 5 have counted on three ranks, each with BatchNorm statistics of its own."""
    _, test_set = stage1.load_mnist(Path(small_data))
    found = stage1.evaluate(load(trained, stage), test_set, torch.device("cpu")).tolist()
    _, record = record_of(trained(stage)[0] / "timings")
    assert record["history"][-1]["test"] == found and found[1] == TEST_IMAGES


def test_stages_3_to_5_train_the_same_weights(trained):
    models = [load(trained, stage).state_dict() for stage in STAGES[2:]]
    for name, tensor in models[0].items():
        assert all(torch.equal(model[name], tensor) for model in models[1:]), name


def test_the_model_has_29034_parameters():
    assert sum(parameter.numel() for parameter in stage1.ConvNet().parameters()) == 29034

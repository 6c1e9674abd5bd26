"""docs/examples/memory.py: bytes per parameter, and what the forward pass keeps."""

import importlib
import importlib.util
import re

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, STAGES

PARAMETERS = 29_034
IMAGE, LABEL = 4 * 28 * 28, 8  # bytes
# per image: convolution, BatchNorm, pooling and its indices of 8 bytes; twice, then the logits
INSIDE = 4 * (2 * 16 * 28 * 28 + 16 * 14 * 14 * 2 + 2 * 32 * 14 * 14 + 32 * 7 * 7 * 2)
BLOCK_1, BLOCK_2, LOGITS = 4 * 16 * 14 * 14, 4 * 32 * 7 * 7, 4 * 10


@pytest.fixture
def memory():
    spec = importlib.util.spec_from_file_location("memory", ROOT / "docs/examples/memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_model_is_that_of_the_stages(memory):
    stage = importlib.import_module(f"{STAGES[0]}.train").ConvNet()
    own = [tensor.shape for tensor in memory.convnet().state_dict().values()]
    assert own == [tensor.shape for tensor in stage.state_dict().values()]


def test_bytes_per_parameter(memory):
    assert [*memory.held(torch.float32)] == [4 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS]
    assert [*memory.held(torch.bfloat16)] == [2 * PARAMETERS, 2 * PARAMETERS, 4 * PARAMETERS]


def test_autocast_keeps_weights_and_gradients_in_fp32(memory):
    model = memory.convnet()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(torch.rand(2, 1, 28, 28)), torch.zeros(2).long())
    loss.backward()
    assert {(p.dtype, p.grad.dtype) for p in model.parameters()} == {(torch.float32,) * 2}


def test_activations_are_those_of_each_image(memory):
    plain, autocast, checkpoints = (
        (memory.activations(20, **way) - memory.activations(10, **way)) // 10
        for way in ({}, {"autocast": True}, {"checkpoints": True})
    )
    assert plain == IMAGE + INSIDE + BLOCK_1 + BLOCK_2 + LOGITS + LABEL
    assert checkpoints == IMAGE + BLOCK_1 + BLOCK_2 + LOGITS + LABEL
    assert 0.5 * plain < autocast < 0.7 * plain


def test_what_it_prints(memory, capsys):
    memory.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[float(n) for n in re.findall(r"[\d.]+", line)[-5:]] for line in lines]
    assert rows[1][-4:] == [4, 4, 8, 16] and rows[2][-4:] == [2, 2, 4, 8]
    for images, own, plain, _, checkpoints in rows[4:]:
        assert own == round(16 * PARAMETERS / 1e6, 2)
        assert plain == pytest.approx(0.210160 * images, abs=0.01)
        assert checkpoints == pytest.approx(0.022 * images, abs=0.01)

"""On a machine with GPUs: stages 1 to 4 on one of them, with mixed precision, and on all."""

import importlib

import pytest
import torch
from conftest import STAGES, TEST_IMAGES, record_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("stage", "amp"),
    [(stage, "off") for stage in STAGES[:4]] + [("03_ddp_spawn", amp) for amp in ("fp16", "bf16")],
)
def test_a_stage_on_one_gpu(reader, stage, amp):
    flags = "--epochs 3 --batch-size 24 --lr 0.02 --device cuda"
    flags += f" --amp {amp}" if amp != "off" else ""
    result = reader.stage(stage, flags, ranks=1, CUDA_VISIBLE_DEVICES="0")
    assert result.code == 0, result
    check_record(reader, world_size=1)
    checkpoint = reader.folder / f"checkpoints/{stage}.pt"
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    importlib.import_module("01_baseline.train").ConvNet().load_state_dict(weights)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stage", STAGES[1:4])
def test_a_stage_on_all_gpus(reader, stage):
    gpus = torch.cuda.device_count()
    flags = f"--epochs 3 --batch-size {12 * gpus} --lr 0.02 --device cuda"
    result = reader.stage(stage, flags, ranks=gpus)
    assert result.code == 0, result
    check_record(reader, world_size=gpus)


def check_record(reader, world_size):
    _, record = record_of(reader.folder / "timings")
    assert (record["device"], record["world_size"]) == ("cuda", world_size)
    last = record["history"][-1]
    assert last["test"][1] == TEST_IMAGES and last["test"][0] > TEST_IMAGES / 2
    assert all(seconds > 0 for rank in last["phases"] for seconds in rank.values())

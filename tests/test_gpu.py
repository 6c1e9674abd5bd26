"""On a machine with a GPU: stages 1 to 4 on one of them, with and without mixed precision."""

import json

import pytest
import torch
from conftest import STAGES, TEST_IMAGES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("stage", "amp"),
    [(stage, "off") for stage in STAGES[:4]]
    + [(stage, amp) for stage in STAGES[2:4] for amp in ("fp16", "bf16")],
)
def test_a_stage_on_one_gpu(reader, stage, amp):
    flags = "--epochs 3 --batch-size 24 --lr 0.02 --device cuda"
    flags += f" --amp {amp}" if amp != "off" else ""
    result = reader.stage(stage, flags, ranks=1, CUDA_VISIBLE_DEVICES="0")
    assert result.code == 0, result
    (path,) = (reader.folder / "timings").glob("*.json")
    record = json.loads(path.read_text())
    assert (record["device"], record["world_size"], record["devices"]) == ("cuda", 1, 1)
    assert record["backend"] == ("nccl" if stage > "03" else None)
    assert record["batchnorm"] == ("synced" if stage > "03" else "local")
    assert record["test_total"] == TEST_IMAGES and record["test_accuracy"] > 0.5
    assert all(seconds > 0 for seconds in record["phase_seconds"][0][0].values())
    assert record["device_name"] == torch.cuda.get_device_name()
    on_cpu = reader.stage(STAGES[0], f"-e 0 --device cpu --load checkpoints/{stage}.pt")
    assert on_cpu.code == 0, "a model trained on a GPU loads without one"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stage", STAGES[1:4])
def test_a_stage_on_all_gpus(reader, stage):
    gpus = torch.cuda.device_count()
    flags = f"--epochs 3 --batch-size {12 * gpus} --lr 0.02 --device cuda"
    result = reader.stage(stage, flags, ranks=gpus)
    assert result.code == 0, result
    (path,) = (reader.folder / "timings").glob("*.json")
    record = json.loads(path.read_text())
    assert record["devices"] == gpus
    assert record["test_total"] == TEST_IMAGES

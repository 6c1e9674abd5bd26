"""docs/examples/compress.py: half the bytes, and what 16 bits lose; statements on docs/amp.md."""

import re
import threading

import pytest
import torch
from conftest import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "docs/examples/compress.py"
FP32 = 4 * (100 * 256 + 256 + 256 * 10 + 10)  # bytes of the gradients


def test_the_hooks_halve_the_bytes_and_lose_what_16_bits_cannot_hold(reader):
    command = f"torchrun --standalone --nproc-per-node 2 {SCRIPT}"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    pattern = r"^(no hook|\w+_hook) +(\S+) +(\w+) +([\d,]+) +(\S+) +(\d+)% +(\d+)%$"
    rows = {}
    for hook, factor, *figures in re.findall(pattern, result.out, re.MULTILINE):
        dtype, size, error, became_0, infinite = figures
        rows[hook, factor] = (float(error), int(became_0), int(infinite))
        in_16_bits = hook != "no hook"
        assert int(size.replace(",", "")) == (FP32 // 2 if in_16_bits else FP32), result
        assert dtype == {"n": "float32", "f": "float16", "b": "bfloat16"}[hook[0]]
    assert len(rows) == 9, result
    for factor in ("1e+00", "1e-05", "1e+07"):
        error, became_0, infinite = rows["no hook", factor]
        assert error < 1e-7 and became_0 == infinite == 0
        error, became_0, infinite = rows["bf16_compress_hook", factor]
        assert 1e-3 < error < 4e-3 and became_0 == infinite == 0
    error, became_0, infinite = rows["fp16_compress_hook", "1e+00"]
    assert 1e-4 < error < 5e-4 and became_0 == infinite == 0
    assert rows["fp16_compress_hook", "1e-05"][1] > 80, "most become 0"
    assert rows["fp16_compress_hook", "1e+07"][2] > 5, "some become infinite"
    types = re.findall(
        r"^(\S.*\S) +(b?float\d+) +(b?float\d+) +([\d,]+)$", result.out, re.MULTILINE
    )
    assert [(gradient, reduced) for _, gradient, reduced, _ in types] == [
        ("float32", "float32"),
        ("float32", "bfloat16"),
        ("bfloat16", "bfloat16"),
    ], result


def test_autocast_is_a_state_of_one_thread_and_gradients_have_the_type_of_the_weights():
    model, found = torch.nn.Linear(2, 2), []

    def forward():
        found.append(model(torch.rand(2, 2)).dtype)

    with torch.autocast("cpu", torch.bfloat16):
        forward()
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
        loss = model(torch.rand(2, 2)).sum()
    assert found == [torch.bfloat16, torch.float32]
    loss.backward()
    assert model.weight.grad.dtype == model.weight.dtype == torch.float32


def test_an_update_of_two_thousandths_is_lost_in_bf16():
    assert torch.ones((), dtype=torch.bfloat16) + 0.002 == 1
    assert torch.tensor(65504.0).half().isfinite() and torch.tensor(65520.0).half().isinf()

"""tests/test_gpu.py on two simulated GPUs, and mistakes that those must find.

simulated_gpu.py says what that shows, and what only real GPUs can show.
"""

import pytest
import test_gpu
from conftest import ROOT

SIMULATED = f"python {ROOT}/tests/simulated_gpu.py 2"
TORCHRUN = f"{SIMULATED} torchrun --standalone --nproc-per-node 2"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(test_gpu.GPUS > 0, reason="test_gpu.py runs on the GPUs that are here"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in vars(test_gpu) if name.startswith("test_")])
def test_what_gpus_should_show_on_two_simulated_ones(reader, name):
    command = f"{SIMULATED} python -m pytest -p no:cacheprovider {ROOT}/tests/test_gpu.py::{name}"
    result = reader.run(command, timeout=850)
    last = result.out.splitlines()[-1]
    only_real = test_gpu.REAL.mark in getattr(vars(test_gpu)[name], "pytestmark", [])
    assert result.code == 0 and ("passed" in last) != only_real, result


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("torch.cuda.set_device(device)", "pass", "tensor on cuda:0, this rank has cuda:1"),
        (
            'torch.device("cuda", local_rank % torch.cuda.device_count())',
            'torch.device("cuda")',
            "with a specified index",
        ),
        ("dist.all_reduce(correct)", "dist.all_reduce(correct.cpu())", "device type cpu"),
        ("labels.to(device, non_blocking=True)", "labels", "to be on the same device"),
        ("torch.zeros((), device=device)", "torch.zeros(())", "to be on the same device"),
        ("Event(enable_timing=True)", "Event()", "enable_timing=True"),
    ],
)
def test_a_mistake_is_found(reader, right, wrong, told):
    source = (ROOT / "05_multinode/train.py").read_text()
    assert source.count(right) == 1, right
    (reader.folder / "broken.py").write_text(source.replace(right, wrong))
    result = reader.run(f"{TORCHRUN} broken.py {test_gpu.TRAIN}")
    assert result.code == 1 and told in result.err, result

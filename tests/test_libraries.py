"""docs/your_script/which.md, "What your library does already": the cells that can be run on two CPU
ranks.

A library that is not installed is skipped. requirements/ has none of them.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ALL = list(range(20))


def on_ranks(library, folder, function=None):
    """-> what a function of library_ranks.py has found on each of two ranks.

    It has the name of the library, if no other one is given.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "tests/library_ranks.py", function or library]
    command.append(str(folder))
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    pipes = {"capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, **pipes)
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert lines, done
    return json.loads(lines[0].removeprefix("found "))


def test_accelerate(tmp_path):
    zero, one = on_ranks("accelerate", tmp_path)
    assert sorted(zero["split"] + one["split"]) == ALL
    assert len({*zero["split twice"], *one["split twice"]}) < 15, "much is never read"
    assert sorted(zero["stream"] + one["stream"]) == ALL
    assert zero["stream was read"] and not one["stream was read"]
    assert zero["gather"] == 12 and zero["gather_for_metrics"] == list(range(9))
    assert zero["gradient"] == 1, "each of two micro-batches counts half"
    assert zero["epochs"][0] != zero["epochs"][1], "set_epoch is called"
    assert zero["told"] == [], "but not that of a batch sampler of one's own"
    assert zero["rate"] == 0.25, "a prepared schedule steps once for each rank"


def test_torchmetrics(tmp_path):
    assert [found["compute"] for found in on_ranks("torchmetrics", tmp_path)] == [0.5, 0.5]


def test_transformers(tmp_path):
    zero, one = on_ranks("transformers", tmp_path)
    assert sorted(zero["split"] + one["split"]) == ALL
    assert zero["first loss"] == (zero["first batch"] + one["first batch"]) / 2
    assert zero["rows evaluated"] == one["rows evaluated"] == 9
    assert sorted(zero["stream"] + one["stream"]) == ALL
    assert zero["epochs"][0] != zero["epochs"][1], "set_epoch is called"


def test_fabric(tmp_path):
    zero, one = on_ranks("lightning", tmp_path, "fabric")
    assert sorted(zero["epochs"][0] + one["epochs"][0]) == ALL
    assert zero["epochs"][0] != zero["epochs"][1], "set_epoch is called"


def test_lightning(tmp_path):
    zero, one = on_ranks("lightning", tmp_path)
    assert sorted(zero["split"] + one["split"]) == ALL
    assert sorted(zero["split twice"] + one["split twice"]) == ALL
    assert zero["stream"] == one["stream"] == ALL
    assert zero["validated"] == one["validated"] == 5, "ten rows of nine"
    assert zero["epochs"][0] != zero["epochs"][1], "set_epoch is called"
    assert (zero["own"], one["own"]) == (0, 1) and zero["synced"] == one["synced"] == 0.5

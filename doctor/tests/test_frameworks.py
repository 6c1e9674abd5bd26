"""The doctor on scripts of frameworks: right ones, and ones with a mistake (corpus/frameworks.txt).

Models are tiny and of random weights: nothing is downloaded. A package that is missing is skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402

PACKAGES = {
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_fit": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "ignite_engine": ("ignite",),
}
CASES = cases.read((cases.CORPUS / "frameworks.txt").read_text())


def diagnosed(case, folder):
    """-> the findings in the report of a run under torchrun, as JSON has them."""
    (folder / "train.py").write_text(case.source)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(case.ranks()), "train.py"]
    command = [sys.executable, str(HERE.parent), "check", "--json", "found.json"]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*command, *torchrun, *ranks],
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (folder / "found.json").exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_frameworks(case, tmp_path):
    for package in PACKAGES[case.script]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    report = diagnosed(case, tmp_path)
    keys = {one["key"] for one in report["findings"]}
    if case.findings == ["right"]:
        assert not keys, report["findings"]
    else:
        assert case.findings[0] in keys, report["findings"]
        certain = {one["key"] for one in report["findings"] if one["severity"] == "wrong"}
        assert certain <= set(case.findings), report["findings"]

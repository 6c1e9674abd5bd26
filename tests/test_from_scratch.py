"""Every script with a proof: its claims hold, and it notices when it is broken."""

import re
import shutil

import pytest
import ranks
from conftest import ROOT, fenced

BREAKS = {  # each script, and a line of it with what breaks it
    "01_baseline/from_scratch.py": ("y.split(sizes)", "y.flip(0).split(sizes)"),
    "02_dp/from_scratch.py": ("total.grad += own", "total.grad = own"),
    "03_ddp_spawn/from_scratch.py": ("gradient, dist.get_world_size(), out", "gradient, 1, out"),
    "03_ddp_spawn/batchnorm.py": ("return SumOverRanks.apply(gradient)", "return gradient"),
    "03_ddp_spawn/shards_and_seeds.py": ("sampler.set_epoch(epoch)", "sampler.set_epoch(0)"),
    "04_ddp_torchrun/from_scratch.py": ('"GROUP_RANK": "0"', '"GROUP_RANK": "1"'),
    "05_multinode/from_scratch.py": ("mine += received", "mine -= received"),
}
# This one starts six processes with torchrun and as many itself, and each imports PyTorch.
LAUNCHER = pytest.param("04_ddp_torchrun/from_scratch.py", marks=pytest.mark.slow)
SCRIPTS = [LAUNCHER if script in LAUNCHER.values else script for script in BREAKS]


def quoted_lines(script):
    """The lines of its output that the stage's page shows, in its section "From scratch"."""
    name = "RING.md" if script.startswith("05") else "README.md"
    page = (ROOT / script).with_name(name).read_text()
    section = page.partition("\n## From scratch\n")[2].partition("\n## ")[0]
    lines = []
    for language, text in fenced(section):
        lines += text.splitlines() if language == "" and "Milliseconds" not in text else []
    return lines


def without_figures(line):
    return re.sub(r"[-+\d.,e]+", "#", line).strip()


@pytest.mark.parametrize("script", SCRIPTS)
def test_its_claims_hold(reader, script):
    """Most are quick tests, although they take seconds: the claims are the lessons."""
    result = ranks.run(reader, script)
    if script.endswith("from_scratch.py"):
        printed = {without_figures(line) for line in result.out.splitlines()}
        stale = [line for line in quoted_lines(script) if without_figures(line) not in printed]
        assert not stale, result
    assert result.code == 0, result
    verdicts = [line.split()[0] for line in result.out.splitlines() if line.strip()]
    assert verdicts.count("ok") >= 5 and "FAILED" not in verdicts, result


@pytest.mark.slow
@pytest.mark.parametrize("script", BREAKS)
def test_it_notices_when_it_is_broken(reader, tmp_path_factory, script):
    right, wrong = BREAKS[script]
    copy = tmp_path_factory.mktemp("broken") / "stage"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree((ROOT / script).parent, copy, ignore=ignored)
    path = copy / (ROOT / script).name
    text = path.read_text()
    assert text.count(right) >= 1
    path.write_text(text.replace(right, wrong))
    result = ranks.run(reader, str(path))
    assert result.code == 1 and "FAILED" in result.out, result

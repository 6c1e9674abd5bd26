"""A port that the script chooses is found where it is written, in an imported module, too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SCRIPT = """
import os
import settings
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(settings.PORT)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


@pytest.mark.slow
def test_a_port_of_an_imported_module(tmp_path):
    (tmp_path / "settings.py").write_text("PORT = 29611\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    doctor = [sys.executable, str(HERE.parent), "check", "--json", "found.json"]
    subprocess.run([*doctor, sys.executable, "train.py"], cwd=tmp_path, timeout=200)
    [found] = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert (found["key"], found["at"]) == ("fixed-port", "train.py:9")
    assert "settings.py" in found["seen"]

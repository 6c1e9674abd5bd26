"""docs/your_script/examples/ddp_complete.py: exact counts, and a killed run that ends as an
undisturbed one."""

import os
import signal

import pytest
import torch
from conftest import LINUX, TEST_IMAGES, family, wait_for

SCRIPT = "docs/your_script/examples/ddp_complete.py --epochs 3 --batch-size 48 --workers 1"
TORCHRUN = "torchrun --standalone --nproc-per-node"
pytestmark = pytest.mark.slow


def epochs(result):
    """The numbers of the epochs that a run prints. Each has counted every test image once."""
    assert result.code == 0, result
    lines = [line.split() for line in result.out.splitlines() if line.startswith("epoch")]
    assert all(int(line[4]) == TEST_IMAGES >= int(line[2]) for line in lines), result
    return [line[1] for line in lines]


@LINUX
@pytest.mark.timeout(600)
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(reader):
    command = f"{TORCHRUN} 2 {SCRIPT} --checkpoint"
    assert epochs(reader.run(f"{command} whole.pt")) == ["0:", "1:", "2:"]
    process = reader.start(f"{command} killed.pt")
    wait_for((reader.folder / "killed.pt").exists)
    for pid in family(process):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert epochs(reader.run(f"{command} killed.pt")) in (["1:", "2:"], ["2:"])
    whole, killed = (torch.load(reader.folder / f"{name}.pt") for name in ("whole", "killed"))
    assert whole["epochs"] == killed["epochs"] == 3
    assert all(
        torch.equal(tensor, killed["model"][name]) for name, tensor in whole["model"].items()
    )


def test_two_nodes_count_each_image_once(reader):
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    nodes = reader.start_nodes(SCRIPT, 2, [env] * 2)
    assert epochs(reader.finish_all(nodes)) == ["0:", "1:", "2:"], "one rank prints"


def test_a_batch_that_does_not_divide_is_refused(called, monkeypatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    result = called(SCRIPT.split()[0], "--batch-size 7")
    assert result.code == 2 and "error: --batch-size 7 is not divisible by 2 ranks" in result.err

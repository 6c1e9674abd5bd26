"""What a run leaves when it is killed, interrupted or goes wrong: an error, and no process."""

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import ENDLESS, LINUX, STAGES, family, ranks_of, wait_for, wait_for_line


@LINUX
@pytest.mark.parametrize(("stage", "which"), [("03_ddp_spawn", 1), ("04_ddp_torchrun", 0)])
def test_a_killed_rank_ends_the_run(reader, stage, which):
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    os.kill(ranks[which], signal.SIGKILL)
    result = reader.finish(process, timeout=60)
    assert result.code != 0
    assert "SIGKILL" in result.err or "Connection closed" in result.err, result
    assert not list(reader.folder.glob("*/*.json")) and not list(reader.folder.glob("*/*.pt"))


@LINUX
def test_a_killed_node_ends_the_run_on_the_other(reader):
    nodes = reader.start_stage("05_multinode", ENDLESS)
    wait_for_line(*nodes)
    ranks = ranks_of(nodes[1])
    for pid in family(nodes[1]):
        os.kill(pid, signal.SIGKILL)
    result = reader.finish(nodes[0], timeout=60)
    assert ranks and result.code != 0, result
    reader.finish(nodes[1])


@LINUX
@pytest.mark.parametrize(
    "stage",
    ["01_baseline", "02_dp", "03_ddp_spawn", pytest.param(STAGES[3], marks=pytest.mark.slow)],
)
def test_ctrl_c_ends_every_process(reader, stage):
    """At a terminal the interrupt reaches the parent and all ranks. (finish() counts processes.)"""
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=60)
    assert result.code != 0
    assert "KeyboardInterrupt" in result.err or "SignalException" in result.err, result


@LINUX
def test_ctrl_c_while_the_ranks_start(reader):
    (process,) = reader.start_stage("03_ddp_spawn", ENDLESS)
    wait_for(lambda: len(ranks_of(process)) == 2)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    assert reader.finish(process, timeout=60).code != 0


@LINUX
@pytest.mark.parametrize(
    ("stage", "stop"),
    [
        ("03_ddp_spawn", signal.SIGINT),
        ("03_ddp_spawn", signal.SIGTERM),
        ("04_ddp_torchrun", signal.SIGINT),
        pytest.param("04_ddp_torchrun", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_parent_that_is_stopped_alone_takes_its_ranks_along(reader, stage, stop):
    (process,) = reader.start_stage(stage, ENDLESS + " --workers 1")
    wait_for_line(process)
    os.kill(process.pid, stop)
    assert reader.finish(process, timeout=60).code != 0


@LINUX
def test_a_rank_that_raises_shows_its_traceback(reader):
    """The error comes from a rank, not from the parent: the data vanish between the two."""
    data = reader.folder / "vanishing"
    data.symlink_to(reader.env["MNIST_ROOT"])
    env = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
    process = reader.start(f"python 03_ddp_spawn/train.py {ENDLESS} --data {data}", **env)
    wait_for(lambda: ranks_of(process))
    data.unlink()
    result = reader.finish(process, timeout=60)
    assert result.code != 0 and f"--data {data}: no MNIST" in result.err, result


@LINUX
@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_after_the_timeout(reader):  # under torchrun: test_lost.py
    (process,) = reader.start_stage("03_ddp_spawn", ENDLESS + " --timeout 5")
    wait_for_line(process)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    result = reader.finish(process, timeout=90)
    assert result.code != 0
    assert "5000ms" in result.err, result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_under_load_exit_with_code_0_and_failing_ranks_do_not_hang(reader):
    """As benchmarks/endings.py does it with sixty runs and 48 trials."""
    result = reader.run("python benchmarks/endings.py --runs 9 --trials 8", timeout=580)
    assert result.code == 0, result
    assert "9 of 9 runs ended with exit code 0" in result.out, result
    assert "0 of 8 ranks that raised hung" in result.out, result
    assert Path(reader.env["MNIST_ROOT"]).exists()

"""What a run leaves when it is killed, interrupted or goes wrong: an error, and no process."""

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import STAGES, family

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")
ENDLESS = "--epochs 100000 --batch-size 24 --lr 0.001 --device cpu"


def wait_for_line(*processes, start="epoch", timeout=90):
    """Read what the processes print until a line of one of them begins with `start`."""
    patience = time.monotonic() + timeout
    while time.monotonic() < patience:
        ready, _, _ = select.select([process.stdout for process in processes], [], [], 1)
        if any(pipe.readline().startswith(start) for pipe in ready):
            return
    pytest.fail(f"nobody printed {start!r}")


def ranks_of(process):
    """The processes that train, without the one that has started them and without helpers."""
    ranks = []
    for pid in sorted(family(process)):
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        spawned = any("spawn_main" in word for word in command)
        script = any(word.endswith("/train.py") for word in command)
        launcher = any(word.endswith("bin/torchrun") for word in command)
        if pid != process.pid and (spawned or script and not launcher):
            ranks.append(pid)
    return ranks


@LINUX
@pytest.mark.parametrize(("stage", "which"), [("03_ddp_spawn", 1), ("04_ddp_torchrun", 0)])
def test_a_killed_rank_ends_the_run(reader, stage, which):
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    os.kill(ranks[which], signal.SIGKILL)
    result = reader.finish(process, timeout=30)
    assert result.code != 0
    assert result.seconds < 15
    assert "SIGKILL" in result.err or "Connection closed" in result.err, result
    assert not Path(reader.folder, "checkpoints").exists()
    assert not Path(reader.folder, "timings").exists()


@LINUX
def test_a_killed_host_ends_the_run_on_the_other(reader):
    hosts = reader.start_stage("05_multinode", ENDLESS)
    wait_for_line(*hosts)
    ranks = ranks_of(hosts[1])
    for pid in family(hosts[1]):
        os.kill(pid, signal.SIGKILL)
    result = reader.finish(hosts[0], timeout=60)
    assert ranks and result.code != 0, result
    reader.finish(hosts[1])


@LINUX
@pytest.mark.parametrize("stage", ["01_baseline", "02_dp", "03_ddp_spawn"])
def test_ctrl_c_ends_every_process_with_one_line(reader, stage):
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=20)
    assert result.code == 130
    assert result.err.strip() == f"{stage}: interrupted"
    assert result.seconds < 5


@LINUX
def test_ctrl_c_while_the_ranks_start(reader):
    (process,) = reader.start_stage("03_ddp_spawn", ENDLESS)
    patience = time.monotonic() + 60
    while len(ranks_of(process)) < 2 and time.monotonic() < patience:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=20)
    assert result.code == 130
    assert result.err.strip() == "03_ddp_spawn: interrupted"


@LINUX
def test_an_interrupt_that_reaches_the_parent_alone(reader):
    (process,) = reader.start_stage("03_ddp_spawn", ENDLESS)
    wait_for_line(process)
    os.kill(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=20)
    assert (result.code, result.err.strip()) == (130, "03_ddp_spawn: interrupted")


@LINUX
@pytest.mark.parametrize(
    ("stage", "stop"),
    [
        ("03_ddp_spawn", signal.SIGTERM),
        ("04_ddp_torchrun", signal.SIGINT),
        pytest.param("04_ddp_torchrun", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_launcher_that_is_stopped_takes_its_ranks_along(reader, stage, stop):
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    os.kill(process.pid, stop)
    assert reader.finish(process, timeout=20).code != 0


@LINUX
def test_a_rank_that_raises_shows_its_traceback(reader):
    """The error comes from a rank, not from the parent: the data vanish between the two."""
    data = reader.folder / "vanishing"
    data.symlink_to(reader.env["MNIST_ROOT"])
    process = reader.start(f"python 03_ddp_spawn/train.py {ENDLESS} --data {data}")
    patience = time.monotonic() + 60
    while len(ranks_of(process)) < 1 and time.monotonic() < patience:
        time.sleep(0.02)
    data.unlink()
    result = reader.finish(process, timeout=60)
    assert result.code != 0
    assert "03_ddp_spawn: " in result.err


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
def test_many_runs_under_load_all_exit_with_code_0(reader):
    """A rank that was done has been seen to abort on its way out; see process_group.

    Before the remedy there it was one run in four to one in fourteen.
    """
    runs = [  # all at a time: eight ranks on two cores are the load, and two runs of one stage
        reader.start_stage(stage, f"-e 1 --record t{number} --checkpoint {number}.pt")
        for number, stage in enumerate((STAGES[2], *STAGES[2:]))
    ]
    assert [reader.finish_all(run).code for run in runs] == [0] * 4
    assert len(list(reader.folder.glob("t*/*.json"))) == 4

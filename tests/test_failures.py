"""What a run leaves when it is killed, interrupted or goes wrong: an error, and no process.

finish() of conftest.py fails if a process is left. Failures of torchrun's are in test_rehearsal.py.
"""

import os
import signal

import pytest
from conftest import ENDLESS, ranks_of, wait_for, wait_for_line

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("stage", "which"), [("03_ddp_spawn", 1), pytest.param("04_ddp_torchrun", 0, marks=SLOW)]
)
def test_a_killed_rank_ends_the_run(reader, stage, which):
    (process,) = reader.start_stage(stage, ENDLESS)
    wait_for_line(process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    os.kill(ranks[which], signal.SIGKILL)
    result = reader.finish(process)
    assert result.code != 0
    assert "SIGKILL" in result.err or "Connection closed" in result.err, result
    assert not list(reader.folder.glob("*/*.jsonl")) and not list(reader.folder.glob("*/*.pt"))


@SLOW
@pytest.mark.parametrize(
    ("stage", "when", "send", "number"),
    [
        ("01_baseline", "training", "killpg", signal.SIGINT),
        ("03_ddp_spawn", "training", "killpg", signal.SIGINT),
        ("04_ddp_torchrun", "training", "killpg", signal.SIGINT),
        ("03_ddp_spawn", "starting", "killpg", signal.SIGINT),
        ("03_ddp_spawn", "training", "kill", signal.SIGINT),
        ("03_ddp_spawn", "training", "kill", signal.SIGTERM),
        ("03_ddp_spawn", "starting", "kill", signal.SIGKILL),
    ],
)
def test_a_parent_that_is_stopped_takes_its_ranks_along(reader, stage, when, send, number):
    """killpg: as Ctrl-C at a terminal, which reaches the ranks and their loader workers, too.

    PyTorch has ranks told of their parent's end, but not before they have imported PyTorch.
    """
    (process,) = reader.start_stage(stage, f"{ENDLESS} --workers 1")
    if when == "starting":
        wait_for(lambda: len(ranks_of(process)) == 2)
    else:
        wait_for_line(process)
    getattr(os, send)(process.pid, number)
    result = reader.finish(process)
    assert result.code != 0
    if (when, send) == ("training", "killpg"):
        if stage == "04_ddp_torchrun":  # torchrun and its ranks say where they were
            assert "SignalException" in result.err, result
        else:
            assert result.code in (-signal.SIGINT, 130) and "Traceback" not in result.err, result


@SLOW
def test_a_rank_that_hangs_is_given_up_after_the_timeout(reader):  # torchrun: test_rehearsal.py
    (process,) = reader.start_stage("03_ddp_spawn", f"{ENDLESS} --timeout 5")
    wait_for_line(process)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    result = reader.finish(process)
    assert result.code != 0
    assert "5000ms" in result.err, result

"""The from_scratch.py files as programs: they train for real, and launch; also when things fail."""

import os
import signal

import pytest
from conftest import ENDLESS, LINUX, TEST_IMAGES, record_of, wait_for_line

TRAIN = "-e 2 -b 24 --lr 0.02 --device cpu"
LAUNCH = "python 04_ddp_torchrun/from_scratch.py"


@pytest.mark.slow
def test_threads_train_with_the_flags_and_the_record_of_their_stage(reader):
    result = reader.run(f"python 02_dp/from_scratch.py --train {TRAIN}")
    assert result.code == 0 and result.out.startswith("02_dp-threads: "), result
    record = record_of(reader.folder)
    facts = {"stage": "02_dp-threads", "world_size": 2, "batch_size": 24}
    assert record | facts == record
    first, second = record["history"]
    assert second["loss"] < first["loss"] and second["test"][1] == TEST_IMAGES
    assert len(second["phases"]) == len(second["cpu"]) == 1  # There is one process.
    assert (reader.folder / "checkpoints/02_dp-threads.pt").is_file()


@pytest.mark.slow
@LINUX
def test_ctrl_c_ends_the_threads_at_once(reader):
    process = reader.start(f"python 02_dp/from_scratch.py --train {ENDLESS}")
    wait_for_line(process)
    process.send_signal(signal.SIGINT)
    result = reader.finish(process, timeout=60)
    assert result.code == -signal.SIGINT and "terminate called" not in result.err, result


ENDS_AFTER_BACKWARD = """
import importlib, torch
threads = importlib.import_module("02_dp.from_scratch")
parallel = threads.DataParallel(torch.nn.Linear(3, 2), [torch.device("cpu")] * 2)
for _ in range(3):
    parallel(torch.rand(4, 3)).sum().backward()
"""


@pytest.mark.slow
def test_processes_that_end_right_after_a_backward_on_threads(reader):
    """A thread that has run a backward and then ends may abort the process; see start_thread."""
    script = reader.folder / "ends.py"
    script.write_text(ENDS_AFTER_BACKWARD)
    runs = [reader.start(f"python {script}") for _ in range(4)]
    assert [reader.finish(run).code for run in runs] == [0] * 4


# ---------------------------------------------------------------- the launcher

STUBBORN = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_rank_is_named_and_one_that_ignores_sigterm_is_killed(reader):
    (reader.folder / "stubborn.py").write_text(STUBBORN)
    result = reader.run(f"{LAUNCH} stubborn.py")
    assert result.code == 128 + signal.SIGKILL, result
    assert "rank 1 failed first, with signal SIGKILL" in result.err


SLEEPS = """
import subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""


STOPS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]


@LINUX
@pytest.mark.parametrize(("stop", "code"), STOPS)
def test_a_stopped_launcher_stops_its_ranks_and_what_they_have_started(reader, stop, code):
    (reader.folder / "sleeps.py").write_text(SLEEPS)
    process = reader.start(f"{LAUNCH} sleeps.py")
    wait_for_line(process, start="[rank ")
    os.kill(process.pid, stop)
    result = reader.finish(process, timeout=60)
    assert (result.code, result.err) == (code, ""), result


FAILS = """
import os, sys
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")))
sys.exit(9)
"""


def test_every_rank_knows_its_number_and_restarts_are_counted(reader, called):
    (reader.folder / "fails.py").write_text(FAILS)
    flags = "--nproc-per-node 1 --max-restarts 2 fails.py"
    result = called("04_ddp_torchrun/from_scratch.py", flags)
    assert result.code == 9 and "restart 2 of 2" in result.err, result
    assert result.out.splitlines() == [f"[rank 0] 0 1 {attempt}" for attempt in range(3)]


def test_a_rank_that_a_signal_ends(reader, called):
    (reader.folder / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    result = called("04_ddp_torchrun/from_scratch.py", "--nproc-per-node 1 killed.py")
    assert result.code == 128 + signal.SIGKILL and "SIGKILL" in result.err, result

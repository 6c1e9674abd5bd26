"""The from_scratch.py files as programs: they train for real, and launch; also when things fail."""

import os
import signal

import pytest
from conftest import ENDLESS, LINUX, TEST_IMAGES, ranks_of, record_of, wait_for_line

TRAIN = "-e 2 -b 24 --lr 0.02 --device cpu"
LAUNCH = "python 04_ddp_torchrun/from_scratch.py"


@pytest.mark.parametrize(
    ("script", "flags", "name"),
    [
        ("02_dp", "--train", "02_dp-threads"),
        ("03_ddp_spawn", "--train naive", "03_ddp_spawn-naive"),
        pytest.param(
            "03_ddp_spawn", "--train bucketed", "03_ddp_spawn-bucketed", marks=pytest.mark.slow
        ),
    ],
)
def test_it_trains_with_the_flags_and_the_record_of_its_stage(reader, script, flags, name):
    result = reader.run(f"python {script}/from_scratch.py {flags} {TRAIN}")
    assert result.code == 0 and result.out.startswith(f"{name}: "), result
    file, record = record_of(reader.folder / "timings")
    assert file == f"{name}-b24-lr0.02-2xcpu.json"
    facts = {"stage": script, "name": name, "world_size": 2, "batch_size": 24}
    assert record | facts == record
    first, second = record["history"]
    assert second["loss"] < first["loss"] and second["test"][1] == TEST_IMAGES
    assert (reader.folder / f"checkpoints/{script}.pt").is_file()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("02_dp/from_scratch.py --train --devices 1", "at least 2 are needed"),
        ("03_ddp_spawn/from_scratch.py --train naive -b 25", "not divisible by 2 ranks"),
        ("03_ddp_spawn/from_scratch.py --train", "expected one argument"),
        ("03_ddp_spawn/from_scratch.py --train other", "invalid choice"),
        ("03_ddp_spawn/from_scratch.py -b 24", "only with --train"),
        ("03_ddp_spawn/from_scratch.py --train naive --no-such-flag", "--no-such-flag"),
        ("01_baseline/from_scratch.py --train", "--train"),
    ],
)
def test_bad_flags_of_the_training(reader, command, says):
    result = reader.run(f"python {command}")
    assert result.code == 2 and says in result.err and "Traceback" not in result.err, result


@LINUX
@pytest.mark.parametrize(
    "command",
    ["02_dp/from_scratch.py --train", "03_ddp_spawn/from_scratch.py --train bucketed"],
)
def test_ctrl_c_ends_the_training_without_a_traceback(reader, command):
    process = reader.start(f"python {command} {ENDLESS}")
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=60)
    assert result.code == 130, result
    assert "from_scratch.py: interrupted" in result.err and "Traceback" not in result.err, result


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
    codes = []
    for _ in range(2):
        runs = [reader.start(f"python {script}") for _ in range(3)]
        codes += [reader.finish(run).code for run in runs]
    assert codes == [0] * 6


# ---------------------------------------------------------------- the launcher


def test_the_launcher_runs_stage_4(reader):
    result = reader.run(f"{LAUNCH} --nproc-per-node 2 04_ddp_torchrun/train.py {TRAIN}")
    assert result.code == 0, result
    assert "[rank 0] epoch  2/2" in result.out and "[rank 1] epoch" not in result.out
    assert record_of(reader.folder / "timings")[1]["world_size"] == 2


def test_a_bad_call_of_the_launched_script_keeps_its_line_and_code(reader):
    result = reader.run(f"{LAUNCH} 04_ddp_torchrun/train.py -b 25 --device cpu")
    assert result.code == 2, result
    assert "04_ddp_torchrun: error: --batch-size 25 is not divisible" in result.out
    assert "failed first, with exit code 2" in result.err


@LINUX
def test_a_killed_rank_is_named_and_the_other_stopped(reader):
    process = reader.start(f"{LAUNCH} 04_ddp_torchrun/train.py {ENDLESS}")
    wait_for_line(process, start="[rank 0] epoch")
    ranks = ranks_of(process)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    result = reader.finish(process, timeout=20)
    assert result.code in (128 + signal.SIGKILL, 1), result
    assert "failed first" in result.err and result.seconds < 15


@LINUX
@pytest.mark.parametrize(
    ("stop", "code", "says"),
    [
        (signal.SIGINT, 130, "04_ddp_torchrun/from_scratch.py: interrupted"),
        (signal.SIGTERM, 143, ""),
    ],
)
def test_a_stopped_launcher_takes_its_ranks_along(reader, stop, code, says):
    process = reader.start(f"{LAUNCH} 04_ddp_torchrun/train.py --workers 1 {ENDLESS}")
    wait_for_line(process, start="[rank 0] epoch")
    os.kill(process.pid, stop)
    result = reader.finish(process, timeout=20)
    assert (result.code, result.err.strip()) == (code, says)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(3)
    sys.exit(4)
time.sleep(600)
"""


def test_a_rank_that_will_not_stop_is_killed(reader):
    script = reader.folder / "stubborn.py"
    script.write_text(STUBBORN)
    result = reader.run(f"{LAUNCH} {script}", timeout=60)
    assert result.code == 4 and "rank 0 failed first, with exit code 4" in result.err, result


def test_restarts_are_counted(reader):
    script = reader.folder / "fails.py"
    script.write_text(
        'import os\nprint(os.environ["TORCHELASTIC_RESTART_COUNT"])\nraise SystemExit(9)'
    )
    result = reader.run(f"{LAUNCH} --nproc-per-node 1 --max-restarts 2 {script}")
    assert result.code == 9, result
    assert result.out.split() == "[rank 0] 0 [rank 0] 1 [rank 0] 2".split()
    assert "restart 2 of 2" in result.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--nproc-per-node 0 04_ddp_torchrun/train.py", "at least 1"),
        ("--max-restarts -1 04_ddp_torchrun/train.py", "at least 0"),
        ("no_such_script.py", "there is no script no_such_script.py"),
        ("--nproc-per-node two x.py", "invalid int value"),
    ],
)
def test_bad_flags_of_the_launcher(reader, flags, says):
    result = reader.run(f"{LAUNCH} {flags}")
    assert result.code == 2 and says in result.err and "Traceback" not in result.err, result


def test_ranks_are_told_who_they_are(reader):
    script = reader.folder / "who.py"
    script.write_text('import os\nprint(os.environ["RANK"], os.environ["WORLD_SIZE"])')
    result = reader.run(f"{LAUNCH} --nproc-per-node 3 {script}")
    assert sorted(result.out.splitlines()) == [f"[rank {r}] {r} 3" for r in range(3)]

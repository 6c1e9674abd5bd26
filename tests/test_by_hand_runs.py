"""The by_hand.py files as programs: they train for real, and launch; also when things go wrong."""

import json
import os
import signal

import pytest
from test_failures import ENDLESS, LINUX, ranks_of, wait_for_line

TRAIN = "-e 2 -b 24 --lr 0.02 --device cpu"
LAUNCH = "python 04_ddp_torchrun/by_hand.py"


def record(reader, name):
    return json.loads((reader.folder / "timings" / f"{name}.json").read_text())


def test_data_parallel_by_hand_trains_on_two_threads(reader):
    result = reader.run(f"python 02_dp/by_hand.py --train {TRAIN}")
    assert result.code == 0 and "one process on 2 cpu" in result.out, result
    found = record(reader, "02_dp-by_hand-1xcpu")
    assert (found["variant"], found["world_size"], found["devices"]) == ("by_hand", 1, 2)
    assert found["train_loss"][1] < found["train_loss"][0] and found["test_total"] == 303
    same = reader.run("python 01_baseline/train.py --load checkpoints/02_dp.pt -e 0")
    assert f"{found['test_correct']} of 303" in same.out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("02_dp/by_hand.py --train -b 25", "--batch-size 25 does not divide by 2 ranks; 24 does"),
        ("02_dp/by_hand.py --train --devices 0", "--devices"),
        ("03_ddp_spawn/by_hand.py --train", "--train needs --naive or --bucketed"),
        ("03_ddp_spawn/by_hand.py --train --naive --bucketed", "not allowed with"),
        ("03_ddp_spawn/by_hand.py --train --naive --no-such-flag", "--no-such-flag"),
    ],
)
def test_bad_flags_of_the_training(reader, command, says):
    result = reader.run(f"python {command} --device cpu")
    assert result.code == 2 and says in result.err, result
    assert result.err.count("\n") == 1 and "Traceback" not in result.err
    assert sorted(path.name for path in reader.folder.iterdir() if not path.is_symlink()) == []


@LINUX
@pytest.mark.parametrize(
    "command", ["02_dp/by_hand.py --train", "03_ddp_spawn/by_hand.py --train --bucketed"]
)
def test_ctrl_c_ends_the_training_with_one_line(reader, command):
    process = reader.start(f"python {command} {ENDLESS}")
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=20)
    assert result.code == 130 and result.err.strip().endswith("by_hand.py: interrupted"), result
    assert result.err.strip().count("\n") == 0


ENDS_AFTER_BACKWARD = """
import importlib, torch
threads = importlib.import_module("02_dp.by_hand")
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
    assert record(reader, "04_ddp_torchrun-2xcpu")["world_size"] == 2


def test_a_bad_call_of_the_launched_script_keeps_its_line_and_code(reader):
    result = reader.run(f"{LAUNCH} 04_ddp_torchrun/train.py -b 25 --device cpu")
    assert result.code == 2, result
    assert "[rank 0] 04_ddp_torchrun: error: --batch-size 25 does not divide" in result.out
    assert "rank 0 failed first, with exit code 2" in result.err


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
    [(signal.SIGINT, 130, "04_ddp_torchrun/by_hand.py: interrupted"), (signal.SIGTERM, 143, "")],
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

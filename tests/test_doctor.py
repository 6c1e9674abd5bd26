"""The doctor: it names what is wrong, says nothing false, and leaves the script as it is.

The table of scripts is in tests/doctor/: cases.py has findings, mutants and innocent scripts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipapp

import psutil
import pytest
from conftest import ROOT, STAGES

from exercises import check

sys.path[:0] = [str(ROOT / "doctor"), str(ROOT / "tests/doctor")]
import cases  # noqa: E402
from ddp_doctor.__main__ import JUDGES  # noqa: E402

TORCHRUN = "torchrun --standalone --nproc-per-node 2"
EXERCISES = {e.file.stem.partition("_")[2]: e for e in check.all_exercises()}
LINES = {  # by exercise: what is in the line that the finding names, where that is certain
    "same_order": "for x, y in loader:",
    "padded_accuracy": "for x, y in loader:",
    "reduced_on_one_rank": "optimizer.step()",
    "same_augmentation": "loss = F.mse_loss(ddp_model(noisy), y)",
    "batch_and_rate": "optimizer.step()",
    "loss_of_unequal_counts": "loss.backward()",
    "no_sync_off_by_one": "optimizer.step()",
    "through_the_module": "loss.backward()",
    "unfrozen_after_wrapping": "optimizer.step()",
    "crossed_collectives": "dist.all_reduce(number)",
    "rank_0_evaluates": "return F.mse_loss(model(x), y).item()",
    "sharded_too_late": "optimizer.step()",
}
KEYS = {judge.exercise[3:]: judge.key for judge in JUDGES if judge.exercise}


@pytest.fixture
def doctor(reader, tmp_path):
    """Runs the doctor on a command, in an empty folder."""

    def run(command, flags="", timeout=200, **env):
        out = tmp_path / "found.json"
        out.unlink(missing_ok=True)
        (tmp_path / "tmp").mkdir(exist_ok=True)
        env["TMPDIR"] = str(tmp_path / "tmp")
        line = f"python '{ROOT}/doctor' --json '{out}' {flags} {command}"
        result = reader.run(line, timeout=timeout, **env)
        assert not list((tmp_path / "tmp").glob("ddp-doctor*")), "a file is left"
        said = json.loads(out.read_text()) if out.exists() else None
        return result, said

    return run


def keys(said, severity=None):
    return {f["key"] for f in said["findings"] if severity in (None, f["severity"])}


def test_a_mistake_is_named_with_its_line(doctor):
    exercise = EXERCISES["no_sync_off_by_one"]
    result, said = doctor(f"{TORCHRUN} '{exercise.file}'")
    assert result.code == 1 == said["exit"], result
    (found,) = [f for f in said["findings"] if f["severity"] == "wrong"]
    line = 1 + exercise.file.read_text().splitlines().index("            optimizer.step()")
    assert found["key"] == "last-pass-not-synced"
    assert found["at"].endswith(f"no_sync_off_by_one.py:{line}")
    assert found["exercise"] == exercise.number
    assert (ROOT / found["page"].partition("#")[0]).exists()
    assert "number 1 of" not in found["seen"] and "1 of its 4 backward passes" in found["seen"]
    assert "WRONG [last-pass-not-synced]" in result.out and said["ranks"] == 2


def test_a_right_script_trains_the_same_weights_bit_for_bit(doctor, reader, small_data):
    command = f"{TORCHRUN} 04_ddp_torchrun/minimal.py"
    reader.run(command)
    (reader.folder / "minimal.pt").rename(reader.folder / "without.pt")
    result, said = doctor(command)
    assert result.code == 0 and not keys(said, "wrong"), result
    assert len(said["looked_at"]) >= 4 and said["facts"]["samples"] == 240
    import torch

    left, right = (torch.load(reader.folder / f"{n}.pt") for n in ("without", "minimal"))
    assert all(torch.equal(left[name], right[name]) for name in left | right)


def test_without_ranks_nothing_is_said_to_be_right(doctor):
    result, said = doctor("python -c pass")
    assert result.code == 2 and said["ranks"] == 0 and said["not_judged"]
    assert "nothing is wrong" not in result.out
    result, said = doctor("no-such-command")
    assert result.code == 2 and said is None and result.err.count("\n") == 1


def test_the_page_has_every_finding_and_links_to_its_page_and_exercise():
    page = (ROOT / "docs/doctor.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` (.*)", page, re.MULTILINE))
    assert sorted(rows) == sorted(judge.key for judge in JUDGES)
    for judge in JUDGES:
        name, _, anchor = judge.page.partition("#")
        assert (ROOT / name).exists(), name
        assert f"{name.removeprefix('docs/')}{'#' if anchor else ''}{anchor})" in rows[judge.key]
        assert (f"/{judge.exercise}.py)" in rows[judge.key]) == bool(judge.exercise), judge.key


@pytest.mark.slow
def test_what_is_meant_can_be_ignored(doctor):
    command = f"{TORCHRUN} {EXERCISES['padded_accuracy'].file}"
    result, said = doctor(command, "--ignore padded-evaluation")
    assert result.code == 0 == said["exit"] and not said["findings"], result
    assert "padded-evaluation: left out by --ignore" in said["not_judged"]
    result, said = doctor("python -c pass", "--ignore no-such-key")
    assert result.code == 2 and "there is no such finding" in result.err


def test_the_version_names_the_versions_of_pytorch_that_were_tried(reader):
    result = reader.run(f"python '{ROOT}/doctor' --version")
    assert re.fullmatch(r"ddp-doctor \d+\.\d+, tried with PyTorch \d+\.\d+.*\n", result.out)


def test_a_zip_file_is_refused(reader):
    zipapp.create_archive(ROOT / "doctor", reader.folder / "doctor.pyz")
    result = reader.run("python doctor.pyz torchrun train.py")
    assert result.code == 2 and "error: a zip file" in result.err and not result.out


@pytest.mark.slow
def test_it_can_be_installed_alone_and_then_names_addresses(reader, tmp_path):
    shutil.copytree(ROOT / "doctor", tmp_path / "sources", ignore=shutil.ignore_patterns("build"))
    there = tmp_path / "there/packages"
    flags = f"-q --no-deps --no-build-isolation --target {there} {tmp_path}/sources"
    result = reader.run(f"python -m pip install {flags}", timeout=200)
    assert result.code == 0, result
    (case,) = [case for case in cases.mutants() if case.name == "same-order-classic-no-set_epoch"]
    (tmp_path / "train.py").write_text(case.source)
    command = f"python {there}/bin/ddp-doctor {case.command(tmp_path / 'train.py')}"
    result = reader.run(command, timeout=200, PYTHONPATH=str(there))
    assert result.code == 1 and "WRONG [same-order]" in result.out, result
    assert re.search(r"See https://\S+/docs/corrections.md#", result.out), result


@pytest.mark.slow
@pytest.mark.parametrize("way", ["raise", "kill", "limit"])
def test_a_run_that_does_not_end_well_is_never_right(way, doctor, tmp_path):
    ends = {"raise": "raise ValueError('no')", "kill": "os.kill(os.getpid(), 9)"}
    script = tmp_path / "train.py"
    start = "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    script.write_text(
        f"{start}dist.barrier()\nif dist.get_rank() == 1:\n    {ends.get(way, 'while 1: 1')}\n"
    )
    result, said = doctor(f"{TORCHRUN} {script}", "--limit 25" if way == "limit" else "")
    assert result.code == 2 and not keys(said, "wrong"), result
    sentence = {"raise": "rank 1 raised ValueError: no", "kill": "killed?", "limit": "limit"}
    assert sentence[way] in said["facts"]["sentence"]


@pytest.mark.slow
def test_a_rank_that_raises_makes_exit_code_2_whatever_the_command_returns(doctor, tmp_path):
    source = (ROOT / "tests/doctor/scripts/trainer.py").read_text()
    script = tmp_path / "train.py"
    script.write_text(source.replace("mean += loss", "raise ValueError('no') #"))
    result, said = doctor(f"bash -c 'python {script} & wait'")
    assert said["command"]["code"] == 0 and result.code == 2 == said["exit"], result
    assert "raised ValueError: no" in said["facts"]["sentence"]
    assert "nothing certain is wrong" not in result.out and "nothing is wrong" not in result.out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_signal_ends_the_ranks_and_a_second_one_does_not_lose_the_report(name, reader, tmp_path):
    script, number = tmp_path / "train.py", getattr(signal, name)
    script.write_text(
        "import signal, time, torch, torch.distributed as dist\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # so that ending it takes seconds
        "dist.init_process_group('gloo')\nprint('begun', flush=True)\ntime.sleep(500)\n"
    )
    command = [sys.executable, str(ROOT / "doctor"), *TORCHRUN.split(), str(script)]
    reset = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
    doctor = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=reader.env, preexec_fn=reset
    )
    assert "begun" in doctor.stdout.readline()
    doctor.send_signal(number)
    time.sleep(2)
    doctor.send_signal(number)
    out, _ = doctor.communicate(timeout=100)
    assert doctor.returncode == 2 and "The command was interrupted; 2 rank(s) seen" in out
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(script) in (p.info["cmdline"] or [])]
    assert not mine, "a process is left"


# ---------------------------------------------------------------- the exercises, the stages


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_each_broken_exercise_is_named_and_none_that_is_fixed(name, doctor, tmp_path):
    exercise, key = EXERCISES[name], KEYS[name]

    def judged(file):
        flags = ""
        if name == "batch_and_rate":
            doctor(f"{TORCHRUN[:-1]}1 {file}")
            flags = f"--alone {(tmp_path / 'found.json').rename(tmp_path / 'one.json')}"
        return doctor(f"{TORCHRUN} {file}", flags)

    result, said = judged(exercise.file)
    found = next((f for f in said["findings"] if f["key"] == key), None)
    assert found, result
    line = int(found["at"].rpartition(":")[2])
    assert LINES.get(name, "") in exercise.file.read_text().splitlines()[line - 1]
    if name == "rank_0_evaluates":
        assert said["command"]["end"] == "hang" and keys(said, "wrong") == {key}
        assert "rank 0 waits in forward of DDP" in found["seen"]
    if name == "padded_accuracy":  # whose output is on the page; the ranks print in either order
        shown = re.search(r"```text\n.*?\n\n(.*?)```", (ROOT / "docs/doctor.md").read_text(), re.S)
        assert shown[1] in result.out.replace(f"{ROOT}/", "")
    file = tmp_path / exercise.file.name
    file.write_text(exercise.solution)
    result, said = judged(file)
    assert not keys(said, "wrong") and key not in keys(said), result


@pytest.mark.slow
@pytest.mark.parametrize("script", ["minimal.py", "train.py"])
@pytest.mark.parametrize("stage", STAGES[2:])
def test_nothing_is_found_in_the_stages(stage, script, doctor):
    start = TORCHRUN if stage > "04" else "python"
    flags = "--epochs 2 --device cpu" if script == "train.py" else ""
    result, said = doctor(f"{start} {stage}/{script} {flags}")
    assert result.code == 0 and said["ranks"] == 2 and not said["findings"], result


# ---------------------------------------------------------------- the watchers


TRAIN = """
import os, sys, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
def train():
    store = dist.FileStore(sys.argv[1] + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    ddp, scaler = DistributedDataParallel(model), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(TensorDataset(torch.rand(8, 2), torch.rand(8, 2)), batch_size=4):
        scaler.scale(F.mse_loss(ddp(x), y)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    dist.all_reduce(torch.zeros(1))
    torch.save(model.state_dict(), sys.argv[1] + "/model.pt")
    torch.load(sys.argv[1] + "/model.pt")
    dist.destroy_process_group()
    return [p.tolist() for p in model.parameters()]
"""
ALONE = f"""{TRAIN}
import torch._dynamo  # DDP does it: here once, and not in each child
from ddp_doctor import record, watch, watch_data, watch_step
def child(change):
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return open(reading).read()
    os.environ["RANK"] = "0"
    sys.argv[1] = os.environ["DDP_DOCTOR_FOLDER"] = sys.argv[1] + f"/{{os.getpid()}}"
    os.mkdir(sys.argv[1])
    change()
    os.write(writing, repr(train()).encode())
    os._exit(0)
def moved(table, target):  # as if PyTorch had renamed it
    table[target.replace(" ", " moved_")] = table.pop(target)
    watch.install()
def failing(module, name):
    def fail(*args, **kwargs):
        raise KeyError(name)
    setattr(module, name, fail)
    watch.install()
plain = child(lambda: None)
assert "[[" in plain
for table in (watch_step.WATCHED, watch_data.WATCHED):
    for target in table:
        assert child(lambda: moved(table, target)) == plain, target
notes = ("note_", "open_", "close_", "end_", "look_")
for module in (watch, watch_data, watch_step):
    for name in [n for n in dir(module) if n.startswith(notes)]:
        assert child(lambda: failing(module, name)) == plain, name
print("all equal")
"""


@pytest.mark.slow
def test_a_watcher_that_fails_or_finds_nothing_to_watch_disturbs_nothing(tmp_path):
    command = [sys.executable, "-c", ALONE, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "doctor")}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert result.stdout == "all equal\n", result.stderr[-2000:]


# ---------------------------------------------------------------- mutants, and innocent scripts


def judged(*words):
    """[(name of the case, {key: severity})], from tests/doctor/judge_cases.py"""
    command = [sys.executable, str(ROOT / "tests/doctor/judge_cases.py"), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["name"] for line in lines if not line["ends_as_it_says"]] == []
    assert [line["failed"] for line in lines if line["failed"]] == []
    return lines


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_named():
    lines = judged()
    assert len(lines) >= 80
    assert [line["name"] for line in lines if line["named"] == line["missed"]] == []
    wrong = [(line, f[1]) for line in lines for f in line["findings"] if f[0] == "wrong"]
    assert [(line["name"], key) for line, key in wrong if key not in line["labels"]] == []


LAUNCHED = {case.name: case for case in cases.mutants() if "launched" in case.options}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHED)
def test_a_mistake_of_the_launch_is_named(name, doctor, tmp_path):
    case, file = LAUNCHED[name], tmp_path / "train.py"
    file.write_text(case.source)
    result, said = doctor(case.command(file))
    assert keys(said) & set(case.findings), result


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_innocent_script_is_called_wrong():
    lines = judged("--innocents")
    assert len(lines) >= 40
    assert [line["name"] for line in lines if "wrong" in (f[0] for f in line["findings"])] == []

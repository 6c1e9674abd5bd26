"""compare.py: one table and one picture, no ratio between unlike rows, failures shown."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import LINUX, NO_NETWORK, wait_for, wait_for_line

import compare
from lib import processes, records

PHASES = {"data": 0.5, "forward": 3.0, "backward": 6.0, "optimizer": 0.5}  # seconds of an epoch


def record(stage="01_baseline", faster=1.0, **facts):
    """A record as records.read returns it, with round numbers: 10 s an epoch."""
    ranks = facts.get("world_size", 1)
    phases = {phase: seconds / faster for phase, seconds in PHASES.items()}
    if ranks > 1:
        phases["exposed"] = 0.0
    warm_up = {phase: 2 * seconds for phase, seconds in phases.items()}
    cpu = sum(phases.values())  # The processor was never taken away.
    run = {
        "stage": stage,
        "file": "runs.jsonl",
        "epochs": 2,
        "batch_size": 240,
        "lr": 0.15,
        "device": "cpu",
        "backend": None,
        "amp": "off",
        "sync_batchnorm": False,
        "threads": 1,
        "workers": 0,
        "seed": 0,
        "world_size": 1,
        "hosts": 1,
        "images": 60_000,
        "dataset": "MNIST",
        "host": "here",
        "torch": "2.12.1",
        "device_name": "a CPU",
        "history": [
            {
                "loss": 0.2,
                "test": [9800, 10_000],
                "phases": [warm_up] * ranks,
                "cpu": [2 * cpu] * ranks,
            },
            {"loss": 0.1, "test": [9900, 10_000], "phases": [phases] * ranks, "cpu": [cpu] * ranks},
        ],
    }
    return run | facts


def line_of(table, name):
    return next(line for line in table.splitlines() if line.startswith(name))


def write(path, *lines):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


DDP = record("03_ddp_spawn", faster=1.5, world_size=2)


def table_of(*found):
    return records.speed_table(records.rows_of(found))


def test_a_ratio_between_rows_that_are_alike():
    table = table_of(record(), DDP)
    cells = line_of(table, "03_ddp_spawn").split()
    assert cells == ["03_ddp_spawn", "2", "9,000", "1.50", "75%", "99.00%"]
    assert line_of(table, "01_baseline").split()[2:5] == ["6,000", "1.00", "100%"]


def test_no_ratio_across_rows_that_differ():
    other = {"images": 1200, "batch_size": 120, "epochs": 3, "lr": 0.1, "threads": 2, "workers": 1}
    other |= {"seed": 1, "torch": "2.11.0", "host": "there", "device": "cuda"}
    other |= {"device_name": "a GPU", "dataset": "synthetic digits", "sync_batchnorm": True}
    assert set(other) | {"amp"} == set(records.ALIKE)
    for key, value in other.items():
        table = table_of(record(), {**DDP, key: value})
        assert line_of(table, "03_ddp_spawn").endswith("(1)") and "1.50" not in table
        reason = f"{key} is {value} here and {record()[key]} there"
        assert f"(1) no ratio to 01_baseline, because of other settings: {reason}" in table


def with_share(run, share):
    """The same record, whose rank 0 got this share of the processor time that it asked for."""
    warm_up, last = run["history"]
    seconds = sum(last["phases"][0].values())
    cpu = [share * seconds, *last["cpu"][1:]]
    return {**run, "history": [warm_up, {**last, "cpu": cpu}]}


def test_a_run_that_other_programs_disturbed_gets_no_ratio():
    table = table_of(record(), with_share(DDP, 0.6))
    assert line_of(table, "03_ddp_spawn").split()[2:5] == ["9,000", "-", "-"]
    assert "(1) disturbed: a rank got 60% of the processor time that it asked for" in table
    assert "--repeat" in table
    table = table_of(with_share(record(), 0.6), DDP)
    assert "1.50" not in table
    assert "no ratio to 01_baseline, because other programs disturbed the run of 01_base" in table
    waits = with_share(DDP, 0.6) | {"workers": 1}
    assert "disturbed" not in table_of(record(workers=1), waits), "it waits for its loader workers"
    assert "1.50" in table_of(record(), with_share(DDP, 0.99))


def test_a_disturbed_run_on_threads_gets_no_ratio():
    """Each of two threads asks for the whole time of forward and backward."""
    run = record("02_dp-threads", faster=1.5) | {"world_size": 2}
    phases = run["history"][1]["phases"][0]
    both = (sum(phases.values()) + phases["forward"] + phases["backward"]) / sum(phases.values())
    quiet = with_share(run, 0.9 * both)
    assert records.processor_share(quiet) == pytest.approx(0.9)
    assert records.disturbed([quiet]) is None
    assert records.disturbed([with_share(run, 0.7 * both)]) == pytest.approx(0.7)


@pytest.mark.parametrize("only", [("03",), ("03", "04"), ("01", "03"), ("01", "03", "04")])
def test_each_ratio_is_to_the_row_that_the_table_names(only):
    """In whatever subset of the stages: mixed precision never is its own base."""
    amp = {**DDP, "amp": "bf16"}
    torchrun = record("04_ddp_torchrun", faster=1.2, world_size=2)
    found = [run for run in (record(), DDP, amp, torchrun) if run["stage"][:2] in only]
    table = table_of(*found)
    base = found[0]
    for run in found:
        name = run["stage"] + (", amp bf16" if run["amp"] == "bf16" else "")
        ratio = f"{records.speed(run) / records.speed(base):.2f}"
        if run["amp"] == "bf16":
            ratio = "1.00 x fp32"  # to stage 3 without it
        assert ratio in line_of(table, f"{name} "), table


def test_mixed_precision_alone_has_no_ratio():
    amp = {**DDP, "amp": "bf16"}
    table = table_of(record(), amp)
    assert "amp is bf16 here and off there" in table and "fp32" not in table


def with_faults(run, faults):
    """The same record, each of whose ranks had so many page faults in an epoch of 250 steps."""
    ranks = [faults] * len(run["history"][0]["phases"])
    return {**run, "history": [{**epoch, "faults": ranks} for epoch in run["history"]]}


@pytest.mark.parametrize(
    ("own", "other", "name"),
    [(0, 0, ""), (70_000, 0, ""), (80_000, 0, "03_ddp_spawn"), (0, 80_000, "01_baseline")],
)
def test_memory_that_one_row_returned_gets_a_note(own, other, name):
    table = table_of(with_faults(record(), other), with_faults(DDP, own))
    notes = table.splitlines()[4:]
    assert len(notes) == bool(name)
    if name:
        assert name in notes[0] and "320 page faults" in notes[0]
        assert "MALLOC_TRIM_THRESHOLD_" in notes[0]


def test_the_base_is_the_first_row_or_the_one_with_equal_settings():
    torchrun = record("04_ddp_torchrun", faster=1.2, world_size=2)
    table = table_of(DDP, torchrun)
    assert "x 03_ddp_spawn" in table.splitlines()[0]
    assert line_of(table, "04_ddp_torchrun").split()[3:5] == ["0.80", "80%"]
    assert "differ by noise" in records.about(records.rows_of([DDP, torchrun]))
    small, two = record(faster=0.5, batch_size=120), {**DDP, "batch_size": 120}
    assert "3.00" in line_of(table_of(record(), small, two), "03_ddp_spawn, batch_size 120")


def test_runs_on_two_backends_are_two_rows():
    """On GPUs, --backend gloo lets two ranks share one. It must not count as a repeat."""
    nccl = {**DDP, "backend": "nccl"}
    gloo = record("03_ddp_spawn", world_size=2, backend="gloo")
    table = table_of(record(), nccl, gloo)
    assert line_of(table, "03_ddp_spawn, nccl").split()[3:5] == ["9,000", "1.50"]
    assert line_of(table, "03_ddp_spawn, gloo").split()[3:5] == ["6,000", "1.00"]
    assert line_of(table, "01_baseline ")


def test_stages_that_do_the_same_work_can_be_one_row():
    found = [record(), DDP, {**DDP, "stage": "05_multinode", "hosts": 2}]
    found.append({**DDP, "amp": "bf16"})
    rows = records.together(records.rows_of(found))
    assert [len(row) for row in rows] == [1, 2, 1]
    table = records.speed_table(rows)
    assert line_of(table, "DDP: stages 3, 5 ").split()[4:7] == ["2", "9,000", "1.50"]
    assert line_of(table, "03_ddp_spawn, amp bf16").endswith("(1)")


def test_lines_with_equal_settings_are_repeats_and_the_last_count():
    found = [record(faster=f) for f in (9, 1, 1, 1)]
    speeds = (9, 1.4, 1.5, 1.7)
    found += [record("03_ddp_spawn", faster=f, world_size=2) for f in speeds]
    found.append(record(batch_size=120))
    rows = records.rows_of(found, last=3)
    assert [len(row) for row in rows] == [3, 1, 3]
    table = records.speed_table(rows)
    assert "1.50 (1.45-1.60)" in table and "9,000 (8,700-9,600)" in table, "quartiles"
    assert "1.00 " in line_of(table, "01_baseline"), "nothing in brackets where nothing differs"
    assert records.find(rows, "01_baseline", batch_size=120) == [found[-1]]


def test_where_a_step_goes():
    def rank(backward, exposed):
        return {"data": 1, "forward": 2, "backward": backward, "exposed": exposed, "optimizer": 1}

    phases = [rank(4.0, 2.0), rank(5.0, 1.0)]
    history = [{"loss": 0.1, "test": [99, 100], "phases": phases}]
    rows = records.rows_of([record(), {**DDP, "history": history}])
    table = records.phase_table(rows)
    assert line_of(table, "03_ddp_spawn").split()[1:] == "4.00 8.00 18.00 6.00 4.00 40.00".split()
    assert line_of(table, "01_baseline").split()[1:] == "2.00 12.00 24.00 - 2.00 40.00".split()
    assert records.medians(rows[1])["step"] == pytest.approx(40)
    assert records.ratios(*rows[::-1]) == [1.0]
    one_step = record(batch_size=100_000)
    assert records.medians([one_step])["step"] == 10_000, "no more than the images that there are"


def test_files_are_read_without_running(reader, called):
    write(reader.folder / "timings/before.jsonl", DDP, record())
    write(reader.folder / "after.jsonl", record(faster=2.0))
    result = called("compare.py", "timings/before.jsonl")
    assert result.code == 0, result
    stages = [line.split()[0] for line in result.out.splitlines() if line[:1] == "0"]
    assert stages == ["01_baseline", "03_ddp_spawn"] * 2, "in two tables"
    assert sorted(os.listdir(reader.folder / "timings")) == ["before.jsonl"], "it only reads"
    both = called("compare.py", "timings/before.jsonl after.jsonl --only 01 --picture a.png")
    assert line_of(both.out, "01_baseline, file after.jsonl").split()[4:6] == ["12,000", "2.00"]
    assert "03_ddp_spawn" not in both.out and (reader.folder / "a.png").exists()
    none = called("compare.py", "after.jsonl --only 02 04")
    assert none.code == 2 and none.err.count("\n") == 1, none


def test_files_of_one_name_in_two_folders_are_two_rows(reader, called):
    """Every run writes timings/runs.jsonl by default, before a change as well as after it."""
    write(reader.folder / "before/timings/runs.jsonl", record())
    write(reader.folder / "after/timings/runs.jsonl", record(faster=2.0))
    result = called("compare.py", "before/timings/runs.jsonl after/timings/runs.jsonl")
    assert result.code == 0, result
    after = line_of(result.out, "01_baseline, file after/timings/runs.jsonl")
    assert after.split()[4:6] == ["12,000", "2.00"]


def without(key):
    """A record in which one key is missing."""
    found = record()
    del found[key]
    return json.dumps(found)


NOT_RECORDS = {
    "no JSON": "epoch 1/2: 10.08 s",
    "cut off": json.dumps(record())[:-10],
    "no dictionary": "[1, 2]",
    "no stage": without("stage"),
    "no history": without("history"),
    "no dataset": without("dataset"),
    "no epoch": json.dumps(record(history=[])),
    "no seconds": json.dumps(record(history=[{"loss": 0.1, "test": [1, 2], "phases": []}])),
    "an epoch of no time": json.dumps(record(history=[{"test": [1, 2], "phases": [{"data": 0}]}])),
    "no test image": json.dumps(record(history=[{"test": [0, 0], "phases": [{"data": 1}]}])),
    "text for a number": json.dumps(record(images="60000")),
    "a list for a number": json.dumps(record(seed=[0])),
    "a number for a stage": json.dumps(record(stage=1)),
    "no device": json.dumps(record(world_size=0)),
    "very deep": "[" * 100_000,
    "a huge number": "9" * 5000,
    "not UTF-8": '"\xff"',
}


@pytest.mark.parametrize("line", NOT_RECORDS.values(), ids=NOT_RECORDS)
def test_a_line_that_is_not_a_record_is_named(reader, called, line):
    (reader.folder / "odd.jsonl").write_text(f"{json.dumps(DDP)}\n{line}\n", encoding="latin-1")
    result = called("compare.py", "odd.jsonl")
    assert result.code == 2 and result.err.count("\n") == 1 and not result.out, result
    assert result.err.startswith("compare.py: odd.jsonl, line 2 is not a record: ")


def test_what_a_stage_does_not_write_has_a_default(tmp_path):
    """Stages 1 and 2 have no mixed precision and no backend, stages 4 and 5 no SyncBatchNorm."""
    bare = record()
    for key in ("file", "amp", "sync_batchnorm", "backend"):
        del bare[key]
    write(tmp_path / "runs.jsonl", bare)
    assert records.read(tmp_path / "runs.jsonl") == [record(file=str(tmp_path / "runs.jsonl"))]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--only 06", "06"),
        ("--repeat 0", "--repeat 0: at least 1"),
        ("--record /dev/null/here", "/dev/null"),
        ("--device cuda --world-size 100", "100"),
        ("docs", "Is a directory: 'docs'"),
        ("nowhere", "No such file or directory: 'nowhere'"),
    ],
)
def test_bad_flags(called, flags, named):
    result = called("compare.py", flags)
    assert result.code == 2 and "Traceback" not in result.err, result
    assert result.err.count("compare.py: ") == 1 and named in result.err, result
    assert result.out == "", "nothing was run"


def plan(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["compare.py", *flags])
    return compare.plan(compare.parse(), "data")


def test_every_stage_is_in_the_plan(monkeypatch):
    monkeypatch.setattr(compare, "native_amp", lambda device: ("bf16",))
    stages = ["01_baseline", "02_dp-threads", "03_ddp_spawn", "03_ddp_spawn with bf16"]
    stages += ["04_ddp_torchrun", "05_multinode"]
    jobs = plan(monkeypatch, "--device", "cpu")
    assert [name for name, _ in jobs] == stages
    assert {gpus for _, commands in jobs for _, gpus in commands} == {""}
    some = plan(monkeypatch, "--device", "cpu", "--only", "03", "04", "--world-size", "1")
    assert [name for name, _ in some] == stages[2:5]


@pytest.mark.parametrize(
    ("visible", "count", "ranks", "devices"),
    [
        (None, 1, None, "0"),
        (None, 8, None, "0,1,2,3,4,5,6,7"),
        ("5,GPU-7,2", 3, 2, "5,GPU-7"),  # the names that the environment has for them
    ],
)
def test_every_job_gets_the_same_gpus(monkeypatch, visible, count, ranks, devices):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(compare.torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(processes, "ask", lambda question: "True")
    jobs = dict(plan(monkeypatch, *(["--world-size", str(ranks)] if ranks else [])))
    several = len(devices) > 1
    assert ("02_dp" in jobs) == several and "02_dp-threads" not in jobs
    assert {"03_ddp_spawn with fp16", "03_ddp_spawn with bf16"} < set(jobs)
    nodes = jobs.pop("05_multinode")
    assert len(nodes) == (2 if several else 1)
    each = [gpus.split(",") for _, gpus in nodes]
    assert sorted(sum(each, [])) == sorted(devices.split(","))
    assert len({len(own) for own in each}) == 1
    assert all(f"--nproc-per-node {len(each[0])}" in " ".join(command) for command, _ in nodes)
    for commands in jobs.values():
        assert [gpus for _, gpus in commands] == [devices]
        assert "--device cuda" in " ".join(commands[0][0])


@pytest.mark.parametrize(
    ("found", "kinds"),
    [({"avx2": True}, ()), ({"amx_bf16": False, "avx512_bf16": True}, ("bf16",)), ({}, ())],
)
def test_without_instructions_for_bf16_there_is_no_row_of_it(monkeypatch, found, kinds):
    monkeypatch.setattr(compare.torch.cpu, "get_capabilities", lambda: found)
    assert compare.native_amp("cpu") == kinds


def test_a_run_appends_to_the_file_and_shows_its_own_lines(reader, called, monkeypatch):
    monkeypatch.setattr(compare, "plan", lambda args, root: [("01_baseline", [])])
    line = json.dumps(record()) + "\n"
    monkeypatch.setattr(compare, "run", lambda commands: line)
    for repeats, lines in ((3, 3), (1, 4)):
        assert called("compare.py", f"--device cpu --repeat {repeats}").code == 0
        assert (reader.folder / "timings/runs.jsonl").read_text() == line * lines, "as it is"
    assert sorted(os.listdir(reader.folder / "timings")) == ["runs.jsonl", "runs.png"]


@pytest.mark.slow
def test_stages_are_run(reader):
    """Those that start soonest; what starts each of the others is tested with the others."""
    flags = "--only 01 04 05 -e 1 -b 24 --lr 0.02 --device cpu"
    switches = {"PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1"}
    result = reader.run(f"python compare.py {flags}", timeout=280, **switches)
    assert result.code == 0, result
    written = records.read(reader.folder / "timings/runs.jsonl")
    assert [run["stage"] for run in written] == ["01_baseline", "04_ddp_torchrun", "05_multinode"]
    assert "is NOT MNIST" in result.out
    assert {run["dataset"] for run in written} == {"synthetic digits"}
    assert not (reader.folder / "checkpoints").exists(), "a comparison leaves records only"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="asks who may write")
def test_a_stage_that_fails_is_shown_and_the_others_run(reader, tmp_path_factory):
    """Only --record is written to: the folder of the stages may be read-only."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "runs.jsonl"
    before = sorted(reader.folder.iterdir())
    flags = f"--only 04 01 -e 1 -b 25 --lr 0.02 --device cpu --record {elsewhere}"
    result = reader.run(f"python compare.py {flags}")
    assert result.code == 1, result
    assert "failed: train.py: error: --batch-size 25" in result.out
    assert re.search(r"^01_baseline +1 +[\d,]+ +1.00", result.out, re.MULTILINE)
    assert sorted(reader.folder.iterdir()) == before


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "stop", "code"),
    [
        ("03", signal.SIGTERM, 143),
        ("04", signal.SIGHUP, 129),
        ("05", signal.SIGINT, 130),
        ("05", signal.SIGKILL, -9),
    ],
)
def test_a_signal_ends_the_stage_too(reader, stage, stop, code):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, ignores it
    process = reader.start(f"python compare.py --only {stage} -e 1000 --lr 0.001 --device cpu")
    wait_for_line(process)
    os.kill(process.pid, stop)
    result = reader.finish(process, timeout=60)
    assert result.code == code, result
    assert (reader.folder / "timings/runs.jsonl").read_text() == ""


@LINUX
def test_ctrl_c_ends_it_while_it_imports_pytorch(reader):
    process = reader.start("python compare.py")
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process)
    assert result.code == -signal.SIGINT and result.err == "", result


def test_missing_data_are_named_with_what_to_do(reader, called, monkeypatch):
    for name, address in NO_NETWORK.items():
        monkeypatch.setenv(name, address)
    (reader.folder / "mine").mkdir()
    result = called("compare.py", "--data mine")
    assert result.code == 2 and "no MNIST in mine" in result.err, result
    assert (reader.folder / "mine").is_dir(), "an empty folder of the user's stays"
    assert "tools/draw_digits.py mine" in result.err
    assert called("tools/draw_digits.py", "mine --train 20 --test 20").code == 0


@pytest.mark.slow
def test_without_a_network_synthetic_digits_replace_mnist(reader):
    del reader.env["MNIST_ROOT"]
    result = reader.run("python compare.py --only 01 -e 1 --device cpu", timeout=280, **NO_NETWORK)
    assert result.code == 0, result
    assert "data/drawn is NOT MNIST" in result.out and "\nsynthetic digits, " in result.out

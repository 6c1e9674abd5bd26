"""compare.py: one table and one picture, no ratio between unlike rows, failures shown."""

import json
import os
import re
import signal
import sys

import pytest
from conftest import LINUX, wait_for_line

import compare
from tools import records

PHASES = {"data": 0.5, "forward": 3.0, "backward": 6.0, "optimizer": 0.5}  # seconds of an epoch


def record(stage="01_baseline", faster=1.0, **facts):
    """A record as a stage and compare.py write it, with round numbers: 10 s an epoch."""
    ranks = facts.get("world_size", 1)
    waits = {"exposed": 0.0} if ranks > 1 else {}
    phases = {phase: seconds / faster for phase, seconds in {**PHASES, **waits}.items()}
    warm_up = {phase: 2 * seconds for phase, seconds in phases.items()}
    history = [
        {"loss": 0.2, "test": [9800, 10_000], "phases": [warm_up] * ranks},
        {"loss": 0.1, "test": [9900, 10_000], "phases": [phases] * ranks},
    ]
    flags = {"epochs": 2, "batch_size": 240, "lr": 0.15, "threads": 1, "workers": 0, "seed": 0}
    machine = {"device": "cpu", "host": "here", "torch": "2.12.1", "device_name": "a CPU"}
    row = {"stage": stage, "name": stage, **flags, **machine}
    row |= {"amp": "off", "world_size": 1, "sync_batchnorm": False}
    row |= {"images": 60_000, "hosts": 1, "dataset": "MNIST", "history": history}
    return row | {"startup_seconds": 3.0, "command_seconds": 40.0} | facts


def rows_of(*records):
    return {f"{number}-{r['name']}": [r] for number, r in enumerate(records)}


def line_of(table, name):
    return next(line for line in table.splitlines() if line.startswith(name))


def write(folder, *records):
    folder.mkdir(exist_ok=True, parents=True)
    for r in records:
        ranks = f"{r['world_size']}xcpu"
        settings = "" if r["batch_size"] == 240 else f"-b{r['batch_size']}"
        (folder / f"{r['name']}{settings}-{ranks}.json").write_text(json.dumps(r))


DDP = record("03_ddp_spawn", faster=1.5, world_size=2)


def test_a_ratio_between_rows_that_are_alike():
    table = records.speed_table(rows_of(record(), DDP))
    cells = line_of(table, "03_ddp_spawn").split()
    assert cells == ["03_ddp_spawn", "2", "9,000", "1.50", "75%", "99.00%", "3.0", "40.0"]
    assert line_of(table, "01_baseline").split()[2:5] == ["6,000", "1.00", "100%"]


def test_no_ratio_across_rows_that_differ():
    other = {"images": 1200, "batch_size": 120, "epochs": 3, "lr": 0.1, "threads": 2, "workers": 1}
    other |= {"seed": 1, "amp": "bf16", "torch": "2.11.0", "host": "there", "device": "cuda"}
    other |= {"device_name": "a GPU", "dataset": "drawn (NOT MNIST)", "sync_batchnorm": True}
    assert set(other) == set(records.ALIKE)
    for key, value in other.items():
        base, row = record(), {**DDP, key: value}
        assert records.ratios([row], [base]) == []
        table = records.speed_table(rows_of(base, row))
        assert line_of(table, "03_ddp_spawn").endswith("(1)") and "1.50" not in table
        assert f"(1) {key} {value}, not {base[key]}: no ratio to 01_baseline" in table


def test_without_stage_1_the_first_row_is_the_base():
    torchrun = record("04_ddp_torchrun", faster=1.2, world_size=2)
    table = records.speed_table(rows_of(DDP, torchrun))
    assert "x 03_ddp_spawn" in table.splitlines()[0]
    assert line_of(table, "04_ddp_torchrun").split()[3:5] == ["0.80", "80%"]
    assert "what they differ by is noise" in records.about(rows_of(DDP, torchrun))


def test_repeats_show_their_minimum_and_maximum():
    speeds = (1.4, 1.5, 1.7)
    rows = {"a": [record()] * 3}
    rows["b"] = [record("03_ddp_spawn", faster=s, world_size=2) for s in speeds]
    table = records.speed_table(rows)
    assert "1.50 (1.40-1.70)" in table and "9,000 (8,400-10,200)" in table
    assert "1.00 " in line_of(table, "01_baseline"), "nothing in brackets where nothing differs"


def test_where_a_step_goes():
    def rank(backward, exposed):
        return {"data": 1, "forward": 2, "backward": backward, "exposed": exposed, "optimizer": 1}

    phases = [rank(4.0, 2.0), rank(5.0, 1.0)]
    history = [{"loss": 0.1, "test": [99, 100], "phases": phases}]
    ddp = {**DDP, "history": history}
    table = records.phase_table(rows_of(record(), ddp))
    assert line_of(table, "03_ddp_spawn").split()[1:] == ("4.00 8.00 18.00 6.00 4.00 40.00".split())
    assert line_of(table, "01_baseline").split()[1:] == "2.00 12.00 24.00 - 2.00 40.00".split()


def test_two_records_phase_by_phase(reader, called):
    write(reader.folder, record(), DDP)
    result = called("compare.py", "01_baseline-1xcpu.json 03_ddp_spawn-2xcpu.json")
    assert result.code == 0, result
    assert "B differs in world_size 2, not 1" in result.out
    assert line_of(result.out, "forward").split() == ["forward", "12.00", "8.00", "0.67"]
    assert line_of(result.out, "images/s").split() == ["images/s", "6,000", "9,000", "1.50"]
    assert line_of(result.out, "exposed").split()[-1] == "-", "no ratio to 0.00"


def test_two_folders(reader, called):
    write(reader.folder / "a", record(), DDP)
    for repeat in (1, 2):
        write(reader.folder / f"b/repeat-{repeat}", record(faster=repeat), record("02_dp"))
    result = called("compare.py", "a b")
    assert result.out.count("A = a: ") == 1 and "01_baseline-1xcpu" in result.out
    assert "forward" in result.out and "9.00 (6.00-12.00)" in result.out
    write(reader.folder / "c", record("02_dp"))
    nothing = called("compare.py", "a c")
    assert nothing.code == 2 and "no record of the same name" in nothing.err


def test_records_are_read_without_running(reader, called):
    write(reader.folder / "timings", DDP, record())
    result = called("compare.py", "--no-run")
    assert result.code == 0, result
    stages = [line.split()[0] for line in result.out.splitlines() if line[:1] == "0"]
    assert stages == ["01_baseline", "03_ddp_spawn"] * 2, "in two tables"
    assert "start-up (s)" in result.out and "command (s)" in result.out
    assert not (reader.folder / "timings" / "compare.png").exists(), "it only reads"
    one = called("compare.py", "--no-run --only 03")
    assert "03_ddp_spawn" in one.out and "01_baseline" not in one.out, one
    assert called("compare.py", "--no-run --picture").code == 0
    assert (reader.folder / "timings/compare.png").exists()
    none = called("compare.py", "--no-run --only 02 04")
    assert none.code == 2 and none.err.count("\n") == 1, none


BAD_RECORDS = {
    "text": "not json",
    "lacks a key": {key: value for key, value in record().items() if key != "lr"},
    "no history": record(history=[]),
    "no time": record(history=[{"test": [9, 10], "phases": [dict.fromkeys(PHASES, 0)]}]),
    "not numbers": record(history=[{"test": [9, 10], "phases": [dict.fromkeys(PHASES, "1")]}]),
}


def test_a_file_that_is_not_a_record_is_named(reader, called):
    write(reader.folder / "timings", record())
    for why, bad in BAD_RECORDS.items():
        text = bad if isinstance(bad, str) else json.dumps(bad)
        (reader.folder / "timings" / "odd.json").write_text(text)
        result = called("compare.py", "--no-run")
        assert result.code == 2 and result.err.count("\n") == 1 and not result.out, (why, result)
        assert "timings/odd.json is not a record" in result.err, why


def test_repeats_that_differ_are_no_repeats(reader, called):
    for turn, facts in ((1, {}), (2, {"batch_size": 120})):
        path = reader.folder / f"timings/repeat-{turn}/a.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record(**facts)))
    result = called("compare.py", "--no-run")
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert "timings/repeat-2/a.json" in result.err and "batch_size 120" in result.err


@pytest.mark.parametrize(
    "flags",
    [
        "--only 06",
        "--repeat 0",
        "--record /dev/null/here",
        "--device cuda --world-size 100",
        "one",
    ],
)
def test_bad_flags(called, flags):
    result = called("compare.py", flags)
    assert result.code == 2 and "Traceback" not in result.err, result
    assert result.err.count("compare.py: ") == 1
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
    assert {gpus for _, processes in jobs for _, gpus in processes} == {""}
    some = plan(monkeypatch, "--device", "cpu", "--only", "03", "04", "--world-size", "1")
    assert [name for name, _ in some] == stages[2:5]


@pytest.mark.parametrize(
    ("count", "ranks", "devices"),
    [(1, None, "0"), (8, 2, "0,1"), (8, None, "0,1,2,3,4,5,6,7")],
)
def test_every_job_gets_the_same_gpus(monkeypatch, count, ranks, devices):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(compare.torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(compare, "asked", lambda question: "True")
    jobs = dict(plan(monkeypatch, *(["--world-size", str(ranks)] if ranks else [])))
    several = len(devices) > 1
    assert ("02_dp" in jobs) == several and "02_dp-threads" not in jobs
    assert {"03_ddp_spawn with fp16", "03_ddp_spawn with bf16"} < set(jobs)
    nodes = jobs.pop("05_multinode")
    assert len(nodes) == (2 if several else 1)
    each = [gpus.split(",") for _, gpus in nodes]
    assert sorted(sum(each, [])) == devices.split(",") and len({len(own) for own in each}) == 1
    assert all(f"--nproc-per-node {len(each[0])}" in " ".join(command) for command, _ in nodes)
    for processes in jobs.values():
        assert [gpus for _, gpus in processes] == [devices]
        assert "--device cuda" in " ".join(processes[0][0])


def test_gpus_keep_the_names_that_the_environment_has_for_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,2")
    monkeypatch.setattr(compare.torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(compare, "asked", lambda question: "False")
    jobs = plan(monkeypatch, "--world-size", "2")
    assert {gpus for _, processes in jobs[:4] for _, gpus in processes} == {"5,GPU-7"}
    assert compare.native_amp("cuda") == ("fp16",)


@pytest.mark.parametrize(
    ("found", "kinds"),
    [({"avx2": True}, ()), ({"amx_bf16": False, "avx512_bf16": True}, ("bf16",)), ({}, ())],
)
def test_without_instructions_for_bf16_there_is_no_row_of_it(monkeypatch, found, kinds):
    monkeypatch.setattr(compare.torch.cpu, "get_capabilities", lambda: found)
    assert compare.native_amp("cpu") == kinds


def test_records_of_earlier_repeats_are_removed(reader, called, monkeypatch):
    monkeypatch.setattr(compare, "plan", lambda args, root: [("01_baseline", [])])
    monkeypatch.setattr(compare, "run", lambda processes, facts: ("a.json", record()))
    for repeat in (3, 2, 1):
        assert called("compare.py", f"--device cpu --repeat {repeat}").code == 0
        left = sorted(path.parent.name for path in (reader.folder / "timings").rglob("*.json"))
        folders = ["timings"] if repeat == 1 else [f"repeat-{n + 1}" for n in range(repeat)]
        assert left == folders and not list((reader.folder / "timings").rglob("*.tmp"))


@pytest.mark.slow
def test_stages_are_run(reader):
    """Those that start soonest; what starts each of the others is tested with the others."""
    command = "python compare.py --only 01 04 05 -e 1 -b 24 --lr 0.02 --device cpu"
    result = reader.run(command, timeout=280)
    assert result.code == 0, result
    assert "NOT MNIST" in result.out and "s left" in result.out
    names = sorted(path.name for path in (reader.folder / "timings").iterdir())
    assert [name[:2] for name in names] == ["01", "04", "05", "co"], names
    written = json.loads((reader.folder / "timings" / names[1]).read_text())
    assert 0 < written["startup_seconds"] < written["command_seconds"]
    assert written["dataset"].endswith("(NOT MNIST)")
    assert not (reader.folder / "checkpoints").exists(), "a comparison leaves records only"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="asks who may write")
def test_a_stage_that_fails_is_shown_and_the_others_run(reader, tmp_path_factory):
    """Only --record is written to: the folder of the stages may be read-only."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = sorted(reader.folder.iterdir())
    flags = f"--only 04 01 -e 1 -b 25 --lr 0.02 --device cpu --record {elsewhere}"
    result = reader.run(f"python compare.py {flags}")
    assert result.code == 1, result
    assert "failed: 04_ddp_torchrun: error: --batch-size 25 is not divisible by 2" in result.out
    assert re.search(r"^01_baseline +1 +[\d,]+ +1.00", result.out, re.MULTILINE)
    assert sorted(reader.folder.iterdir()) == before


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "stop", "code"), [("03", signal.SIGTERM, 143), ("05", signal.SIGINT, 130)]
)
def test_a_signal_ends_the_stage_too(reader, stage, stop, code):
    process = reader.start(f"python compare.py --only {stage} -e 1000 --lr 0.001 --device cpu")
    wait_for_line(process, start="    epoch")
    os.kill(process.pid, stop)
    result = reader.finish(process, timeout=60)
    assert result.code == code, result
    assert not list((reader.folder / "timings").glob("*.json"))


def test_missing_data_are_named_with_what_to_do(reader, called, monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    result = called("compare.py", "--data nowhere")
    assert result.code == 2 and "no MNIST in nowhere" in result.err, result
    assert "tools/draw_digits.py nowhere" in result.err
    assert not (reader.folder / "nowhere").exists(), "no empty folders of the download"


@pytest.mark.slow
def test_without_a_network_digits_are_drawn_and_are_not_called_mnist(reader):
    proxies = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    del reader.env["MNIST_ROOT"]
    result = reader.run("python compare.py --only 01 -e 1 --device cpu", timeout=280, **proxies)
    assert result.code == 0, result
    assert "data/drawn is NOT MNIST" in result.out and "drawn (NOT MNIST)" in result.out
    assert not (reader.folder / "data/MNIST").exists(), "no empty folders of the download"

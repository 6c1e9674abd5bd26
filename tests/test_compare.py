"""compare.py: one table and one picture, no ratio between unlike rows, failures shown."""

import json
import os
import re
import signal
import sys

import pytest
from conftest import LINUX, ROOT, STAGES, wait_for_line

sys.path.insert(0, str(ROOT))
import compare

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
    row = {"stage": stage, "name": stage, **flags, **machine, "amp": "off", "world_size": 1}
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
    table = compare.speed_table(rows_of(record(), DDP))
    cells = line_of(table, "03_ddp_spawn").split()
    assert cells == ["03_ddp_spawn", "2", "9,000", "1.50", "75%", "99.00%", "3.0", "40.0"]
    assert line_of(table, "01_baseline").split()[2:5] == ["6,000", "1.00", "100%"]


def test_no_ratio_across_rows_that_differ():
    other = {"images": 1200, "batch_size": 120, "epochs": 3, "lr": 0.1, "threads": 2, "workers": 1}
    other |= {"seed": 1, "amp": "bf16", "torch": "2.11.0", "host": "there", "device": "cuda"}
    other |= {"device_name": "a GPU", "dataset": "drawn (NOT MNIST)"}
    assert set(other) == set(compare.ALIKE)
    for key, value in other.items():
        base, row = record(), {**DDP, key: value}
        assert compare.ratios([row], [base]) == []
        table = compare.speed_table(rows_of(base, row))
        assert line_of(table, "03_ddp_spawn").endswith("(1)") and "1.50" not in table
        assert f"(1) {key} {value}, not {base[key]}: no ratio to 01_baseline" in table


def test_a_record_of_a_stage_lacks_what_compare_adds():
    own = {key: value for key, value in DDP.items() if not key.endswith("_seconds")}
    own = {key: value for key, value in own.items() if key not in ("dataset", "device_name")}
    cells = line_of(compare.speed_table(rows_of(record(), own)), "03_ddp_spawn").split()
    assert cells[3] == "1.50" and cells[-2:] == ["-", "-"]


def test_mixed_precision_is_compared_with_its_own_stage():
    bf16 = record("03_ddp_spawn", faster=1.8, world_size=2, amp="bf16")
    table = compare.speed_table(rows_of(record(), DDP, bf16))
    assert "(1) amp bf16, not off: no ratio to 01_baseline; 1.20 x 03_ddp_spawn" in table


def test_without_stage_1_the_first_row_is_the_base():
    torchrun = record("04_ddp_torchrun", faster=1.2, world_size=2)
    table = compare.speed_table(rows_of(DDP, torchrun))
    assert "x 03_ddp_spawn" in table.splitlines()[0]
    assert line_of(table, "04_ddp_torchrun").split()[3:5] == ["0.80", "80%"]
    assert "what they differ by is noise" in compare.about(rows_of(DDP, torchrun))


def test_more_than_the_devices_explain_is_remarked():
    table = compare.speed_table(rows_of(record(), record("03_ddp_spawn", 2.2, world_size=2)))
    assert line_of(table, "03_ddp_spawn").split()[3:5] == ["2.20", "110%"]
    assert "(1) above 100 %" in table


def test_repeats_show_their_minimum_and_maximum():
    speeds = (1.4, 1.5, 1.7)
    rows = {"a": [record()] * 3}
    rows["b"] = [record("03_ddp_spawn", faster=s, world_size=2) for s in speeds]
    table = compare.speed_table(rows)
    assert "1.50 (1.40-1.70)" in table and "9,000 (8,400-10,200)" in table
    assert "1.00 " in line_of(table, "01_baseline"), "nothing in brackets where nothing differs"


def test_what_has_to_be_known_is_printed_before_the_figures():
    assert "stands in for a device" in compare.about(rows_of(record()))
    assert "stands in for a device" not in compare.about(rows_of(record(device="cuda")))
    assert "NOT MNIST" in compare.about(rows_of(record(dataset="drawn (NOT MNIST)")))


def test_where_a_step_goes():
    def rank(backward, exposed):
        return {"data": 1, "forward": 2, "backward": backward, "exposed": exposed, "optimizer": 1}

    phases = [rank(4.0, 2.0), rank(5.0, 1.0)]
    history = [{"loss": 0.1, "test": [99, 100], "phases": phases}]
    ddp = {**DDP, "history": history}
    table = compare.phase_table(rows_of(record(), ddp))
    assert line_of(table, "03_ddp_spawn").split()[1:] == (
        "4.00 8.00 18.00 6.00 4.00 40.00 1 (+12.5%)".split()
    )
    assert line_of(table, "01_baseline").split()[1:] == "2.00 12.00 24.00 - 2.00 40.00 -".split()


def test_two_records_phase_by_phase(reader, called):
    write(reader.folder, record(), DDP)
    result = called("compare.py", "01_baseline-1xcpu.json 03_ddp_spawn-2xcpu.json")
    assert result.code == 0, result
    assert "B differs in world_size 2, not 1" in result.out
    assert line_of(result.out, "forward").split() == ["forward", "12.00", "8.00", "0.67"]
    assert line_of(result.out, "images/s").split() == ["images/s", "6,000", "9,000", "1.50"]


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
    assert (reader.folder / "timings" / "compare.png").read_bytes().startswith(b"\x89PNG")


BAD_RECORDS = {
    "empty": "",
    "text": "not json",
    "a list": "[]",
    "lacks keys": '{"stage": "01_baseline"}',
    "no images": json.dumps(record(images=0)),
    "no history": json.dumps(record(history=[])),
    "no time": json.dumps(
        record(history=[{"loss": 0.1, "test": [1, 1], "phases": [dict.fromkeys(PHASES, 0)]}])
    ),
    "no test images": json.dumps(
        record(history=[{"loss": 0.1, "test": [0, 0], "phases": [PHASES]}])
    ),
}


@pytest.mark.parametrize("text", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_file_that_is_not_a_record_is_named(reader, called, text):
    write(reader.folder / "timings", record())
    (reader.folder / "timings" / "odd.json").write_text(text)
    result = called("compare.py", "--no-run")
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert "timings/odd.json is not a record" in result.err


def test_no_records(called):
    result = called("compare.py", "--no-run")
    assert result.code == 2 and "no records in timings" in result.err, result


@pytest.mark.parametrize(
    "flags",
    ["--only 06", "--epochs 0", "--world-size 0", "--repeat 0", "--record /dev/null/here", "one"],
)
def test_bad_flags(called, flags):
    result = called("compare.py", flags)
    assert result.code == 2 and "Traceback" not in result.err, result
    assert result.out == "", "nothing was run"


def plan(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["compare.py", "--device", "cpu", *flags])
    return [name for name, _ in compare.plan(compare.parse())]


def test_every_stage_is_in_the_plan(monkeypatch):
    monkeypatch.setattr(compare, "native_amp", lambda device: ("bf16",))
    stages = ["01_baseline", "02_dp-threads", "03_ddp_spawn", "03_ddp_spawn with bf16"]
    stages += ["04_ddp_torchrun", "05_multinode"]
    assert plan(monkeypatch) == stages
    every = plan(monkeypatch, "--all")
    assert set(every) - set(stages) == {"03_ddp_spawn-bucketed", "03_ddp_spawn-naive"}
    assert plan(monkeypatch, "--only", "03", "04")[-1] == "04_ddp_torchrun"


def test_without_instructions_for_bf16_there_is_no_row_of_it(monkeypatch):
    monkeypatch.setattr(compare.torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert compare.native_amp("cpu") == ()
    monkeypatch.setattr(compare.torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert compare.native_amp("cpu") == ("bf16",)


@pytest.mark.slow
def test_stages_are_run(reader):
    """Those that start soonest; what starts each of the others is tested with the others."""
    command = "python compare.py --only 01 04 05 --repeat 2 -e 1 -b 24 --lr 0.02 --device cpu"
    result = reader.run(command, timeout=170)
    assert result.code == 0, result
    assert "NOT MNIST" in result.out and "s left" in result.out
    for repeat in (1, 2):
        names = {path.name for path in (reader.folder / f"timings/repeat-{repeat}").iterdir()}
        stages = ("01_baseline", "04_ddp_torchrun", "05_multinode")
        assert [any(name.startswith(stage) for name in names) for stage in stages] == [True] * 3
        assert len(names) == 3
    written = json.loads(next((reader.folder / "timings/repeat-1").glob("04*")).read_text())
    assert 0 < written["startup_seconds"] < written["command_seconds"]
    assert written["dataset"].endswith("(NOT MNIST)")
    assert not (reader.folder / "checkpoints").exists(), "a comparison leaves records only"


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
    ("stage", "stop", "code"),
    [
        ("03", signal.SIGTERM, 143),
        ("05", signal.SIGINT, 130),
    ],
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


def test_the_stages_are_those_of_the_repository():
    assert list(compare.STAGES) == STAGES


@pytest.mark.slow
def test_without_a_network_digits_are_drawn_and_are_not_called_mnist(reader):
    proxies = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    del reader.env["MNIST_ROOT"]
    result = reader.run("python compare.py --only 01 -e 1 --device cpu", timeout=280, **proxies)
    assert result.code == 0, result
    assert "data/drawn is NOT MNIST" in result.out and "drawn (NOT MNIST)" in result.out
    assert not (reader.folder / "data/MNIST").exists(), "no empty folders of the download"

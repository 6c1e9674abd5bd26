"""compare.py: one table and one picture, no ratio between unlike rows, failures shown."""

import argparse
import json
import os
import re
import signal
import sys

import pytest
from conftest import ROOT, STAGES

sys.path.insert(0, str(ROOT))
import compare


def row(stage="01_baseline", **facts):
    """A record as a stage writes it, with round numbers."""
    world_size = facts.get("world_size", 1)
    epoch = facts.get("epoch_seconds", [12.0, 10.0])[1]
    shares = {"data": 0.05, "forward": 0.3, "backward": 0.6, "step": 0.05}
    phases = {phase: share * epoch for phase, share in shares.items()}
    record = {"stage": stage, "variant": "", "amp": "off", "world_size": 1, "devices": world_size}
    record |= {"hosts": 1, "backend": None, "device": "cpu", "device_name": "a CPU", "host": "here"}
    record |= {"threads_per_rank": 1, "dataset": "MNIST", "global_batch": 120, "epochs": 2}
    record |= {"workers": 0, "batchnorm": "local", "seed": 0, "torch": "2.12.1", "python": "3.11"}
    record |= {"startup_seconds": 3.0, "epoch_seconds": [12.0, 10.0], "images_per_second": 6000.0}
    record |= {"phase_seconds": [[phases, phases]] * world_size, "train_loss": [0.2, 0.1]}
    record |= {"peak_memory_bytes": [800 * 2**20] * world_size}
    record |= {"test_correct": 9900, "test_total": 10000, "test_accuracy": 0.99}
    return record | {"total_seconds": 27.0, "start": 0.0} | facts


def write(folder, *rows):
    folder.mkdir(exist_ok=True)
    for number, record in enumerate(rows):
        (folder / f"{record['stage']}-{number}.json").write_text(json.dumps(record))


DDP = {"world_size": 2, "images_per_second": 9000.0, "epoch_seconds": [8.0, 20 / 3]}


def test_a_ratio_between_rows_that_are_alike():
    base, ddp = row(), row("03_ddp_spawn", **DDP)
    text = compare.table([base, ddp])
    line = next(line for line in text.splitlines() if line.startswith("03_ddp_spawn"))
    assert line.split()[-6:] == ["9,000", "1.50", "75%", "99.00%", "27.0", "s"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dataset", "drawn-afea15cc"),
        ("global_batch", 240),
        ("epochs", 3),
        ("threads_per_rank", 2),
        ("workers", 1),
        ("amp", "bf16"),
        ("torch", "2.11.0"),
        ("host", "there"),
        ("device_name", "a GPU"),
    ],
)
def test_no_ratio_across_rows_that_differ(key, value):
    other = row("03_ddp_spawn", **DDP | {key: value})
    assert compare.ratios(other, row()) == ("-", "-")
    text = compare.table([row(), other])
    line = next(line for line in text.splitlines() if line.startswith("03_ddp_spawn"))
    assert line.endswith("(1)") and "1.50" not in text
    assert f"(1) {key} {value}, not {row()[key]}" in text


def test_no_ratio_for_a_run_in_pieces():
    resumed = row("05_multinode", **DDP, resumed=[{"epoch": 1, "step": 0, "ranks": 2}])
    assert compare.ratios(resumed, row()) == ("-", "-")
    assert "(1) resumed from a snapshot: timed in pieces" in compare.table([row(), resumed])


def test_drawn_digits_are_never_called_mnist():
    text = compare.table([row(dataset="drawn-afea15cc")])
    assert "drawn-afea15cc (NOT MNIST)" in text
    assert "NOT MNIST" not in compare.table([row()])


def test_mixed_precision_is_compared_with_its_own_stage():
    fp32 = row("03_ddp_spawn", **DDP)
    bf16 = fp32 | {"amp": "bf16", "variant": "bf16", "images_per_second": 10800.0}
    assert compare.amp_gains([row(), fp32, bf16]) == [
        "03_ddp_spawn: with bf16 1.20 times the images/s of fp32"
    ]
    assert compare.amp_gains([fp32, bf16 | {"global_batch": 240}]) == []


def test_rows_by_hand_are_named_and_compared_like_others():
    threads = row("02_dp", **DDP | {"world_size": 1}) | {"variant": "by_hand", "devices": 2}
    naive = row("03_ddp_spawn", **DDP, variant="by_hand_naive")
    bf16 = naive | {"amp": "bf16", "variant": "by_hand_naive-bf16"}
    lines = compare.table([row(), threads, naive, bf16]).splitlines()
    assert lines[3].startswith("02_dp by hand ") and "1 on 2 devices" in lines[3]
    assert lines[3].split()[-5:-3] == ["1.50", "75%"]
    assert lines[4].startswith("03_ddp_spawn by hand, naive ") and " 1.50 " in lines[4]
    assert lines[-1].startswith("03_ddp_spawn by hand, naive: with bf16")
    assert compare.amp_gains([row("03_ddp_spawn", **DDP), bf16]) == []


def test_without_stage_1_there_is_no_ratio():
    text = compare.table([row("03_ddp_spawn", **DDP)])
    line = next(line for line in text.splitlines() if line.startswith("03_ddp_spawn"))
    assert " - " in line


def test_the_parts_add_up():
    record = row("03_ddp_spawn", **DDP, command_seconds=30.0)
    assert sum(compare.phases_per_step(record).values()) == pytest.approx(1000 * 20 / 3 / 500)
    parts = compare.parts_of_command(record)
    assert (
        list(parts.values()) == pytest.approx([6.0, 8 + 20 / 3, 9 + 1 / 3])
        and sum(parts.values()) == 30
    )


def test_a_row_of_where_a_step_goes():
    def rank(backward, exposed):
        return [{"data": 0.5, "forward": 1.5, "backward": backward, "exposed": exposed, "step": 0}]

    measured = {"phase_seconds": [rank(3.0, 1.5), rank(4.0, 0.5)], "backend": "gloo"}
    measured |= {"epoch_seconds": [6.5], "images_per_second": 60_000 / 6.5, "epochs": 1}
    measured |= {"peak_memory_bytes": [800 * 2**20, 900 * 2**20]}
    ddp = row("03_ddp_spawn", world_size=2) | measured
    titles, base, line = compare.phases_table([row(), ddp]).splitlines()
    assert line.split()[3:] == ["1.00", "3.00", "7.00", "2.00", "0.00", "13.00"] + [
        "1",  # the rank that computes longest: 6 seconds, not 5
        "(+20.0%)",
        "900",
        "MiB",
    ]
    assert base.split()[6] == "-", "one process waits for nobody"
    assert titles.split()[-8:-4] == ["forward", "backward", "exposed", "step"]


def test_records_are_read_without_running(reader):
    amp = {"amp": "bf16", "variant": "bf16"}
    rows = [row("03_ddp_spawn", **DDP | amp), row("03_ddp_spawn", **DDP), row()]
    write(reader.folder / "timings", *rows)
    result = reader.run("python compare.py --no-run")
    assert result.code == 0, result
    stages = [line.split()[0] for line in result.out.splitlines() if line[:1] == "0"]
    assert stages[:3] == ["01_baseline", "03_ddp_spawn", "03_ddp_spawn"]
    assert (reader.folder / "timings" / "compare.png").read_bytes().startswith(b"\x89PNG")
    only = reader.run("python compare.py --no-run --only 01")
    assert "03_ddp_spawn" not in only.out


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"stage": "01_baseline"}'])
def test_a_file_that_is_not_a_record_is_named(reader, called, text):
    write(reader.folder / "timings", row())
    (reader.folder / "timings" / "odd.json").write_text(text)
    result = called("compare.py", "--no-run")
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert "timings/odd.json is not a record" in result.err


def test_no_records(reader):
    result = reader.run("python compare.py --no-run")
    assert result.code == 2 and "no records in timings" in result.err, result


@pytest.mark.parametrize(
    "flags", ["--only 06", "--epochs 0", "--world-size 0", "--record /dev/null/here"]
)
def test_bad_flags(called, flags):
    result = called("compare.py", flags)
    assert result.code == 2 and "Traceback" not in result.err, result
    assert result.out == "", "nothing was run"


def test_every_stage_and_variant_is_in_the_plan():
    jobs = compare.plan(argparse.Namespace(device="cpu", only=STAGES, world_size=2))
    assert [f"{job['stage'][:2]} {job['variant']}".strip() for job in jobs] == (
        "01, 02, 02 by_hand, 03, 03 by_hand_bucketed, 03 by_hand_naive, 03 bf16, 04, 04 bf16, 05"
    ).split(", ")


@pytest.mark.slow
def test_stages_are_run(reader):
    """Those that start soonest; what starts each of the others is tested with the others."""
    command = "python compare.py --only 01 04 05 -e 1 -b 24 --lr 0.02 --device cpu"
    result = reader.run(command, timeout=170)
    assert result.code == 0, result
    names = {path.name for path in (reader.folder / "timings").glob("*.json")}
    assert {"04_ddp_torchrun-bf16-2xcpu.json", "05_multinode-2hosts-2xcpu.json"} <= names
    lines = [line for line in result.out.splitlines() if line[:1] == "0" and " cpu " in line]
    assert "01_baseline-1xcpu.json" in names and len(lines) == len(names) == 4
    assert "NOT MNIST" in result.out
    record = json.loads((reader.folder / "timings/04_ddp_torchrun-2xcpu.json").read_text())
    assert record["command_seconds"] > record["total_seconds"] > 0


@pytest.mark.slow
def test_a_stage_that_fails_is_shown_and_the_others_run(reader):
    result = reader.run("python compare.py --only 04 01 -e 1 -b 25 --lr 0.02 --device cpu")
    assert result.code == 1, result
    assert "failed: 04_ddp_torchrun: error: --batch-size 25 does not divide by 2" in result.out
    assert re.search(r"^01_baseline +off +1 +cpu", result.out, re.MULTILINE)


def test_an_interrupt_ends_the_stage_too(reader):
    process = reader.start("python compare.py --only 03 -e 1000 --lr 0.001 --device cpu")
    for line in process.stdout:
        if "epoch" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=30)
    assert result.code == 130 and result.err.strip() == "compare.py: interrupted", result


@pytest.mark.slow
def test_without_network_digits_are_drawn_and_that_is_said_loudly(reader):
    proxies = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    del reader.env["MNIST_ROOT"]
    command = "python compare.py --only 01 -e 1 --device cpu"
    result = reader.run(command, timeout=150, **proxies)
    assert result.code == 0, result
    assert "MNIST could not be downloaded" in result.err
    assert "DRAWN digits" in result.out and "NOT MNIST" in result.out
    assert (reader.folder / "data/drawn/MNIST/raw/train-images-idx3-ubyte").is_file()


def test_data_that_are_given_and_missing_are_not_replaced(reader):
    result = reader.run("python compare.py --data nowhere", http_proxy="http://127.0.0.1:9")
    assert result.code == 2 and "could not be downloaded" in result.err, result
    assert not (reader.folder / "data").exists()

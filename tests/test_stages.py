"""Each stage, started as its docstring says: it trains, prints, saves, and records what it did."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import STAGES, TEST_IMAGES, docstring_commands

EPOCH_LINE = re.compile(
    r"^epoch +\d+/\d+ +[\d.]+ s +[\d,]+ images/s  loss +[\d.]+  accuracy +[\d.]+%$"
)
WHAT_WAS_RUN = """stage variant world_size devices hosts backend device device_name
    threads_per_rank dataset global_batch epochs workers amp batchnorm seed torch python host"""
WHAT_CAME_OUT = """startup_seconds epoch_seconds images_per_second phase_seconds
    peak_memory_bytes train_loss test_correct test_total test_accuracy total_seconds"""


def only_record(folder):
    (path,) = Path(folder, "timings").glob("*.json")
    return path.name, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("stage", "command"),
    [(stage, command) for stage in STAGES for command in docstring_commands(stage)],
)
def test_started_as_the_docstring_says(reader, stage, command):
    hosts = 2 if "--nnodes 2" in command else 1
    result = reader.finish_all([reader.start(command) for _ in range(hosts)])
    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if line.startswith("epoch")]
    assert lines and all(EPOCH_LINE.match(line) for line in lines), result
    assert len({len(line) for line in lines}) == 1, "epoch lines are all as wide"
    name, record = only_record(reader.folder)
    assert f"-> timings/{name}" in result.out.splitlines()[-1]
    assert {*WHAT_WAS_RUN.split(), *WHAT_CAME_OUT.split()} <= record.keys()
    assert record["stage"] == stage
    assert record["epochs"] == len(lines) == len(record["epoch_seconds"])
    assert record["test_total"] == TEST_IMAGES
    assert Path(reader.folder, "checkpoints", f"{stage}.pt").is_file()
    assert not re.search(r"warning", result.err, re.IGNORECASE), result
    assert "it/s" not in result.out + result.err, "no progress bar where nobody looks"
    assert ("nothing to spread over" in result.out) == (stage == "02_dp" and record["devices"] == 1)
    if "--tensorboard runs" in command:
        tensorboard_and_text_log(Path(reader.folder, "runs"), record, lines)
    leftovers = {path.name for path in reader.folder.rglob("*") if path.suffix == ".tmp"}
    assert not leftovers


def tensorboard_and_text_log(folder, record, lines):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert (folder / "log.txt").read_text().splitlines() == lines
    events = EventAccumulator(str(folder)).Reload()
    losses = [event.value for event in events.Scalars("loss/train")]
    assert losses == pytest.approx(record["train_loss"])
    accuracies = [event.value for event in events.Scalars("accuracy/test")]
    assert accuracies[-1] == pytest.approx(record["test_accuracy"])


def test_the_docstrings_have_commands():
    assert all(docstring_commands(stage) for stage in STAGES)
    told = [command for stage in STAGES for command in docstring_commands(stage)]
    assert any("--tensorboard runs" in command for command in told), "so that it is tested"


@pytest.mark.parametrize(
    ("stage", "name", "facts"),
    [
        ("01_baseline", "01_baseline-1xcpu.json", {"world_size": 1, "backend": None}),
        ("02_dp", "02_dp-1xcpu.json", {"world_size": 1, "devices": 1}),
        ("03_ddp_spawn", "03_ddp_spawn-3xcpu.json", {"world_size": 3, "backend": "gloo"}),
        ("04_ddp_torchrun", "04_ddp_torchrun-3xcpu.json", {"world_size": 3, "hosts": 1}),
        ("05_multinode", "05_multinode-3xcpu.json", {"world_size": 3, "hosts": 1}),
    ],
)
def test_record(trained, stage, name, facts):
    folder, result = trained(stage)
    assert result.code == 0, result
    found, record = only_record(folder)
    assert found == name
    said = {"epochs": 3, "global_batch": 24, "device": "cpu", "workers": 1, "seed": 5, "lr": 0.02}
    assert {key: record[key] for key in said | facts} == said | facts
    assert record["threads_per_rank"] == 1 and record["amp"] == "off" and record["variant"] == ""
    assert record["batchnorm"] == "local", "BatchNorm is synchronised on GPUs only"
    assert record["dataset"] != "MNIST", "drawn digits do not pass for MNIST"
    assert record["test_total"] == TEST_IMAGES, "no image is counted twice"
    assert record["test_accuracy"] == record["test_correct"] / TEST_IMAGES
    assert record["test_accuracy"] > 0.5, "it has learned more than guessing"
    assert record["train_loss"][1] < record["train_loss"][0]
    assert len(record["phase_seconds"]) == facts["world_size"]
    phases = {"data", "forward", "backward", "step"} | ({"exposed"} if record["backend"] else set())
    for rank in record["phase_seconds"]:
        assert [set(epoch) for epoch in rank] == [phases] * 3
        assert all(seconds > 0 for epoch in rank for seconds in epoch.values())
    memory = record["peak_memory_bytes"]
    assert len(memory) == facts["world_size"]
    if sys.platform == "linux":  # elsewhere nobody says how much a process held
        assert all(10**8 < held < 10**10 for held in memory)
    for epoch, seconds in zip(record["phase_seconds"][0], record["epoch_seconds"], strict=True):
        assert sum(epoch.values()) == pytest.approx(seconds)
    median = sum(record["epoch_seconds"][1:]) / 2
    assert record["images_per_second"] == pytest.approx(1200 / median), "the first does not count"
    assert sum(record["epoch_seconds"]) < record["total_seconds"] < result.seconds + 1
    assert str(folder) not in json.dumps(record), "no place on this disk"


@pytest.mark.parametrize(
    ("stage", "amp"),
    [("04_ddp_torchrun", "fp16"), ("05_multinode", "bf16")],  # and bf16 in docstrings' commands
)
def test_mixed_precision(reader, stage, amp):
    result = reader.stage(stage, f"--epochs 3 --batch-size 24 --lr 0.02 --device cpu --amp {amp}")
    assert result.code == 0, result
    name, record = only_record(reader.folder)
    assert f"-{amp}-" in name and (record["amp"], record["variant"]) == (amp, amp)
    assert record["train_loss"][1] < record["train_loss"][0]
    assert record["test_accuracy"] > 0.5
    assert "lr_scheduler" not in result.err, "no optimizer step was skipped before the first one"
    scaler = saved_by(reader, stage)["scaler"]
    assert bool(scaler) == (amp == "fp16"), "the scaler is saved with the model"
    if amp == "fp16":  # another stage goes on from there
        flags = f"-e 1 -b 24 --lr 0.001 --amp fp16 --load checkpoints/{stage}.pt --record more"
        more = reader.stage("03_ddp_spawn", flags)
        assert more.code == 0, more
        (path,) = (reader.folder / "more").glob("*.json")
        assert json.loads(path.read_text())["test_correct"] > 0.9 * record["test_correct"]
        steps = saved_by(reader, "03_ddp_spawn")["scaler"]["_growth_tracker"]
        assert steps == scaler["_growth_tracker"] + 1200 // 24


def saved_by(reader, stage):
    return torch.load(reader.folder / f"checkpoints/{stage}.pt", weights_only=True)


def test_tensorboard_is_not_imported_without_the_flag(reader):
    code = "import sys, runpy; runpy.run_path('04_ddp_torchrun/train.py'); "
    code += "print('torch.utils.tensorboard' in sys.modules)"
    result = reader.run(f'python -c "{code}"')
    assert result.out.strip() == "False", result


@pytest.mark.parametrize(
    "stage", [pytest.param("04_ddp_torchrun", marks=pytest.mark.slow), "05_multinode"]
)
def test_rank_0_stops_all_ranks_at_the_target(reader, stage):
    flags = "--epochs 9 --batch-size 24 --lr 0.02 --target-accuracy 0.3 --device cpu"
    result = reader.stage(stage, flags)
    assert result.code == 0, result
    _, record = only_record(reader.folder)
    assert record["epochs"] == len(record["epoch_seconds"]) < 9
    assert record["test_accuracy"] >= 0.3
    assert "stopping" in result.out


@pytest.mark.parametrize("stage", ["04_ddp_torchrun", "05_multinode"])
def test_started_with_plain_python_it_says_how_to_start(reader, stage):
    result = reader.run(f"python {stage}/train.py")
    assert result.code == 2 and "torchrun" in result.err, result
    assert len(result.err.splitlines()) == 1, result

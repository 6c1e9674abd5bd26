"""Each stage, started as its docstring says: it trains, prints, saves, and records what it did."""

import ast
import importlib
import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, STAGES, TEST_IMAGES, draw_digits, record_of
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

stage1 = importlib.import_module("01_baseline.train")
CPU = torch.device("cpu")
EPOCH_LINE = re.compile(
    r"^epoch (\d+)/(\d+): [\d.]+ s, [\d,]+ images/s, loss ([\d.]+), accuracy ([\d.]+%)$"
)


def docstring_commands(script):
    """The commands that a script's docstring tells the reader to paste."""
    docstring = ast.get_docstring(ast.parse((ROOT / script).read_text()))
    lines = docstring.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


COMMANDS = [(stage, line) for stage in STAGES for line in docstring_commands(f"{stage}/train.py")]


def check_output(result, record):
    """A line per epoch, with the numbers of the record."""
    lines = [line for line in result.out.splitlines() if line.startswith("epoch")]
    assert len(lines) == record["epochs"] == len(record["history"]), result
    for number, (line, epoch) in enumerate(zip(lines, record["history"]), start=1):
        correct, total = epoch["test"]
        loss, accuracy = f"{epoch['loss']:.4f}", f"{correct / total:.2%}"
        found = EPOCH_LINE.match(line)
        assert found and found.groups() == (f"{number}", f"{len(lines)}", loss, accuracy), line
    # On two nodes a torchrun that finds the store closed at its exit barrier logs a traceback.
    ours = re.sub(r".*torch/distributed/elastic/.*\n", "", result.err)
    assert "lr_scheduler" not in ours and "Traceback" not in ours, result
    assert "it/s" not in result.out + result.err, "no progress bar where nobody looks"


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "command"), COMMANDS)
def test_started_as_the_docstring_says(reader, stage, command):
    nodes = 2 if "--nnodes 2" in command else 1
    result = reader.finish_all([reader.start(command) for _ in range(nodes)])
    assert result.code == 0, result
    record = record_of(reader.folder)
    check_output(result, record)
    assert record["stage"] == stage and record["history"][-1]["test"][1] == TEST_IMAGES
    assert Path(reader.folder, "checkpoints", f"{stage}.pt").is_file()


@pytest.mark.parametrize("stage", STAGES)
def test_help_is_the_docstring_and_the_flags(called, reader, stage):
    result = called(f"{stage}/train.py", "--help")
    assert result.code == 0 and result.err == "", result
    assert f"Stage {int(stage[:2])}: " in result.out and "--batch-size" in result.out
    commands = docstring_commands(f"{stage}/train.py")
    assert commands and all(command.split()[0] in result.out for command in commands)
    assert not (reader.folder / "timings").exists()


# ---------------------------------------------------------------- one training run of each stage


@pytest.mark.parametrize("stage", STAGES)
def test_output_and_record(trained, stage):
    folder, result = trained(stage)
    assert result.code == 0, result
    record = record_of(folder)
    check_output(result, record)
    world_size = 2 if stage in STAGES[2:] else 1
    hosts = 2 if stage == STAGES[4] else 1
    typed = {"epochs": 3, "batch_size": 48, "device": "cpu", "seed": 5, "lr": 0.05}
    facts = {"stage": stage, "world_size": world_size, "hosts": hosts, "images": 1200}
    assert record | typed | facts | {"threads": 1, "workers": 0} == record
    assert record["dataset"] == "synthetic digits"
    assert record["torch"] == torch.__version__ and record["host"]
    assert record["history"][2]["loss"] < record["history"][0]["loss"]
    waits = {"exposed"} if world_size > 1 else set()
    for epoch in record["history"]:
        correct, total = epoch["test"]
        assert total == TEST_IMAGES, "no image is counted twice"
        assert len(epoch["phases"]) == world_size
        for rank in epoch["phases"]:
            assert set(rank) == {"data", "forward", "backward", "optimizer"} | waits
            assert all(seconds > 0 for seconds in rank.values())
    assert correct / total > 0.5, "it has learned more than guessing"
    assert str(folder) not in json.dumps(record), "no place on this disk"


def load(trained, stage):
    """The checkpoint of a stage that has trained -> stage 1's model with its weights."""
    model = stage1.make_model()
    path = trained(stage)[0] / f"checkpoints/{stage}.pt"
    model.load_state_dict(torch.load(path, weights_only=True)["model"])  # no name has "module."
    return model


def count_correct(weights, data):
    """How many test images a model with these weights classifies correctly, on one process."""
    model = stage1.make_model()
    model.load_state_dict(weights)
    _, test_set = stage1.load_mnist(data)
    correct, _ = stage1.evaluate(model, DataLoader(test_set, batch_size=500), CPU)
    return correct


@pytest.mark.parametrize("stage", STAGES)
def test_the_recorded_count_is_that_of_the_saved_model(trained, small_data, stage):
    """In stages 3 to 5 each rank has counted a part, and has BatchNorm statistics of its own."""
    correct = count_correct(load(trained, stage).state_dict(), small_data)
    assert record_of(trained(stage)[0])["history"][-1]["test"] == [correct, TEST_IMAGES]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_no_number_of_ranks_counts_an_image_twice(reader, small_data, ranks):
    result = reader.stage("04_ddp_torchrun", "-e 1 -b 48 --lr 0.05 --device cpu", ranks)
    assert result.code == 0, result
    weights = torch.load(reader.folder / "checkpoints/04_ddp_torchrun.pt")["model"]
    correct = count_correct(weights, small_data)
    assert record_of(reader.folder)["history"][0]["test"] == [correct, TEST_IMAGES]


@pytest.mark.parametrize("stages", [STAGES[:2], STAGES[2:]], ids=["1 and 2", "3 to 5"])
def test_stages_train_the_same_weights(trained, stages):
    """Stage 2 on a CPU is stage 1; stages 3 to 5 differ in the launcher."""
    models = [load(trained, stage).state_dict() for stage in stages]
    for name, tensor in models[0].items():
        assert all(torch.equal(model[name], tensor) for model in models[1:]), name
    histories = [record_of(trained(stage)[0])["history"] for stage in stages]
    results = [[(epoch["loss"], epoch["test"]) for epoch in history] for history in histories]
    assert results == [results[0]] * len(results)


def observed(data, folder, stage):
    """On a rank: train -> the seeds, the gradients at the start of exposed time, the parameters.

    The seeds are those that the stage sets, in order. The gradients are counted in each step.
    """
    os.chdir(folder)
    os.environ |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ["GROUP_WORLD_SIZE"] = "1"
    sys.argv = f"train.py -e 2 -b 120 --device cpu --seed 5 --data {data}".split()
    module = importlib.import_module(f"{stage}.train")
    parameters = []
    ready = []
    seeds = []
    original = module.Stopwatch

    class Stopwatch(original):
        def lap(self, phase):
            if phase == "backward":
                ready.append(sum(parameter.grad is not None for parameter in parameters))
            super().lap(phase)

    def wrap(model):
        parameters.extend(model.parameters())
        return DistributedDataParallel(model)

    module.Stopwatch = Stopwatch
    module.DistributedDataParallel = wrap
    torch.manual_seed = seeds.append
    module.train(module.parse_args(), CPU)
    return seeds, ready, len(parameters)


@pytest.mark.parametrize("stage", STAGES[2:])
def test_the_exposed_time_begins_when_every_gradient_is_there(little_data, tmp_path, stage):
    """Only the two gradients of the first layer may follow: those of its weights and its bias."""
    ((_, ready, parameters),) = on_ranks(1, observed, str(little_data), str(tmp_path), stage)
    assert len(ready) == 4 and min(ready) >= parameters - 2


def test_each_epoch_of_stage_5_has_a_seed_of_its_own(little_data, tmp_path):
    ((seeds, _, _),) = on_ranks(1, observed, str(little_data), str(tmp_path), STAGES[4])
    assert seeds == [5, 5, 6]


def evaluated_and_saved(data, folder):
    """On a rank: train with stages 3 to 5 -> of each the buffers that this rank evaluates."""
    os.chdir(folder)
    os.environ |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    os.environ["GROUP_WORLD_SIZE"] = "1"
    sys.argv = f"train.py -e 1 -b 60 --device cpu --data {data}".split()
    found = []
    for stage in STAGES[2:]:
        module = importlib.import_module(f"{stage}.train")
        count = module.evaluate

        def evaluate(model, *more, count=count):
            found.append(torch.cat([b.double().flatten() for b in model.buffers()]))
            return count(model, *more)

        module.evaluate = evaluate
        module.train(module.parse_args(), CPU)
    return found


def test_all_ranks_evaluate_the_model_that_rank_0_saves(little_data, tmp_path):
    one, two = on_ranks(2, evaluated_and_saved, str(little_data), str(tmp_path))
    assert len(one) == 3 and all(torch.equal(a, b) for a, b in zip(one, two))
    for stage, evaluated in zip(STAGES[2:], one):
        saved = torch.load(tmp_path / f"checkpoints/{stage}.pt")["model"]
        buffers = [saved[name] for name, _ in stage1.make_model().named_buffers()]
        assert torch.equal(torch.cat([b.double().flatten() for b in buffers]), evaluated)


def test_the_mean_loss_is_that_of_all_ranks(trained):
    first = [record_of(trained(stage)[0])["history"][0]["loss"] for stage in STAGES]
    assert first == pytest.approx([first[0]] * len(STAGES), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["03_ddp_spawn", "04_ddp_torchrun"])  # their samplers have a seed
def test_loader_workers_change_no_weight(trained, reader, stage):
    flags = "--epochs 3 --batch-size 48 --device cpu --seed 5 --lr 0.05 --workers 1"
    result = reader.stage(stage, flags, timeout=280)
    assert result.code == 0, result
    own = torch.load(reader.folder / f"checkpoints/{stage}.pt", weights_only=True)["model"]
    assert all(torch.equal(own[name], w) for name, w in load(trained, stage).state_dict().items())


# ---------------------------------------------------------------- settings


def test_each_run_appends_its_line(reader, called, monkeypatch, little_data):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")  # left in the shell: stage 1 ignores it
    for flags in ("", "--seed 1"):
        result = called("01_baseline/train.py", f"-e 1 --device cpu --data {little_data} {flags}")
        assert result.code == 0, result
    lines = (reader.folder / "timings/runs.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["seed"], record["hosts"]) for record in records] == [(0, 1), (1, 1)]


def stop(*_):
    raise InterruptedError("seen enough")


@pytest.mark.parametrize("stage", STAGES[2:])
def test_each_rank_draws_its_own_random_numbers(monkeypatch, stage):
    """The model of the stages draws none in training, so no weights would show it."""
    module = importlib.import_module(f"{stage}.train")
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(module, "load_mnist", stop)
    monkeypatch.setattr(sys, "argv", ["train.py", "--seed", "5"])
    with pytest.raises(InterruptedError):
        module.train(module.parse_args(), CPU)
    assert torch.initial_seed() == 8


@pytest.mark.parametrize("stage", STAGES[3:])
@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_rank_loads_joins_waits_and_trains(called, monkeypatch, stage, local_rank):
    """One rank per node downloads, and then joins. The group has the rank's GPU and the timeout."""
    module, calls = importlib.import_module(f"{stage}.train"), []
    group = {"RANK": 3, "LOCAL_RANK": local_rank, "WORLD_SIZE": 4, "MASTER_PORT": 1}
    for name, value in {**group, "MASTER_ADDR": "nobody"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *given, **more: calls.append(more))
    places = {
        "download_mnist": module,
        "barrier": dist,
        "train": module,
        "destroy_process_group": dist,
    }
    for name, place in places.items():
        monkeypatch.setattr(place, name, lambda *_, name=name: calls.append(name))
    result = called(f"{stage}/train.py", "--timeout 7 --device cuda")
    own = {"timeout": timedelta(seconds=7), "device_id": torch.device("cuda", local_rank)}
    downloads = ["download_mnist"] * (local_rank == 0)
    assert result.code == 0, result
    assert calls == [*downloads, own, "barrier", "train", "destroy_process_group"]


@pytest.mark.parametrize(("devices", "wrappers"), [(1, 0), (2, 1)])
def test_two_devices_are_wrapped(reader, monkeypatch, little_data, devices, wrappers):
    stage2, wrapped = importlib.import_module("02_dp.train"), []
    flags = ["train.py", "-e", "1", "--device", "cpu", "--data", str(little_data)]
    monkeypatch.setattr("sys.argv", flags)
    monkeypatch.chdir(reader.folder)
    stage2.train(stage2.parse_args(), CPU, devices, lambda model: wrapped.append(model) or model)
    (record,) = (reader.folder / "timings").glob("*.jsonl")
    assert len(wrapped) == wrappers
    assert json.loads(record.read_text())["world_size"] == devices


def test_the_learning_rate_goes_up_and_down_once(called, little_data):
    rates = []
    hook = register_optimizer_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    result = called("01_baseline/train.py", f"-e 2 -b 24 --device cpu --data {little_data}")
    hook.remove()
    assert result.code == 0 and len(rates) == 2 * 240 // 24, result
    top = rates.index(max(rates))
    assert rates == sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True)
    assert max(rates[0], rates[-1]) < rates[top] / 5


@pytest.fixture(scope="module")
def little_data(tmp_path_factory):
    """240 training images: a CPU trains some thirty a second with fp16."""
    return draw_digits(tmp_path_factory.mktemp("little"), 240, 60)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "amp"), [("03_ddp_spawn", "fp16"), ("05_multinode", "bf16")])
def test_mixed_precision(reader, little_data, stage, amp):
    flags = f"--epochs 3 --batch-size 12 --lr 0.02 --device cpu --amp {amp} --data {little_data}"
    result = reader.stage(stage, flags)
    assert result.code == 0, result
    record = record_of(reader.folder)
    assert record["amp"] == amp
    assert record["history"][2]["loss"] < record["history"][0]["loss"]

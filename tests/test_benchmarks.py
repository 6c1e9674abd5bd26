"""The benchmarks run, and print the tables that their page shows. No time is tested."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from benchmarks import common, one_gpu, run_all

stage1 = common.stage1
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pins threads to cores")


def bench(reader, command):
    result = reader.run(f"python {ROOT}/benchmarks/{command}", OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return [line.split("  ")[0].strip() for line in result.out.splitlines()]


# ---------------------------------------------------------------- common.py


def test_loader_and_optimizer_are_those_of_stage_1(reader, called):
    flags = "--epochs 1 --batch-size 120 --lr 0.05 --device cpu"
    assert called("01_baseline/train.py", flags).code == 0
    expected = torch.load(reader.folder / "checkpoints/01_baseline.pt")["model"]
    torch.manual_seed(0)
    loader = common.make_loader(stage1.load_mnist(Path(reader.env["MNIST_ROOT"]))[0], 120)
    model = stage1.ConvNet().to(memory_format=torch.channels_last)
    optimizer, schedule = common.sgd_one_cycle(model, 0.05, len(loader))
    stage1.train_epoch(model, loader, optimizer, schedule, common.CPU)
    assert all(torch.equal(expected[name], own) for name, own in model.state_dict().items())


def test_each_step_of_the_optimizer_of_stages_3_to_5_steps_the_schedule():
    model = torch.nn.Linear(1, 1)
    (_, schedule), optimizer = common.sgd_one_cycle(model, 1, 4), common.scheduled_sgd(model, 1, 4)
    for _ in range(4):
        optimizer.step()
        schedule.optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0]
    with pytest.raises(ValueError, match="5 times"):
        optimizer.step()


def rank_and_sum(addend):
    """On a rank -> its rank, and the sum of all ranks' ranks, plus what it was given."""
    total = torch.tensor(torch.distributed.get_rank())
    torch.distributed.all_reduce(total)
    return torch.distributed.get_rank(), total.item() + addend


def test_each_rank_returns_its_result():
    assert common.on_ranks(3, rank_and_sum, 10) == [(0, 13), (1, 13), (2, 13)]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "results.json"
    common.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        common.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- the scripts


def test_what_the_stopwatch_costs(reader):
    rows = bench(reader, "stopwatch.py --rounds 2")
    assert "microseconds" in rows[1] and rows[3].startswith("with the stopwatch on against off")


def run_one_gpu(reader, flags):
    command = f"one_gpu.py --data {reader.env['MNIST_ROOT']} -b 24 --lr 0.02 --results results"
    rows = bench(reader, f"{command} {flags}")[2:]
    results = json.loads((reader.folder / "results/one_gpu.json").read_text())["rows"]
    assert rows == list(results)
    assert all(row["accuracies"][-1] > 0.5 for row in results.values()), "each variant learns"
    return rows


@pytest.mark.slow
def test_the_variants_for_a_gpu_that_a_cpu_has_too(reader):
    assert run_one_gpu(reader, "--device cpu -e 3") == ["stage 1", "resident", "bf16"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_variants_on_a_gpu(reader):
    assert run_one_gpu(reader, "--device cuda -e 3")[3:] == ["compiled", "CUDA graph"]


def test_preparing_leaves_no_trace_in_the_model():
    model = stage1.ConvNet()
    optimizer, _ = common.sgd_one_cycle(model, 0.1, 100)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    args, steps = argparse.Namespace(batch_size=4), []

    def step(x, y):
        steps.append(len(x))
        optimizer.zero_grad()
        F.cross_entropy(model(x.unsqueeze(1).float()), y).backward()
        optimizer.step()

    images, labels = torch.randint(256, (8, 28, 28)), torch.randint(10, (8,))
    one_gpu.prepare("compiled", args, model, optimizer, step, images, labels)
    assert steps == [4] * one_gpu.WARM_UP
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    buffers = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert len(buffers) == 10 and not any(buffer.any() for buffer in buffers)


# The sweep without its third round, on four ranks: that is the one which takes minutes.
SHORTER_SWEEP = """
import importlib

sweep = importlib.import_module("benchmarks.sweep")
if __name__ == "__main__":
    sweep.RANKS = (1, 2)
    sweep.main()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_thing_at_a_time(reader):
    (reader.folder / "shorter.py").write_text(SHORTER_SWEEP)
    command = "python shorter.py --repeats 1 --steps 1 --results results"
    result = reader.run(command, timeout=350, PYTHONPATH=str(ROOT))
    assert result.code == 0, result
    results = json.loads((reader.folder / "results/sweep.json").read_text())
    figures = results["milliseconds_per_step"]
    assert list(figures) == ["batch", "width", "cap", "threads", "amp", "workers"]
    assert figures["batch"]["120"].keys() == {"1", "2"}
    findings = [line for line in result.out.splitlines() if line.startswith("2 ranks")]
    assert len(findings) >= 2, "they stand above the tables"
    assert (reader.folder / "results/sweep.png").read_bytes().startswith(b"\x89PNG")


def test_every_command_of_the_page_is_run_and_only_its_own_output_replaced(tmp_path, monkeypatch):
    text = "# Page\n\n```sh\npython a.py --data data\n```\n\n```\nold\n```\n\n"
    page = tmp_path / "README.md"
    page.write_text(text + text.replace("a.py", "b.py") + "the end\n")
    (tmp_path / "b.py").write_text("import sys; print('new', *sys.argv[1:])  # \"--results\"\n")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "b", "--data", "/elsewhere"])
    assert run_all.main() == 0
    new = text.replace("a.py", "b.py")
    new = new.replace("old", "new --data /elsewhere --results benchmarks/results")
    assert page.read_text() == text + new + "the end\n"
    (tmp_path / "b.py").write_text("print('half'); raise SystemExit(1)")
    assert run_all.main() == 1, "a failure is reported"
    assert page.read_text() == text + new + "the end\n", "and its output is not put on the page"


@pytest.mark.slow
@LINUX
def test_two_ranks_against_their_limit(reader):
    rows = bench(reader, "limit.py --batch-size 4 --rounds 2 --steps 2")
    page = (ROOT / "benchmarks/README.md").read_text()
    assert len(rows) == 11 and all(f"\n{row}" in page.replace("\n  ", "\n") for row in rows[2:])


@LINUX
def test_bad_flags_of_a_benchmark(reader):
    result = reader.run(f"python {ROOT}/benchmarks/limit.py --batch-size 3")
    assert result.code == 2 and "has to be even" in result.err, result

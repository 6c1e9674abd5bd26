"""The benchmarks run, and measure what they print. No time is tested."""

import importlib
import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from conftest import LINUX, ROOT, fenced, ranks_of, record_of, wait_for

from benchmarks import common, run_all

stage1 = common.stage1


# ---------------------------------------------------------------- common.py


def test_loader_and_optimizer_are_those_of_stage_1(reader, called):
    flags = "--epochs 1 --batch-size 120 --lr 0.05 --device cpu"
    assert called("01_baseline/train.py", flags).code == 0
    expected = torch.load(reader.folder / "checkpoints/01_baseline.pt")["model"]
    torch.manual_seed(0)
    loader = common.make_loader(stage1.load_mnist(Path(reader.env["MNIST_ROOT"]))[0], 120)
    model = stage1.make_model().to(memory_format=torch.channels_last)
    optimizer, schedule = common.scheduled_sgd(model, 0.05, len(loader))
    stage1.train_epoch(model, loader, optimizer, schedule, common.CPU)
    assert all(torch.equal(expected[name], own) for name, own in model.state_dict().items())


def test_the_net_of_width_1_is_that_of_the_stages():
    own = common.wider_net(1)
    torch.manual_seed(0)
    expected = stage1.make_model()
    assert str(own) == str(expected)
    for name, value in expected.state_dict().items():
        assert torch.equal(own.state_dict()[name], value)


def test_everything_takes_its_turn_and_the_first_round_is_left_out():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert common.in_turns(2, ways) == {"a": [3, 5], "b": [4, 6]}
    assert calls == list("ababab")


@pytest.mark.parametrize(
    "script, flags, message",
    [
        ("limit", "--batch-size 3", "has to be even"),
        ("sweep", "--repeats 0", "--repeats 0: at least 1"),
    ],
)
def test_bad_flags(called, script, flags, message):
    result = called(f"benchmarks/{script}.py", flags)
    assert result.code == 2 and message in result.err.splitlines()[-1], result
    assert result.out == "", "nothing was run"


# ---------------------------------------------------------------- each of them

SHORT = {  # flags with which it takes seconds
    "limit": "--batch-size 4 --rounds 2 --steps 2",
    "loaders": "--data {data} --rounds 1",
}
RESULTS = ROOT / "benchmarks/results"
# Notebooks show these. A page (batch_size_and_learning_rate.md) has the last one's in its own form.
ON_NO_PAGE = {"all_reduce_ways", "loaders", "threads", "batch_size", "overlap"}


def module_of(name):
    """The benchmark that prints what stands in results/NAME.json"""
    name = {"limit-60": "limit", "limit-240": "limit"}.get(name, name)
    return importlib.import_module(f"benchmarks.{name}")


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_it_prints_the_report_of_the_results_that_it_writes(reader, name):
    module = module_of(name)
    flags = SHORT[name].format(data=reader.env["MNIST_ROOT"])
    result = reader.run(f"python -m benchmarks.{name} {flags} --results results", timeout=280)
    assert result.code == 0, result
    (path,) = (reader.folder / "results").glob("*.json")
    assert result.out == f"{module.report(json.loads(path.read_text()))}\n"


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in RESULTS.glob("*.json")} - ON_NO_PAGE)
)
def test_the_page_shows_the_report_of_the_committed_results(name):
    results = json.loads((RESULTS / f"{name}.json").read_text())
    page = (ROOT / "benchmarks/README.md").read_text()
    assert f"{module_of(name).report(results)}\n" in [text for _, text in fenced(page)]
    assert results.get("dataset", "MNIST") == "MNIST"


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(("whose", "code"), [("rank", 1), ("parent", -9)])
def test_a_killed_process_ends_the_run_and_leaves_none_behind(reader, whose, code):
    """So it is in every benchmark that starts its ranks by on_ranks."""
    process = reader.start("python -m benchmarks.limit --rounds 1000")
    wait_for(lambda: len(ranks_of(process)) == 2)
    os.kill(ranks_of(process)[0] if whose == "rank" else process.pid, signal.SIGKILL)
    result = reader.finish(process)
    assert result.code == code and (whose == "parent" or "SIGKILL" in result.err), result


@pytest.mark.slow
def test_the_lines_on_a_stages_page_are_those_that_a_stage_prints(trained):
    folder, result = trained("01_baseline")
    lines = run_all.printed(record_of(folder))
    assert result.out.endswith(lines) and lines.count("\n") == 3
    assert run_all.RAN.fullmatch(lines)


@pytest.mark.parametrize("stage", run_all.SHOWN)
def test_make_figures_finds_the_lines_on_a_stages_page(stage):
    text = (ROOT / stage / "README.md").read_text()
    lines = run_all.RAN.search(text)[0].splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]


def test_what_the_page_says_of_overlap_is_the_record():
    ways = json.loads((RESULTS / "overlap.json").read_text())["seconds"]
    ratios = [own / other for own, other in zip(ways["overlapped"], ways["sequential"])]
    middle, low, high = re.match(r"(.*) \((.*) to (.*)\)", common.deciles(ratios)).groups()
    page = (ROOT / "benchmarks/README.md").read_text()
    assert f"backward took {middle} ({low} to {high}) " in page

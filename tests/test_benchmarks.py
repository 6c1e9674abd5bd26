"""The benchmarks run, and measure what they print. No time is tested."""

import json
import sys
from pathlib import Path

import psutil
import pytest
import torch
from conftest import LINUX

from benchmarks import common, limit, restarts, run_all, single_process

stage1 = common.stage1


# ---------------------------------------------------------------- common.py


def test_loader_and_optimizer_are_those_of_stage_1(reader, called):
    flags = "--epochs 1 --batch-size 120 --lr 0.05 --device cpu"
    assert called("01_baseline/train.py", flags).code == 0
    expected = torch.load(reader.folder / "checkpoints/01_baseline.pt")["model"]
    torch.manual_seed(0)
    loader = common.make_loader(stage1.load_mnist(Path(reader.env["MNIST_ROOT"]))[0], 120)
    model = stage1.ConvNet().to(memory_format=torch.channels_last)
    optimizer = common.scheduled_sgd(model, 0.05, len(loader))
    stage1.train_epoch(model, loader, optimizer, common.CPU)
    assert all(torch.equal(expected[name], own) for name, own in model.state_dict().items())


def test_everything_takes_its_turn_and_the_first_round_is_left_out():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert common.in_turns(2, ways) == {"a": [3, 5], "b": [4, 6]}
    assert calls == list("ababab")


@pytest.mark.parametrize(
    "script, flags, message",
    [
        ("single_process", "--data file", "--data file: no MNIST"),
        ("limit", "--batch-size 3", "has to be even"),
        ("limit", "--results file", "--results file: File exists"),
        ("sweep", "--repeats 0", "--repeats 0: at least 1"),
        ("scaling", "--ranks 7", "--ranks: at least 2, and each has to divide"),
    ],
)
def test_bad_flags(reader, called, script, flags, message):
    (reader.folder / "file").touch()
    result = called(f"benchmarks/{script}.py", flags)
    assert result.code == 2 and message in result.err.splitlines()[-1], result
    assert result.out == "", "nothing was run"


# ---------------------------------------------------------------- single_process.py


@pytest.mark.slow
def test_the_ways_of_one_process(reader):
    command = f"python -m benchmarks.single_process --data {reader.env['MNIST_ROOT']}"
    result = reader.run(f"{command} --results results")
    assert result.code == 0, result
    results = json.loads((reader.folder / "results/single_process.json").read_text())
    assert result.out == f"{results['about']}\n{single_process.way_table(results)}\n"
    assert results["dataset"] == "NOT MNIST" and len(results["ways"]) == 4
    for way in results["ways"].values():
        assert len(way["seconds"]) == 3 and 0 < way["accuracy"] < 1
        assert all(0 < data < whole for data, whole in zip(way["data"], way["seconds"]))


# ---------------------------------------------------------------- limit.py, sweep.py


@pytest.mark.slow
@LINUX
def test_two_ranks_against_the_upper_bound(reader):
    flags = "--batch-size 4 --rounds 2 --steps 2 --results results"
    result = reader.run(f"python -m benchmarks.limit {flags}", timeout=150)
    assert result.code == 0, result
    (path,) = (reader.folder / "results").glob("limit-*.json")
    versions = json.loads(path.read_text())["versions"]
    assert result.out.endswith(f"{limit.table(versions)}\n") and list(versions) == list(
        limit.VERSIONS
    )
    for rounds in versions.values():
        parts = zip(*(rounds[part] for part in limit.PARTS))
        assert all(sum(own) <= whole * 1.0001 for own, whole in zip(parts, rounds["total"]))


# ---------------------------------------------------------------- restarts.py


def test_a_try_without_end_counts_as_hung_and_leaves_no_process():
    """The bound is shorter than any start."""
    assert restarts.one_try(2, "0", bound=1.5)["end"] == "hung"
    left = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "restarts.py" in line]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_with_a_store_for_each_attempt_the_ranks_come_back(nodes):
    assert restarts.one_try(nodes, "1", bound=150) == {"end": "came back", "attempts": 2}


# ---------------------------------------------------------------- run_all.py


def test_every_command_of_the_page_is_run_and_only_its_own_output_replaced(tmp_path, monkeypatch):
    command = (
        "<!-- measured -->\n\n```sh\npython -m benchmarks.a --data data\n```\n\n```\nold\n```\n\n"
    )
    text = "# Page\n\n" + command + command.replace("<!-- measured -->\n\n", "")
    page, script = tmp_path / "README.md", tmp_path / "benchmarks/b.py"
    page.write_text(text + command.replace(".a", ".b") + "the end\n")
    other = tmp_path / "docs.md"
    other.write_text(command.replace("-m benchmarks.a", "benchmarks/b.py"))
    script.parent.mkdir()
    script.write_text("import sys; print('new', *sys.argv[1:])\n")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "PAGES", [page, other])
    monkeypatch.setattr(sys, "argv", "run_all.py --only b --busy --data /elsewhere".split())
    assert run_all.main() == 0
    new = command.replace(".a", ".b")
    new = new.replace("old", "new --data /elsewhere --results benchmarks/results")
    assert page.read_text() == text + new + "the end\n"
    assert "\n```\nnew --data /elsewhere\n```\n" in other.read_text(), "a script, not a benchmark"
    script.write_text("print('half'); raise SystemExit(1)")
    assert run_all.main() == 1, "a failure is reported"
    assert page.read_text() == text + new + "the end\n", "and its output is not put on the page"

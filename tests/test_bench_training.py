"""The benchmarks of training on one core run, and measure what they print. No time is tested."""

import json
import math
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT

from benchmarks import accuracy, bare_loop, common, demo_way

stage1 = common.stage1


def bench(reader, command):
    """Run a benchmark -> the lines it prints, the results it saves."""
    result = reader.run(f"python {ROOT}/benchmarks/{command} --results results")
    assert result.code == 0, result
    (path,) = (reader.folder / "results").glob("*.json")
    results = json.loads(path.read_text())
    assert f"torch {torch.__version__}" in results["about"]
    assert results["about"] in result.out.splitlines()[0]
    return result.out, results


# ---------------------------------------------------------------- bare_loop.py


def test_the_table_of_the_barest_loop(reader):
    out, results = bench(reader, "bare_loop.py --batch-size 4 --rounds 2 --steps 2")
    assert out.endswith(bare_loop.table(results) + "\n")
    assert list(results["seconds"]) == list(bare_loop.VERSIONS)
    assert all(len(rounds) == 2 for rounds in results["seconds"].values())


def test_a_ratio_is_formed_within_a_round():
    seconds = {"barest loop": [1.0, 2.0, 4.0], "other": [2.0, 2.0, 6.0]}
    *_, line = bare_loop.table({"steps": 1, "seconds": seconds}).splitlines()
    assert line.split() == ["other", "2000.00", "1.500", "(1.000-2.000)"]


def test_the_barest_loop_does_the_work_of_stage_1():
    digits = common.digits(20)
    models = []
    for loop in ("bare", "stage 1"):
        torch.manual_seed(0)
        model = stage1.ConvNet()
        optimizer, schedule = common.sgd_one_cycle(model, 0.1, 5)
        torch.manual_seed(1)  # so that both draw the same order
        if loop == "bare":
            bare_loop.bare_loop(model, optimizer, schedule, digits, batch_size=4)
        else:
            batches = [digits.__getitems__(i) for i in torch.randperm(20).split(4)]
            stage1.train_epoch(model, batches, optimizer, schedule, common.CPU)
        models.append(model.state_dict().values())
    assert all(map(torch.equal, *models))


@pytest.mark.parametrize(
    "version, operation",
    {
        "autocast to bf16": "aten::copy_",
        "SGD(fused=True)": "aten::_fused_sgd_",
        "SGD(foreach=True)": "aten::_foreach_add_",
        "zero_grad(set_to_none=False)": "aten::zero_",
        "loss.item() in every step": "aten::item",
    }.items(),
)
def test_a_version_is_what_it_says(version, operation):
    args = Namespace(batch_size=4, steps=2, rounds=1)
    found = {}
    for name in (bare_loop.BARE, f"  {version}"):
        loop = bare_loop.prepare(common.digits(8), args, **bare_loop.VERSIONS[name])
        with torch.profiler.profile() as profile:
            loop()
        found[name] = {event.key: event.count for event in profile.key_averages()}
    bare, changed = (found[name].get(operation, 0) for name in found)
    assert changed > bare, "the version does what its name promises, the barest loop less of it"


# ---------------------------------------------------------------- demo_way.py


@pytest.mark.slow
def test_the_table_of_the_demos_way(reader):
    flags = f"--data {reader.env['MNIST_ROOT']} --epochs 2 --repeats 1"
    out, results = bench(reader, f"demo_way.py {flags}")
    assert out.endswith(demo_way.table(results["runs"]) + "\n")
    assert list(results["runs"]) == list(demo_way.WAYS)
    for (run,) in results["runs"].values():
        assert len(run["epoch_seconds"]) == 2 and 0 < run["test_accuracy"] < 1
        assert sum(run["epoch_seconds"]) < run["command_seconds"]


def test_the_ratios_to_the_demos_way():
    run = {"epoch_seconds": [9.0, 4.0, 6.0], "command_seconds": 20.0, "test_accuracy": 0.9}
    half = {"epoch_seconds": [9.0, 2.5], "command_seconds": 15.0, "test_accuracy": 0.99}
    *_, line = demo_way.table({demo_way.DEMO: [run, run], "ours": [half, half]}).splitlines()
    times = ["2.50", "0.50", "(0.50-0.50)", "15.00", "0.75", "(0.75-0.75)"]
    assert line.split() == ["ours", *times, "99.00%"]


# ---------------------------------------------------------------- accuracy.py


@pytest.mark.slow
def test_the_curves_of_accuracy(reader):
    flags = f"--data {reader.env['MNIST_ROOT']} --epochs 2 --demo-epochs 2 --seeds 2"
    out, results = bench(reader, f"accuracy.py {flags}")
    assert "NOT MNIST" in out.splitlines()[0]
    steps = {accuracy.STAGE1: 10, accuracy.SHORT: 19, accuracy.DEMO: 76, accuracy.EXAMPLE: 19}
    for way, courses in results["ways"].items():
        assert accuracy.row(way, courses) in out
        for course in courses:
            number, seconds, found = zip(*course["curve"])
            assert number[0] == 0 and number[-1] == steps.pop(way, number[-1])
            assert seconds == tuple(sorted(seconds)) and seconds[-1] <= course["epoch_ends"][-1]
            assert all(0 <= share <= 1 for share in found)
    assert not steps
    picture = (reader.folder / "results/accuracy.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_the_clock_stands_still_while_a_model_is_tested(monkeypatch):
    now = 0.0
    parameter = torch.nn.Parameter(torch.zeros(1))

    def wait(seconds):
        nonlocal now
        now += seconds

    def set_up():
        optimizer = torch.optim.SGD([parameter], lr=1.0)

        def train_epoch():
            for _ in range(50):
                wait(1)
                optimizer.step()
            wait(3)

        return torch.nn.Identity(), optimizer, train_epoch

    def evaluate(*_):
        wait(1000)
        return torch.tensor([1, 2])

    monkeypatch.setattr(accuracy, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(accuracy.stage1, "evaluate", evaluate)
    course = accuracy.Course(set_up, 0, None).train(epochs=2)
    assert course["epoch_ends"] == [53, 106]
    tests = [(0, 0), (20, 20), (40, 40), (50, 53), (60, 63), (80, 83), (100, 103)]
    assert course["curve"] == [[step, second, 0.5] for step, second in tests]
    assert len(course["curve"]) * 1000 + 106 == now


@pytest.mark.parametrize(
    "steps, seconds, before, due",
    [
        (20, 1.0, (0.5, 0.95), True),
        (21, 1.0, (0.5, 0.95), False),
        (20, 1.0, (0.95, 0.95), False),
        (20, 1.0, (0.95, 0.985), False),
        (20, 1.0, (0.95, 0.989), True),
        (20, 1.0, (0.95, 0.99), False),
    ],
)
def test_when_a_test_is_due(steps, seconds, before, due):
    course = SimpleNamespace(steps=steps, seconds=seconds, curve=[[0, *before]])
    assert accuracy.Course.due(course) is due


def course(*points, epoch=10.0):
    """A course with these (seconds, accuracy), and the time of its first epoch."""
    return {"curve": [[0, 0.0, 0.1], *([0, *point] for point in points)], "epoch_ends": [epoch]}


def test_the_findings_on_accuracy():
    ours = [course((0.5, 0.92), (8.0, 0.99)), course((0.5, 0.92), (12.0, 0.991))]
    ours += [course((0.5, 0.92))]
    demo = course((5.0, 0.5), (30.0, 0.92), (40.0, 0.92))
    ways = dict.fromkeys((accuracy.STAGE1, accuracy.SHORT), ours)
    ways |= {accuracy.DEMO: [demo], accuracy.EXAMPLE: [demo]}
    assert accuracy.row("ours", ours).split("  ")[-1] == "99.00%"
    assert "0.50" in accuracy.row("ours", ours) and "12.00 (8.00--)" in accuracy.row("ours", ours)
    early, last, *_ = accuracy.findings(ways)
    assert early.endswith("(10.0 s) with 1 of 3 seed(s)"), early
    assert last.endswith("92.00%, 60 times as soon"), last
    expected = "Stage 1 can be at 99 % after 12.0 s; the demo's way is then at 50 %"
    assert accuracy.title(ways) == expected
    ways[accuracy.SHORT] = [demo]
    assert "reaches" in accuracy.title(ways)
    assert math.isinf(accuracy.reached(demo, 0.99))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "script, flags, message",
    [
        ("bare_loop.py", "--rounds 1", "--rounds 1: at least 2"),
        ("demo_way.py", "--repeats 0", "--repeats 0: at least 1"),
        ("accuracy.py", "--seeds none", "--seeds: invalid int value"),
        ("demo_way.py", "--data file", "--data file: no MNIST"),
        ("accuracy.py", "--data file", "--data file: no MNIST"),
        ("bare_loop.py", "--results file", "--results file: File exists"),
    ],
)
def test_bad_flags(reader, called, script, flags, message):
    (reader.folder / "file").touch()
    result = called(f"benchmarks/{script}", flags)
    assert result.code == 2 and message in result.err.splitlines()[-1], result

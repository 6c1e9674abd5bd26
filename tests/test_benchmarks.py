"""The benchmarks run, and measure what they print. No time is tested."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import common, limit, restarts, run_all, single_process, sweep

stage1 = common.stage1
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pins threads to cores")


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


def test_each_step_of_the_optimizer_of_the_stages_steps_the_schedule():
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


@pytest.mark.slow
def test_each_rank_returns_its_result():
    assert common.on_ranks(3, rank_and_sum, 10) == [(0, 13), (1, 13), (2, 13)]


def test_everything_takes_its_turn_and_the_first_round_is_left_out():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert common.in_turns(2, ways) == {"a": [3, 5], "b": [4, 6]}
    assert calls == list("ababab")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "results.json"
    common.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        common.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "script, flags, message",
    [
        ("single_process", "--rounds 1", "--rounds 1: at least 2"),
        ("single_process", "--epochs none", "--epochs: invalid int value"),
        ("single_process", "--data file", "--data file: no MNIST"),
        ("limit", "--batch-size 3", "has to be even"),
        ("limit", "--results file", "--results file: File exists"),
        ("sweep", "--repeats 0", "--repeats 0: at least 1"),
        ("scaling", "--ranks 1", "--ranks: at least 2"),
        ("scaling", "--ranks 7", "--ranks: at least 2, and each has to divide"),
        ("restarts", "--bound 0", "--bound 0.0: at least 1"),
        ("overlap", "--latency -1", "--latency -1.0: at least 0"),
    ],
)
def test_bad_flags(reader, called, script, flags, message):
    (reader.folder / "file").touch()
    result = called(f"benchmarks/{script}.py", flags)
    assert result.code == 2 and message in result.err.splitlines()[-1], result
    assert result.out == "", "nothing was run"


# ---------------------------------------------------------------- single_process.py


@pytest.mark.slow
def test_both_tables_of_one_process(reader):
    flags = f"--data {reader.env['MNIST_ROOT']} --rounds 2 --steps 2 --batch-size 4"
    result = reader.run(f"python -m benchmarks.single_process {flags} --results results")
    assert result.code == 0, result
    results = json.loads((reader.folder / "results/single_process.json").read_text())
    tables = single_process.loop_table(results), single_process.way_table(results)
    assert result.out == "{}\n\n{}\n".format(*tables) and results["dataset"] == "NOT MNIST"
    assert list(results["loops"]) == list(single_process.LOOPS)
    assert all(len(rounds) == 2 for rounds in results["loops"].values())
    assert len(results["ways"]) == 4
    for way in results["ways"].values():
        assert len(way["seconds"]) == 3 and 0 < way["accuracy"] < 1
        assert all(0 < data < whole for data, whole in zip(way["data"], way["seconds"]))


def test_a_ratio_is_formed_within_a_round():
    seconds = {"barest loop": [1.0, 2.0, 4.0], "other": [2.0, 2.0, 6.0]}
    results = {"about": "", "steps": 1, "loops": seconds, "lap_microseconds": 1}
    *_, line, _ = single_process.loop_table(results).splitlines()
    assert line.split() == ["other", "2000.00", "1.50", "(1.25", "to", "1.75)"]


def test_the_barest_loop_does_the_work_of_stage_1():
    digits = common.digits(20)
    models = []
    for loop in ("bare", "stage 1"):
        torch.manual_seed(0)
        model = stage1.ConvNet()
        optimizer = common.scheduled_sgd(model, 0.1, 5)
        torch.manual_seed(1)  # so that both draw the same order
        if loop == "bare":
            single_process.bare_loop(model, optimizer, digits, batch_size=4)
        else:
            batches = [digits.__getitems__(i) for i in torch.randperm(20).split(4)]
            stage1.train_epoch(model, batches, optimizer, common.CPU)
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
    for name in (single_process.BARE, version):
        loop = single_process.prepare(common.digits(8), args, **single_process.LOOPS[name])
        with torch.profiler.profile() as profile:
            loop()
        found[name] = {event.key: event.count for event in profile.key_averages()}
    bare, changed = (found[name].get(operation, 0) for name in found)
    assert changed > bare, "the version does what its name promises, the barest loop less of it"


def test_the_demos_images_are_those_of_the_batched_loader(small_data):
    train_set, _ = stage1.load_mnist(small_data)
    demo = single_process.demo_loader(small_data).dataset
    x, _ = stage1.to_device(*train_set.__getitems__(list(range(50))), common.CPU)
    assert torch.equal(torch.stack([demo[i][0] for i in range(50)]), x)


# ---------------------------------------------------------------- limit.py, sweep.py


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("net", limit.NETS)
def test_two_ranks_against_the_upper_bound(reader, net):
    flags = f"--batch-size 4 --rounds 2 --steps 2 --net {net} --results results"
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


def test_a_step_is_split_by_the_times_of_both_ranks():
    phases = ("start", "data", "forward", "backward", "exposed", "optimizer")
    first = list(zip(phases, (0.0, 0.001, 0.002, 0.004, 0.009, 0.010)))
    second = list(zip(phases, (0.0, 0.001, 0.002, 0.006, 0.009, 0.010)))
    split = limit.analyse([first], [second])
    expected = {"total": 10, "waiting": 1, "averaging": 3, "computing": 6}
    assert {part: value for part, (value,) in split.items()} == pytest.approx(expected)


def test_sweep_forms_ratios_within_a_repeat_and_names_its_findings():
    """1 rank takes 4 and 8 ms, 2 ranks 2 ms; but with 24 images both lose."""
    repeats = []
    for milliseconds in (4, 8):
        seconds = {1: {}, 2: {}}
        for name, values in sweep.SWEEPS.items():
            for value in values:
                seconds[1][name, value] = milliseconds / 1000
                seconds[2][name, value] = 0.009 if value == 24 else 0.002
        repeats.append(seconds)
    results = {"about": "a computer"} | sweep.summary(repeats)
    assert results["ratios"]["batch"]["60"]["2"] == [2, 4]
    report = sweep.report(results)
    assert "2 ranks lose at 24 images per step, win from 60" in report
    assert "3.00 (2.00 to 4.00)" in report
    assert sweep.spread([1.5]) == "1.50"


def few_settings(steps):
    """On a rank -> the sweep's seconds, with so few values that it takes seconds."""
    sweep.SWEEPS = {"batch": [24, 240], "width": [1], "threads": [1, 2], "amp": ["off"]}
    return sweep.sweep_on_rank(steps)


@pytest.mark.slow
def test_the_setting_of_the_stages_is_measured_once():
    for seconds in common.on_ranks(2, few_settings, 1):
        assert all(value > 0 for value in seconds.values()) and len(seconds) == 6
        own = [("batch", 240), ("width", 1), ("threads", 1), ("amp", "off")]
        assert len({seconds[key] for key in own}) == 1


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


def test_the_table_counts_ends_and_attempts():
    ends = [("came back", 2), ("came back", 3), ("failed", 2), ("hung", 3)]
    tries = [{"end": end, "attempts": attempts} for end, attempts in ends]
    *_, line = restarts.table({"one node": tries}).splitlines()
    assert line.split()[2:] == ["4", "2", "1", "1", "1", "1"]


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
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "b", "--data", "/elsewhere"])
    assert run_all.main() == 0
    new = command.replace(".a", ".b")
    new = new.replace("old", "new --data /elsewhere --results benchmarks/results")
    assert page.read_text() == text + new + "the end\n"
    assert "\n```\nnew --data /elsewhere\n```\n" in other.read_text(), "a script, not a benchmark"
    script.write_text("print('half'); raise SystemExit(1)")
    assert run_all.main() == 1, "a failure is reported"
    assert page.read_text() == text + new + "the end\n", "and its output is not put on the page"

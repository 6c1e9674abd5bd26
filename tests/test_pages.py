"""What the pages say: links, commands and figures are those of the repository and its records."""

import argparse
import importlib
import json
import re
import statistics
import sys

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, STAGES, fenced
from torch.utils.data import DistributedSampler

sys.path.insert(0, str(ROOT))
import compare

PAGES = [path for path in ROOT.rglob("*.md") if not {".venv", "data"} & set(path.parts)]
RECORDS = ROOT / "docs" / "timings" / "cpu-2-cores"


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link:
            target, _, anchor = link.partition("#")
            found = page.parent / target if target else page
            assert found.exists(), link
            if anchor:
                titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert anchor in {title.lower().replace(" ", "-") for title in titles}, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_and_flags_in_commands_exist(page):
    commands = [text for language, text in fenced(page.read_text()) if language == "sh"]
    commands += re.findall(r"`((?:python|torchrun|git diff)[^`]*)`", page.read_text())
    for command in "\n".join(commands).replace("\\\n", " ").splitlines():
        for script in re.findall(r"[\w./]+\.py\b", command):
            assert (ROOT / script).is_file(), command
            source = (ROOT / script).read_text()
            own = re.split(r" -- | [\w./]+\.py\b", command.partition(script)[2])[0]
            flags = re.findall(r"(?<= )--[a-z-]+", own)
            assert all(f'"{flag}"' in source or flag == "--help" for flag in flags), command
        for target in re.findall(r"^make ([\w-]+)", command):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command


def test_the_readme_has_the_table_of_the_committed_records(capsys, monkeypatch):
    arguments = ["compare.py", "--no-run", "--record", str(RECORDS)]
    monkeypatch.setattr(sys, "argv", arguments)
    rows = compare.read_records(compare.parse()[0])
    assert f"```\n{compare.table(rows)}\n```" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs/reading-timings.md").read_text()
    assert f"```\n{compare.phases_table(rows)}\n```" in page


@pytest.mark.parametrize("path", sorted(RECORDS.rglob("*.json")), ids=lambda path: path.stem)
def test_the_phases_of_a_record_add_up_to_its_epochs(path):
    measured = json.loads(path.read_text())
    for epoch, seconds in enumerate(measured["epoch_seconds"]):
        for rank in measured["phase_seconds"]:  # the ranks wait for each other: all take as long
            assert sum(rank[epoch].values()) == pytest.approx(seconds, rel=0.03)
    waits = {"exposed"} if measured["backend"] else set()
    phases = {"data", "forward", "backward", "step"} | waits
    assert all(set(epoch) == phases for rank in measured["phase_seconds"] for epoch in rank)


def test_the_benchmarks_page_shows_its_results():
    page, results = (ROOT / "benchmarks/README.md").read_text(), ROOT / "benchmarks/results"
    blocks = [text for language, text in fenced(page) if language == ""]
    assert len(blocks) > 10 and not any("to be measured" in text for text in blocks)
    limit = importlib.import_module("benchmarks.limit")
    for batch in (120, 240):
        measured = json.loads((results / f"limit-{batch}.json").read_text())
        assert f"{measured['about']}\n{limit.table(measured['versions'])}\n" in blocks
    sweep = importlib.import_module("benchmarks.sweep")
    measured = json.loads((results / "sweep.json").read_text())
    by_ranks = {
        name: {value: {int(n): ms for n, ms in row.items()} for value, row in rows.items()}
        for name, rows in measured["milliseconds_per_step"].items()
    }
    assert f"{measured['about']}\n{sweep.tables(by_ranks)}\n" in blocks
    scaling = importlib.import_module("05_multinode.scaling")
    measured = json.loads((results / "scaling.json").read_text())
    measured["ranks"] = {int(n): found for n, found in measured["ranks"].items()}
    table = "\n".join(scaling.measured_table(measured))
    assert any(text.startswith(f"{table}\n") for text in blocks)


@pytest.mark.parametrize("stage", STAGES)
def test_the_output_on_a_rooms_page_is_that_of_its_record(stage):
    (path,) = [
        path
        for path in RECORDS.glob(f"{stage}-*.json")
        if not json.loads(path.read_text())["variant"]
    ]
    measured = json.loads(path.read_text())
    page = (ROOT / stage / "README.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("epoch ")]
    assert len(lines) == measured["epochs"]
    module = importlib.import_module(f"{stage}.train")
    for epoch, line in enumerate(lines):
        phases, loss = measured["phase_seconds"][0][epoch], measured["train_loss"][epoch]
        expected = module.epoch_line(type("", (), measured), epoch, 60_000, phases, loss, 0)
        assert line.rpartition("  accuracy")[0] == expected.rpartition("  accuracy")[0]
    assert lines[-1].endswith(f"{measured['test_accuracy']:7.2%}")
    assert f"{measured['test_correct']:,} of 10,000 test images correct" in page
    assert f"median epoch {compare.median_epoch(measured):.2f} s" in page
    assert path.name in page


def test_figures_in_the_rooms_come_from_records():
    room1, room3, room4 = (
        (ROOT / stage / "README.md").read_text() for stage in (STAGES[0], *STAGES[2:4])
    )
    base, ddp, torchrun = (
        record(name)
        for name in ("01_baseline-1xcpu", "03_ddp_spawn-2xcpu", "04_ddp_torchrun-2xcpu")
    )
    assert f"{compare.median_epoch(record('workers-1/01_baseline-1xcpu')):.2f}" in room1
    assert f"{compare.median_epoch(record('threads-2/01_baseline-1xcpu')):.2f} seconds" in room1
    assert f"{compare.median_epoch(record('threads-2/03_ddp_spawn-2xcpu')):.2f} seconds" in room3
    assert f"{compare.median_epoch(record('ranks-4/03_ddp_spawn-4xcpu')):.2f} seconds" in room3
    assert f"{compare.ratios(ddp, base)[0]} times" in room3
    large = [record(f"batch-240/{name}") for name in ("03_ddp_spawn-2xcpu", "01_baseline-1xcpu")]
    assert f"{compare.ratios(*large)[0]} times" in room3
    assert f"{compare.ratios(*large)[0]} times" in (ROOT / "README.md").read_text()
    step = compare.phases_per_step(base)
    shares = [f"{value / sum(step.values()):.0%}".replace("%", " %") for value in step.values()]
    assert all(share in room1 for share in shares[:3])
    for seconds in (torchrun["startup_seconds"], ddp["startup_seconds"]):
        assert f"{seconds:.1f}" in room4
    naive = record("03_ddp_spawn-by_hand_naive-2xcpu")
    assert f"{compare.ratios(naive, base)[0]} times" in room3
    versions = json.loads((ROOT / "benchmarks/results/limit-120.json").read_text())["versions"]
    twin = versions["twin: no communication"]["total"]
    for version in ("DDP, as it comes", "broadcast_buffers=False"):
        shares = [limit / own for limit, own in zip(twin, versions[version]["total"])]
        assert f"{statistics.median(shares):.2f}" in room3
    for phase in ("forward", "backward", "exposed"):
        for row in (ddp, base) if phase != "exposed" else (ddp,):
            assert f"{compare.phases_per_step(row)[phase] / 2:.1f}" in room3, phase


def test_facts_on_the_other_pages():
    padded = sum(len(DistributedSampler(range(10_000), 3, rank)) for rank in range(3))
    assert padded == 10_002
    model = importlib.import_module("01_baseline.train").ConvNet()
    assert sum(parameter.numel() for parameter in model.parameters()) == 29_034
    assert sum(p.numel() * p.element_size() for p in model.parameters()) == 116_136
    assert "10,002" in (ROOT / "docs/checklist.md").read_text()
    assert "116,136" in (ROOT / "docs/glossary.md").read_text()
    assert "29,034" in (ROOT / "01_baseline/README.md").read_text()


def test_syncbatchnorm_is_not_for_cpus():
    stage3 = importlib.import_module("03_ddp_spawn.train")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    args, cpu = argparse.Namespace(timeout=10), torch.device("cpu")
    with stage3.process_group(args, cpu, rank=0, world_size=1, store=store):
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            torch.nn.SyncBatchNorm(2)(torch.zeros(2, 2))


def test_names_on_the_checklist_are_in_the_script():
    source = (ROOT / "03_ddp_spawn/train.py").read_text()
    table = (ROOT / "docs/checklist.md").read_text().partition("## Where to find it")[2]
    names = re.findall(r"`(\w+)`", table.partition("## Three")[0])
    assert len(names) > 8 and all(name in source for name in names)


def test_committed_records_name_no_place_on_a_disk():
    for path in (ROOT / "docs" / "timings").rglob("*.json"):
        assert not re.search(r'"/', path.read_text()), path

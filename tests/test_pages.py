"""What the pages say: links, commands and figures are those of the repository and its records."""

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


ROWS = compare.read_folder(RECORDS)


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


def test_the_tables_are_those_of_the_committed_records():
    table = f"```\n{compare.about(ROWS)}\n\n{compare.speed_table(ROWS)}\n```"
    assert table in (ROOT / "README.md").read_text()
    assert (
        f"```\n{compare.phase_table(ROWS)}\n```" in (ROOT / "docs/reading-timings.md").read_text()
    )


@pytest.mark.parametrize("path", sorted(RECORDS.rglob("*.json")), ids=lambda path: path.stem)
def test_a_committed_record_is_whole(path):
    assert not re.search(r'"/', path.read_text()), "it names no place on a disk"
    measured = json.loads(path.read_text())
    assert measured["dataset"] == "MNIST" and len(measured["history"]) == measured["epochs"]
    phases = {"data", "forward", "backward", "optimizer"}
    phases |= {"exposed"} if measured["stage"] in STAGES[2:] else set()
    for epoch in measured["history"]:
        assert epoch["test"][1] == 10_000 and all(set(rank) == phases for rank in epoch["phases"])
        seconds = [sum(rank.values()) for rank in epoch["phases"]]
        assert max(seconds) == pytest.approx(min(seconds), rel=0.03), "ranks wait for each other"


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
    scaling = importlib.import_module("benchmarks.scaling")
    measured = json.loads((results / "scaling.json").read_text())
    measured["ranks"] = {int(n): found for n, found in measured["ranks"].items()}
    table = "\n".join(scaling.measured_table(measured))
    assert any(text.startswith(f"{table}\n") for text in blocks)


OUTPUTS = dict(zip(STAGES, ["repeat-1/01_baseline-1xcpu", "settings/repeat-1/02_dp-1xcpu"]))
OUTPUTS |= {stage: f"repeat-1/{stage}-2xcpu" for stage in STAGES[2:4]}
OUTPUTS[STAGES[4]] = "repeat-1/05_multinode-hosts2-2xcpu"


@pytest.mark.parametrize("stage", STAGES)
def test_the_output_on_a_stages_page_is_that_of_its_record(stage):
    measured = record(OUTPUTS[stage])
    page = (ROOT / stage / "README.md").read_text()
    module = importlib.import_module(f"{stage}.train")
    lines = [line for line in page.splitlines() if line.startswith("epoch ")]
    for epoch in range(measured["epochs"]):
        history = measured["history"][: epoch + 1]
        assert lines[epoch] == module.epoch_line(history, measured["epochs"], measured["images"])
    phases, steps = history[-1]["phases"][0], measured["images"] / measured["batch_size"]
    split = ", ".join(f"{phase} {1000 * seconds / steps:.2f}" for phase, seconds in phases.items())
    name = f"{OUTPUTS[stage].rpartition('/')[2]}.json"
    assert f"\nmilliseconds per step: {split} -> {name}\n" in page


def test_figures_on_the_stages_pages_come_from_records():
    readme, *pages = (
        " ".join((ROOT / folder / "README.md").read_text().split()) for folder in ("", *STAGES)
    )
    base, ddp = ROWS["01_baseline-1xcpu"], ROWS["03_ddp_spawn-2xcpu"]
    setting = compare.read_folder(RECORDS / "settings")

    def ratio(name):
        return f"{statistics.median(compare.ratios(ROWS[name], base)):.2f} times"

    def seconds(records):
        return f"{statistics.median(run['images'] / compare.speed(run) for run in records):.1f}"

    shares = {
        phase: statistics.median(found) / statistics.median(compare.phases_of(base)["step"])
        for phase, found in compare.phases_of(base).items()
    }
    assert f"forward takes {100 * shares['forward']:.0f} % of a step" in pages[0]
    assert f"backward {100 * shares['backward']:.0f} %" in pages[0]
    assert f"{seconds(setting['01_baseline-workers1-1xcpu'])} seconds per epoch here" in pages[0]
    assert f"instead of {seconds(base)} (" in pages[0]
    assert f"{seconds(setting['01_baseline-threads2-1xcpu'])} seconds" in pages[0]
    assert f"{ratio('02_dp-threads-2xcpu')} the images per second" in pages[1]
    assert f"{ratio('03_ddp_spawn-2xcpu')} the images per second" in pages[2]
    found = compare.ratios(ddp, base)
    assert f"runs, {min(found):.2f} to {max(found):.2f})" in pages[2]
    small = [setting[f"{name}-b120-{n}xcpu"] for name, n in ((STAGES[2], 2), (STAGES[0], 1))]
    small = f"{statistics.median(compare.ratios(*small)):.2f} times as fast"
    assert small in pages[2] and small in readme
    for way in ("naive", "bucketed"):
        exposed = compare.phases_of(ROWS[f"03_ddp_spawn-{way}-2xcpu"])["exposed"]
        assert f"for {statistics.median(exposed):.1f} ms" in pages[2]
        assert f"{min(exposed):.1f} to {max(exposed):.1f})" in pages[2]
    assert f"{seconds(setting['03_ddp_spawn-4xcpu'])} seconds per epoch here" in pages[2]
    assert f"{seconds(setting['03_ddp_spawn-threads2-2xcpu'])} seconds. Four" in pages[2]
    versions = json.loads((ROOT / "benchmarks/results/limit-120.json").read_text())["versions"]
    bound = versions["no communication (upper bound)"]["total"]
    for version in ("DDP, as it comes", "broadcast_buffers=False"):
        parts = [limit / own for limit, own in zip(bound, versions[version]["total"])]
        assert f"{statistics.median(parts):.2f}" in pages[2]
    for name in ("03_ddp_spawn-2xcpu", "04_ddp_torchrun-2xcpu"):
        startup = statistics.median(run["startup_seconds"] for run in ROWS[name])
        assert f"after {startup:.1f}" in pages[3]


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
    with stage3.process_group(torch.device("cpu"), 10, rank=0, world_size=1, store=store):
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            torch.nn.SyncBatchNorm(2)(torch.zeros(2, 2))


def test_names_on_the_checklist_are_in_the_script():
    source = (ROOT / "03_ddp_spawn/train.py").read_text()
    table = (ROOT / "docs/checklist.md").read_text().partition("## Where to find it")[2]
    names = re.findall(r"`(\w+)`", table.partition("## Three")[0])
    assert len(names) > 8 and all(name in source for name in names)

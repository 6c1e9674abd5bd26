"""What the pages show: links, commands and figures are those of the repository and its records."""

import importlib
import json
import re
import statistics

import pytest
from conftest import ROOT, STAGES, anchor, fenced, files

from benchmarks import run_all
from tools import records as compare

PAGES = files(".md")
RECORDS = ROOT / "docs" / "timings" / "cpu-2-cores"
ROWS = compare.read_folder(RECORDS)


def figures(text):
    """The numbers in a text, in their order. A page may word and align them as it likes."""
    return re.findall(r"\d(?:[\d.,]*\d)?", text)


def read(page):
    return (ROOT / page).read_text()


def shows(page, text):
    """Does a block of the page have the figures of this text, one after the other?"""
    wanted = " ".join(figures(text))
    return any(f" {wanted} " in f" {' '.join(figures(code))} " for _, code in fenced(read(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link:
            target, _, fragment = link.partition("#")
            found = page.parent / target if target else page
            assert found.exists(), link
            if fragment:
                titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert fragment in {anchor(title) for title in titles}, link


def test_a_page_that_shows_results_names_them():
    """<!-- figures: PATH ... --> stands where a table or a picture of records does."""
    for page in PAGES:
        named = re.findall(r"^<!-- figures: (.+) -->$", page.read_text(), re.MULTILINE)
        assert all((ROOT / path).exists() for path in " ".join(named).split()), page
        shows = r"!\[.*\]\(.*(results|timings)/|images/s  |of the committed records"
        assert named or not re.search(shows, page.read_text()), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_and_flags_in_commands_exist(page):
    commands = [text for language, text in fenced(page.read_text()) if language == "sh"]
    commands += re.findall(r"`((?:python|torchrun|git diff)[^`]*)`", page.read_text())
    for command in "\n".join(commands).replace("\\\n", " ").splitlines():
        for script, path in scripts_in(command):
            assert path.is_file(), command
            source = path.read_text()
            own = re.split(r" -- | [\w./]+\.py\b", command.partition(script)[2])[0]
            flags = re.findall(r"(?<= )--[a-z-]+", own)
            # A benchmark's common flags are named as the arguments of common.flags().
            keys = {flag: f"{flag[2:].replace('-', '_')}=" for flag in flags}
            named = [f'"{flag}"' in source or keys[flag] in source for flag in flags]
            assert all(named) or flags == ["--help"], command
        for target in re.findall(r"^make ([\w-]+)", command):
            assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE), command


def scripts_in(command):
    """The repository's scripts that a command names: [("folder/name.py", path), ...]"""
    scripts = [(word, ROOT / word) for word in re.findall(r"[\w./]+\.py\b", command)]
    modules = re.findall(r"-m ((?:benchmarks|tools)\.\w+)", command)
    return scripts + [(name, ROOT / f"{name.replace('.', '/')}.py") for name in modules]


def test_the_tables_are_those_of_the_committed_records():
    rows = compare.together(ROWS)
    for table in (compare.speed_table(rows), compare.phase_table(rows)):
        assert shows("README.md", table)


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


@pytest.mark.parametrize("stage", STAGES)
def test_the_output_on_a_stages_page_is_that_of_its_record(stage):
    """Of the repeats, the run that is nearest to the median."""
    assert run_all.printed(run_all.nearest(stage)) in read(f"{stage}/README.md")


def test_all_figures_are_of_one_machine_and_one_torch():
    found = {(run["device_name"], run["torch"]) for row in ROWS.values() for run in row}
    for row in compare.read_folder(RECORDS / "settings").values():
        found |= {(run["device_name"], run["torch"]) for run in row}
    assert len(found) == 1
    ((device, torch_version),) = found
    version = torch_version.partition("+")[0]  # some name the build, too
    committed = [*(ROOT / "benchmarks/results").glob("*.json")]
    committed += [ROOT / "05_multinode/rehearsal/failures.json"]
    committed += (ROOT / "docs/player/recordings").glob("*.json")
    for path in committed:
        text = path.read_text()
        assert device in text and version in text, path.name


def ratio(rows, other):
    return f"{statistics.median(compare.ratios(rows, other)):.2f} times"


def seconds(records):
    return f"{statistics.median(run['images'] / compare.speed(run) for run in records):.1f}"


def figures_of_stages():
    """What the stages' pages quote from the records: [(stage, figure), ...]"""
    setting = compare.read_folder(RECORDS / "settings")
    one, base = STAGES[:3], ROWS["01_baseline-1xcpu"]
    phases = {name: statistics.median(found) for name, found in compare.phases_of(base).items()}
    for phase in ("forward", "backward"):
        yield one[0], f"{100 * phases[phase] / phases['step']:.0f} %"
    for row in ("workers1", "threads2"):
        yield one[0], seconds(setting[f"01_baseline-{row}-1xcpu"])
    yield one[0], seconds(base)
    yield one[1], ratio(ROWS["02_dp-threads-2xcpu"], base)
    found = compare.ratios(ROWS["03_ddp_spawn-2xcpu"], base)
    yield one[2], f"{statistics.median(found):.2f} times"
    yield one[2], f"{min(found):.2f} to {max(found):.2f}"
    small = ratio(setting["03_ddp_spawn-b120-2xcpu"], setting["01_baseline-b120-1xcpu"])
    yield "", small
    for row in ("4xcpu", "threads2-2xcpu"):
        yield one[2], seconds(setting[f"03_ddp_spawn-{row}"])
    for name in ("03_ddp_spawn-2xcpu", "04_ddp_torchrun-2xcpu"):
        yield STAGES[3], f"{statistics.median(run['startup_seconds'] for run in ROWS[name]):.1f}"


@pytest.mark.parametrize("stage", ["", *STAGES[:4]], ids=["README", *STAGES[:4]])
def test_figures_on_the_stages_pages_come_from_records(stage):
    text = " ".join((ROOT / stage / "README.md").read_text().split())
    quoted = [figure for page, figure in figures_of_stages() if page == stage]
    assert quoted and [figure for figure in quoted if figure not in text] == []


def test_facts_on_the_other_pages():
    parameters = list(importlib.import_module("01_baseline.train").ConvNet().parameters())
    numbers = sum(parameter.numel() for parameter in parameters)
    assert f"{numbers:,}" in read("01_baseline/README.md")
    assert f"{numbers * parameters[0].element_size():,}" in read("docs/glossary.md")

"""What the pages show: links, commands and figures are those of the repository and its records."""

import importlib
import json
import re
import statistics

import pytest
from conftest import ROOT, STAGES, anchor, fenced, files

from benchmarks import run_all
from lib import records

PAGES = files(".md")
RECORDS = ROOT / "docs" / "timings"
TIMINGS = "docs/speed/reading_timings.md"
ROWS = records.rows_of(records.read(RECORDS / "cpu-2-cores.jsonl"))
ALL = run_all.committed()


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
    rows = records.together(ROWS)
    for table in (records.speed_table(rows), records.phase_table(rows)):
        assert shows(TIMINGS, table)


def test_the_start_page_has_the_figures_of_the_committed_records():
    rows = [row for row in records.together(ROWS) if row[0]["amp"] == "off"]
    rows = [row for row in rows if not records.name_of(row).startswith("02_dp")]
    text = read("README.md").partition("<!-- short table -->")[2].partition("\n```\n")[2]
    lines = text.partition("\n```")[0].splitlines()[1:]
    assert len(lines) == len(rows) == 2
    for line, row in zip(lines, rows):
        middle = records.medians(row)
        faster = statistics.median(records.ratios(row, rows[0]))
        cells = [f"{middle['images/s']:,.0f}", f"{faster:.2f}", f"{middle['step']:.2f}"]
        name, *shown = line.removeprefix(records.name_of(row)).split()
        assert [name, *shown] == [str(row[0]["world_size"]), *cells, f"{middle['accuracy']:.2%}"]


@pytest.mark.parametrize("stage", run_all.SHOWN)
def test_the_output_on_a_stages_page_is_that_of_its_record(stage):
    """Of the repeats, the run that is nearest to the median."""
    assert shows(f"{stage}/README.md", run_all.printed(run_all.nearest(stage)))


def test_all_figures_are_of_one_machine_and_one_torch():
    found = {(run["device_name"], run["torch"]) for row in ALL for run in row}
    assert len(found) == 1
    ((device, torch_version),) = found
    version = torch_version.partition("+")[0]  # some name the build, too
    committed = [*(ROOT / "benchmarks/results").glob("*.json")]
    committed.remove(ROOT / "benchmarks/results/silent.json")  # It has no timings.
    committed.append(ROOT / "05_multinode/rehearsal/failures.json")
    for path in committed:
        text = path.read_text()
        assert device in text and version in text, path.name


def ratio(row, base):
    return f"{statistics.median(records.ratios(row, base)):.2f} times"


def seconds(row):
    return f"{statistics.median(run['images'] / records.speed(run) for run in row):.1f}"


def figures_of_stages():
    """What pages quote from the records: [(stage or page, figure), ...]"""
    one = records.find(ALL, "01_baseline")
    yield TIMINGS, seconds(records.find(ALL, "01_baseline", threads=2))
    threads = records.find(ALL, "02_dp-threads")
    yield STAGES[1], ratio(threads, one)
    small = [records.find(ALL, name, batch_size=120) for name in (STAGES[2], STAGES[0])]
    yield TIMINGS, ratio(*small)
    for setting in ({"world_size": 4}, {"threads": 2}):
        yield TIMINGS, seconds(records.find(ALL, "03_ddp_spawn", **setting))


@pytest.mark.parametrize("page", [TIMINGS, STAGES[1]])
def test_figures_on_the_pages_come_from_records(page):
    path = page if page == TIMINGS else f"{page}/README.md"
    text = " ".join(read(path).split())
    quoted = [figure for place, figure in figures_of_stages() if place == page]
    assert quoted and [figure for figure in quoted if figure not in text] == []


@pytest.mark.parametrize(
    ("page", "stage", "amp"),
    [
        ("batch_size_and_learning_rate", "01_baseline", "off"),
        ("batch_size_and_learning_rate", "04_ddp_torchrun", "off"),
        ("amp", "03_ddp_spawn", "off"),
        ("amp", "03_ddp_spawn", "bf16"),
        ("amp", "03_ddp_spawn", "fp16"),
    ],
)
def test_seconds_of_an_epoch_on_a_gpu_come_from_records(page, stage, amp):
    row = records.find(records.rows_of(records.read(RECORDS / "nvidia-h200.jsonl")), stage, amp=amp)
    seconds = sorted(run["images"] / records.speed(run) for run in row)
    text = " ".join(read(f"docs/training/{page}.md").split())
    assert " and ".join(f"{one:.2f}" for one in seconds) in text


def test_facts_on_the_other_pages():
    parameters = list(importlib.import_module("01_baseline.train").make_model().parameters())
    numbers = sum(parameter.numel() for parameter in parameters)
    assert f"{numbers:,}" in read(TIMINGS)
    assert f"{numbers * parameters[0].element_size():,}" in read("docs/reference/glossary.md")


def test_the_table_of_what_happens_without_each_change_has_its_rows():
    """A slow test of test_without.py runs some of them."""
    script = importlib.import_module("04_ddp_torchrun.without")
    text = read("04_ddp_torchrun/README.md").partition("<!-- without -->")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+[ab]?) \| (.*?) \|", text, re.MULTILINE)
    assert rows == list(script.TITLES.items())


def test_the_counts_of_the_silent_mistakes_are_those_of_the_record():
    correct = json.loads(read("benchmarks/results/silent.json"))["correct"]
    for counts in (correct["none"], correct.pop("one")):
        for name in ("README.md", "04_ddp_torchrun/README.md"):
            assert f"{min(counts):,} to {max(counts):,}" in " ".join(read(name).split())
    medians = {
        number: f"{round(statistics.median(counts)):,}" for number, counts in correct.items()
    }
    table = read("04_ddp_torchrun/README.md").partition("<!-- without -->")[0]
    rows = re.findall(r"^\| (\S*) ?\| .* \| ([\d,]+) \|$", table, re.MULTILINE)
    assert {number or "none": count for number, count in rows} == medians
    for number in ("none", "5a"):
        assert medians[number] in read("README.md")

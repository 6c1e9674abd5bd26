"""docs/your_script/coming_from.md: each old line that can run on a CPU does what its row says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import old_lines
import pytest
import torch
from conftest import ROOT
from ranks import on_ranks

from lib.processes import free_port

PAGE = (ROOT / "docs/your_script/coming_from.md").read_text()
CASES = [*old_lines.HERE, *old_lines.ON_RANKS, *old_lines.COMMANDS]


def rows():
    """The tables with old lines: {old line: what it does with the PyTorch that is tested}"""
    found = {}
    in_a_table = False
    for line in PAGE.splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0] == "old line":
            in_a_table = True
        elif not line.startswith("|"):
            in_a_table = False
        elif in_a_table and cells[0] != "---":
            assert len(cells) == 4, line
            found[re.match("`([^`]+)`", cells[0])[1]] = cells[1]
    return found


ROWS = rows()


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """{old line: [what one process has found, ...]} of all cases, which run once."""
    folder = tmp_path_factory.mktemp("old_lines")
    running = start_commands(folder)  # They run while the ranks below start.
    found = {}
    for by_line in on_ranks(2, old_lines.experiments):
        for old_line, outcome in by_line.items():
            found.setdefault(old_line, []).append(outcome)
    for old_line, function in old_lines.HERE.items():
        found[old_line] = [old_lines.observe(function)]
    for old_line, process in running.items():
        output, _ = process.communicate(timeout=100)
        raised = "" if process.returncode == 0 else f"exit code {process.returncode}: {output}"
        warned = output if "Warning" in output else ""
        found[old_line] = [{"warned": warned, "raised": raised, "printed": output}]
    return found


def start_commands(folder):
    """Start the commands of old_lines.py in a folder with its scripts -> {old line: process}"""
    for name, text in old_lines.SCRIPTS.items():
        (folder / name).write_text(text)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # python and torchrun are those of the tests.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    running = {}
    for old_line, command in old_lines.COMMANDS.items():
        running[old_line] = subprocess.Popen(
            command.replace("PORT", str(free_port())).split(),
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return running


@pytest.mark.slow
@pytest.mark.parametrize("old_line", CASES)
def test_an_old_line_does_what_its_row_says(observed, old_line):
    """The row begins with a word: same, warns, fails or wrong. What it quotes is in the output."""
    row = ROWS[old_line]
    if row.startswith("fails without a GPU") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    word = re.match(r"\w+", row)[0]
    outcomes = observed[old_line]
    for outcome in outcomes:
        assert bool(outcome["raised"]) == (word == "fails"), outcome
        if word in ("same", "wrong"):
            assert not outcome["warned"], outcome
        elif word == "warns":
            assert outcome["warned"], outcome
    said = []
    for outcome in outcomes:
        text = " ".join(outcome.values()).replace("`", "")  # A quotation has no backquotes inside.
        said.append(" ".join(text.split()))
    for quoted in re.findall(r"`([^`]+)`", row):
        assert quoted in " ".join(said), (quoted, said)


def test_every_row_was_run_or_says_that_it_was_not():
    """What no case runs comes from the source, or from the page that the row links to."""
    for old_line, row in ROWS.items():
        own = old_line in CASES
        assert own != bool(re.match(r"source|page|not", row)), (old_line, row)
    assert set(CASES) <= set(ROWS)
    assert len(CASES) > 40

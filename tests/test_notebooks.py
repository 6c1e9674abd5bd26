"""The notebooks: they are what their sources say, quote what is there, and run."""

import re
import subprocess
import sys
from importlib import import_module

import nbformat
import psutil
import pytest
from conftest import ROOT

from tools.build_notebooks import cells_of, english_of, read_source

NAMES = sorted(path.stem for path in (ROOT / "notebooks/source").glob("*.md"))
lesson = import_module("notebooks.lesson")
moving = import_module("notebooks.pictures.moving")
svg = import_module("notebooks.pictures.svg")
CHINESE = import_module("notebooks.pictures.chinese").CHINESE


def build_notebooks(*flags, root=ROOT, timeout=500):
    """Run the tool as make does -> exit code, what it printed."""
    command = [sys.executable, "tools/build_notebooks.py", *flags]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_source(name):
    """Nothing is run: what the cells put out is compared by the tests below."""
    stored = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)
    assert cells_of(stored) == cells_of(read_source(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_sees_no_check(name):
    """The assertions of a lesson are in cells that only the build runs."""
    stored = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "code")
    assert name == "exercises" or not re.findall(r"^assert ", code, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".zh")])
def test_a_chinese_notebook_has_the_outputs_of_the_english_one(name):
    chinese = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)
    english = nbformat.read(ROOT / f"notebooks/{english_of(name)}.ipynb", as_version=4)
    for cell, same in zip(chinese.cells, english.cells, strict=True):
        assert cell.get("execution_count") == same.get("execution_count")
        for mine, theirs in zip(cell.get("outputs", []), same.get("outputs", []), strict=True):
            if "image/svg+xml" in mine.get("data", {}):
                picture, data = svg.data_of(theirs.data["image/svg+xml"])
                assert mine.data["image/svg+xml"] == moving.draw(picture, data, CHINESE)
            else:
                assert mine == theirs


def test_a_notebook_that_is_not_there(called):
    result = called("tools/build_notebooks.py", "07")
    assert result.code == 2 and "error: no notebook 07; there are 00_kaggle" in result.err, result


def test_what_a_cell_starts_is_ended(tmp_path):
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; "
    child += f"time.sleep(300)  # {tmp_path}'], start_new_session=True); "
    child += f"open('{tmp_path}/started', 'w'); time.sleep(300)"
    with pytest.raises(TimeoutError, match="no end within 1 seconds"):
        lesson.start([sys.executable, "-c", child], timeout=1)
    killed = lesson.start([sys.executable, "-c", child], kill_at=tmp_path / "started")
    assert killed.code == -9
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(f"# {tmp_path}" in " ".join(line) for line in lines)


def test_ranks_keep_their_variables_for_the_next_cell():
    ranks = import_module("notebooks.lesson.spawned").Ranks(world_size=2)
    try:
        ranks.run("number = 10 * rank")
        run = ranks.run("give(number=number); print(world_size)")
        assert run.values == [{"number": 0}, {"number": 10}] and run.out == ["2\n"] * 2
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            ranks.run("1 / rank")
    finally:
        ranks.end()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_a_fresh_kernel(name, small_data, monkeypatch):
    monkeypatch.setenv("MNIST_ROOT", str(small_data))
    code, printed = build_notebooks("--check", name, timeout=1150)
    assert code == 0, printed

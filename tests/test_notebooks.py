"""The notebooks: they are what their sources say, quote what is there, and run."""

import ast
import json
import re
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT

SOURCES = sorted((ROOT / "notebooks/source").glob("*.md"))
NAMES = [path.stem for path in SOURCES]
# The words that an experiment introduces, each in bold, in one notebook and none before it.
INTRODUCED = {
    "01_baseline": ["generator", "worker seed"],
    "03_ddp_spawn": [
        *("bucket", "hook", "overlap", "sampler", "padding", "`set_epoch`"),
        *("SyncBatchNorm", "loss scale"),
    ],
    "04_ddp_torchrun": ["rendezvous", "restart"],
    "05_multinode": ["ring", "reduce-scatter", "all-gather"],
}
WORDS = [(word, name) for name, words in INTRODUCED.items() for word in words]


def build_notebooks(*flags, root=ROOT, timeout=170):
    """Run the tool as make does -> exit code, what it said."""
    command = [sys.executable, "tools/build_notebooks.py", *flags]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout)
    return result.returncode, result.stdout + result.stderr


def test_sources_notebooks_and_quotes_agree():
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(NAMES)
    code, said = build_notebooks("--check")
    assert code == 0, said


def change(path, old, new):
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What --check says of a copy in which a notebook is out of date and others are made badly."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("01_baseline", "tools", "docs", "notebooks"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "compare.py", root)
    run_badly(root / "notebooks")
    source, script = root / "notebooks/source/01_baseline.md", root / "01_baseline/train.py"
    records = root.glob("docs/timings/cpu-2-cores/repeat-*/01_baseline-1xcpu.json")
    change(script, '        watch.lap("forward")\n', "")  # a line of a script that is quoted
    change(source, "assert after < before", "assert after <= before")  # a claim
    change(source, "## One step\n", "## A single step\n")  # the prose
    for record in records:
        double_forward(record)  # a figure that a picture shows
    code, said = build_notebooks("--check", "01", "08", "09", root=root)
    assert code == 1, said
    return said.splitlines()


def double_forward(path):
    record = json.loads(path.read_text())
    for epoch in record["history"]:
        epoch["phases"][0]["forward"] *= 2
    path.write_text(json.dumps(record))


def run_badly(folder):
    """Put notebooks in the folder that were written, but not as the tool writes them."""
    path, source = folder / "01_baseline.ipynb", folder / "source/01_baseline.md"
    shutil.copy(source, folder / "source/08_bad.md")
    shutil.copy(path, folder / "09_without_source.ipynb")
    book = json.loads(path.read_text())
    first, second = [cell for cell in book["cells"] if cell["cell_type"] == "code"][:2]
    first["execution_count"] = 7
    first["outputs"] = [{"output_type": "stream", "name": "stderr", "text": ["a warning\n"]}]
    second["outputs"] = [
        {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": []},
        {"output_type": "stream", "name": "stdout", "text": [f"{folder.parent}/file\n"]},
        {"output_type": "stream", "name": "stdout", "text": ["<x at 0x7f00>\n", "x" * 400_000]},
    ]
    (folder / "08_bad.ipynb").write_text(json.dumps(book))


@pytest.mark.parametrize(
    "complaint",
    [
        "notebook differ: line 1 was '## One step', is '## A single step': make notebooks",
        "was 'assert after < before', is 'assert after <= before': make notebooks",
        """what it quotes has changed: line 13 was '        watch.lap("forward")', is """,
        "what it quotes has changed: line 2 was 'Of a step of ",
    ],
)
def test_what_is_changed_alone_is_noticed(complaints, complaint):
    lines = [line for line in complaints if line.startswith("01_baseline: cell-")]
    assert sum(complaint in line for line in lines) == 1, complaints


@pytest.mark.parametrize(
    "complaint",
    [
        "08_bad: the cells were not run once each",
        "08_bad: cell-01: writes to stderr: a warning",
        "08_bad: cell-02: ended in KeyError: 'x'",
        "08_bad: cell-02: shows where things lie on this disk: ",
        "08_bad: cell-02: shows an address in memory: <x at 0x7f00>",
        "more than 400; 401 KB of it are in cell-02",
        "09_without_source: there is no notebooks/source/09_without_source.md",
    ],
)
def test_a_notebook_that_was_run_badly_is_refused(complaints, complaint):
    assert any(complaint in line for line in complaints), complaints


def test_a_notebook_that_is_not_there():
    code, said = build_notebooks("07")
    assert code == 2
    assert said.splitlines()[-1].startswith("build_notebooks.py: error: no notebook 07; there are ")


@pytest.mark.parametrize("word, name", WORDS, ids=lambda value: value.strip("`"))
def test_a_word_is_introduced_once_and_not_used_before(word, name):
    text = {path.stem: path.read_text() for path in SOURCES}
    assert name in text
    bold = {stem: len(re.findall(rf"\*\*{word}(s|es)?\*\*", text[stem], re.I)) for stem in text}
    assert bold == {stem: int(stem == name) for stem in text}
    for stem in [stem for stem in NAMES if stem < name]:
        used = re.search(rf"\b{word.strip('`')}(s|es)?\b", text[stem], re.I)
        assert not used, f"{stem} says {used[0]}, which {name} introduces"


def test_phases_have_the_colours_of_compare():
    lesson, compare = import_module("notebooks.lesson"), import_module("compare")
    assert lesson.COLORS == compare.PHASES


def test_quoting_cuts_what_is_asked_for():
    lesson = import_module("notebooks.lesson")
    lap = lesson.source("01_baseline/train.py", "Stopwatch.lap")
    assert lap.startswith("def lap(self, phase):\n    now = ")
    assert ast.parse(lap).body[0].name == "lap"
    decorated = lesson.source("01_baseline/train.py", "evaluate", "to_device")
    assert decorated.startswith("@torch.inference_mode()\ndef evaluate(")
    with pytest.raises(LookupError, match="01_baseline/train.py has no Stopwatch.stop"):
        lesson.source("01_baseline/train.py", "Stopwatch.stop")
    whole = lesson.diff("03_ddp_spawn", "04_ddp_torchrun")
    part = lesson.diff("03_ddp_spawn", "04_ddp_torchrun", "main")
    assert '-STAGE = "03_ddp_spawn"' in whole.splitlines()
    assert "class ConvNet" not in whole and "STAGE = " not in part and "-" in part


def test_what_a_cell_starts_is_ended_in_time():
    lesson = import_module("notebooks.lesson")
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; "
    child += "time.sleep(300)  # of a lesson'], start_new_session=True); time.sleep(300)"
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="no end within 1 seconds"):
        lesson.start([sys.executable, "-c", child], timeout=1)
    assert time.monotonic() - started < 60
    if sys.platform == "linux":
        lines = [
            path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
        ]
        assert not any(b"# of a lesson" in line for line in lines)


def test_words_at_the_edge_of_a_picture_are_refused(monkeypatch):
    lesson = import_module("notebooks.lesson")
    shown = []
    monkeypatch.setattr(lesson, "publish", lambda data, metadata=None: shown.append(data))
    with lesson.picture("A title that is long enough to need a second line, as titles do") as axes:
        axes.text(0.5, 0.5, "well inside")
    assert shown[0]["text/plain"].splitlines()[-1] == "well inside"
    with pytest.raises(ValueError, match="no room for 'far out'"):
        with lesson.picture("Short") as axes:
            axes.text(0.5, 9, "far out").set_in_layout(False)


RANKS = """
import os, sys
import torch
import torch.distributed as dist
from notebooks.lesson import give

dist.init_process_group("gloo")
x = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(x)
print("sum", x.item(), "gpus", torch.cuda.device_count(), "threads", torch.get_num_threads())
give(x=x)
give(rank=dist.get_rank())
dist.destroy_process_group()
if "fail" in sys.argv and os.environ["RANK"] == "1":
    sys.exit("I am rank 1")
"""


@pytest.mark.slow
def test_ranks_from_a_cell():
    lesson = import_module("notebooks.lesson")
    run = lesson.torchrun(RANKS, 2)
    lines = [f"rank {rank} | sum 3.0 gpus 0 threads 1" for rank in (0, 1)]
    assert str(run).splitlines() == lines
    assert run.values == [{"x": [3.0], "rank": rank} for rank in (0, 1)]
    with pytest.raises(RuntimeError, match="(?s)a rank has failed.*I am rank 1"):
        lesson.torchrun(RANKS, 2, "fail")
    run = lesson.torchrun(RANKS, 2, "fail", check=False)
    assert run.code == 1 and run.err[1].strip() == "I am rank 1"
    assert "exitcode" in run.launcher and "/tmp" not in run.launcher


# Both working folders would take twice as long: notebooks 1, 3 and 5 start in the root, 2 and 4 in
# notebooks/. What finds the root is the same cell in all of them (see the next test).
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_a_fresh_kernel(name):
    folder = "." if int(name[:2]) % 2 else "notebooks"
    code, said = build_notebooks("--run", "--folder", folder, name, timeout=850)
    assert code == 0, said


def test_all_notebooks_find_the_repository_in_one_way(tmp_path):
    firsts = {re.search(r"```{code-cell}\n(.*?)```", path.read_text(), re.S)[1] for path in SOURCES}
    assert len(firsts) == 1
    code = firsts.pop().partition("\n\n")[2] + "print(lesson.ROOT)"
    (tmp_path / "clone").symlink_to(ROOT)  # as in a cloud's notebook: the clone lies in the folder
    for folder in (ROOT, ROOT / "notebooks", ROOT / "01_baseline", tmp_path):
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        assert found.stdout.strip() == str(ROOT), found.stderr

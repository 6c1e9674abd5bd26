"""The layout: sizes, what stages share, what they may import, and how little neighbours differ."""

import ast
import difflib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, STAGES, files

from tools.sync_shared_half import split

NOT_OURS = {"--nproc-per-node", "--rdzv-endpoint", "GPU"}  # no names of a stage's code
SECOND_RULE = f"\n# {'-' * 47} below this line: the same in stages 3 to 5\n"
SIZES = dict(zip((f"{stage}/train.py" for stage in STAGES), [228, 234, 313, 297, 325]))
SIZES |= {"01_baseline/minimal.py": 50, "04_ddp_torchrun/minimal.py": 72}


@pytest.mark.parametrize("script", SIZES)
def test_the_size_of_a_stage(script):
    assert (ROOT / script).read_text().count("\n") <= SIZES[script]


def test_no_function_is_longer_than_a_screen():
    too_long = []
    for path in files(".py"):
        if path.parent.name != "tests":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno > 50:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not too_long


@pytest.mark.parametrize(
    ("before", "after", "most"), [(0, 1, 28), (2, 3, 64), (3, 4, 50)], ids=["1-2", "3-4", "4-5"]
)
def test_neighbours_differ_in_their_lesson_only(before, after, most):
    scripts = [str(ROOT / STAGES[i] / "train.py") for i in (before, after)]
    command = ["git", "diff", "--no-index", "--numstat", *scripts]
    added, removed, _ = subprocess.run(command, capture_output=True, text=True).stdout.split("\t")
    assert int(added) + int(removed) <= most


@pytest.mark.parametrize("stage", STAGES[1:])
def test_below_the_line_every_stage_is_stage_1(stage):
    assert split(ROOT / stage / "train.py")[1] == split(ROOT / STAGES[0] / "train.py")[1]


def test_below_the_second_line_stages_3_to_5_are_the_same():
    halves = [split(ROOT / stage / "train.py")[0].split(SECOND_RULE) for stage in STAGES[2:]]
    assert all(below == halves[0][1] for _, below in halves)


def changed(before, after):
    """-> the lines of code in which stage `after` differs, docstrings left out: removed, added."""
    codes = []
    for stage in (before, after):
        code = (ROOT / STAGES[stage] / "train.py").read_text().split('"""', 2)[2]
        codes.append([line for line in code.splitlines() if not line.startswith("STAGE = ")])
    lines = list(difflib.ndiff(*codes))
    return ["\n".join(line for line in lines if line.startswith(sign)) for sign in "-+"]


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (2, 3), (3, 4)])
def test_new_since_names_what_is_new(before, after):
    """Names are Capitalized inside, have an underscore or a dot, or begin with -- or @."""
    docstring = ast.get_docstring(ast.parse((ROOT / STAGES[after] / "train.py").read_text()))
    told = docstring.partition(f"New since stage {before + 1}:")[2].partition("\n\n")[0]
    name = r"--[\w-]+|@\w+|\b\w*[a-z]\w*[._]\w+|\b\w*[A-Z]\w*[A-Z]\w*"
    ours = {word.removesuffix("s") for word in re.findall(name, told)} - NOT_OURS
    removed, added = changed(before, after)
    assert [word for word in ours if word not in added + removed] == []
    flags = re.findall(r'add\("(--[\w-]+)"', added)
    variables = re.findall(r'"([A-Z_]{4,})"', added)
    imported = re.findall(r"^\+ from torch.*import (.*)$", added, re.M)
    new = {*flags, *variables, *", ".join(imported).split(", ")} - {"", "DataLoader"}
    assert [word for word in new if word not in docstring] == []


@pytest.mark.parametrize("script", SIZES)
def test_a_stage_imports_nothing_of_ours(script):
    allowed = {"torch", "torchvision", "tqdm", *sys.stdlib_module_names}
    imported = set()
    for node in ast.walk(ast.parse((ROOT / script).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported <= allowed


def calls(name, path):
    """The calls of a function or class in a file, as nodes."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    return [node for node in nodes if ast.unparse(node.func).rpartition(".")[2] == name]


def test_no_store_can_be_reached_from_other_machines():
    """TCPStore(..., is_master=True) listens on all interfaces unless it is given a socket."""
    exempt = {"tests/provoke_messages.py": 1}  # finds its port taken, and so does not listen
    found = Counter()
    for path in files(".py"):
        for call in calls("TCPStore", path):
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if options.get("is_master") != "False" and "master_listen_fd" not in options:
                found[str(path.relative_to(ROOT))] += 1
    assert {name: n for name, n in found.items() if not name.startswith("exercises/")} == exempt


def test_nothing_of_ours_is_unpickled():
    """What comes from a socket or a store may be anybody's, and a pickle runs any code."""
    sources = {path: path.read_text() for path in files(".py") if "exercises" not in path.parts}
    found = [path.name for path, text in sources.items() if re.search("^import pickle", text, re.M)]
    assert found == ["flight_recorder.py"]  # it reads what its own process has recorded
    loads = [call for path in sources for call in calls("load", path)]
    assert not [call for call in loads if "weights_only=False" in ast.unparse(call)]


def test_the_house_stays_small():
    """A change that adds lines removes as many elsewhere: lower these figures, never raise them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git repository here")
    paths = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    lines = {True: 0, False: 0}  # of Python: in tests/, and outside
    for path in paths:
        if path.suffix == ".py":
            lines[path.parts[0] == "tests"] += (ROOT / path).read_text().count("\n")
    assert lines[False] <= 17792, f"{lines[False]} lines of Python outside tests/"
    assert lines[True] <= 8999, f"{lines[True]} lines of Python in tests/"
    assert len(paths) <= 426, f"{len(paths)} files"

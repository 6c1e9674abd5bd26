"""The layout: sizes, what stages share, what they may import, and how little neighbours differ."""

import ast
import re
import subprocess
import sys
from collections import Counter

import pytest
from conftest import ROOT, STAGES, files

from tools.sync_shared_half import split

SECOND_RULE = (
    "# ----------------------------------------------- from here to the next line: as in stage 3"
)
MINIMAL = ("01_baseline/minimal.py", "04_ddp_torchrun/minimal.py")


def functions(source):
    """{name: text} of the functions and classes at the top level of a script."""
    nodes = [n for n in ast.parse(source).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    return {node.name: ast.get_source_segment(source, node) for node in nodes}


@pytest.mark.parametrize(("stage", "most"), list(zip(STAGES, [258, 264, 342, 335, 371])))
def test_the_size_of_a_stage(stage, most):
    upper, lower = split(ROOT / stage / "train.py")
    assert upper.count("\n") + lower.count("\n") <= most
    assert lower.strip().count("\n") <= 176


def test_no_function_is_longer_than_a_screen():
    too_long = []
    for path in files(".py"):
        if path.parent.name != "tests":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno > 50:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not too_long


@pytest.mark.parametrize(
    ("before", "after", "most"), [(0, 1, 30), (2, 3, 80), (3, 4, 60)], ids=["1-2", "3-4", "4-5"]
)
def test_neighbours_differ_in_their_lesson_only(before, after, most):
    scripts = [str(ROOT / STAGES[i] / "train.py") for i in (before, after)]
    command = ["git", "diff", "--no-index", "--numstat", *scripts]
    added, removed, _ = subprocess.run(command, capture_output=True, text=True).stdout.split("\t")
    assert int(added) + int(removed) <= most


@pytest.mark.parametrize("stage", STAGES[1:])
def test_below_the_line_every_stage_is_stage_1(stage):
    assert split(ROOT / stage / "train.py")[1] == split(ROOT / STAGES[0] / "train.py")[1]


@pytest.mark.parametrize("stage", STAGES[3:])
def test_below_the_second_line_a_stage_is_stage_3_function_by_function(stage):
    upper = split(ROOT / stage / "train.py")[0]
    head, rule, shared = upper.partition(SECOND_RULE)
    assert rule and len(functions(shared)) >= 2
    stage3 = functions((ROOT / STAGES[2] / "train.py").read_text())
    for name, text in functions(shared).items():
        assert text == stage3[name], name
    for name, text in functions(head).items():
        assert text != stage3.get(name), f"{name} belongs below the second line"


@pytest.mark.parametrize("script", [f"{stage}/train.py" for stage in STAGES] + [*MINIMAL])
def test_a_stage_imports_nothing_of_ours(script):
    allowed = {"torch", "torchvision", "tqdm", *sys.stdlib_module_names}
    imported = set()
    for node in ast.walk(ast.parse((ROOT / script).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported <= allowed


def test_no_module_shadows_a_stage_folder():
    assert not [path for path in files(".py") if path.stem in STAGES]


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
    assert not [path for path, text in sources.items() if re.search(r"^import pickle", text, re.M)]
    loads = [call for path in sources for call in calls("load", path)]
    assert not [call for call in loads if "weights_only=False" in ast.unparse(call)]


def test_each_promise_has_a_quick_test():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("| "))
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", rows)
    assert len(named) > 10
    for file, test in named:
        source = (ROOT / "tests" / file).read_text()
        assert "\npytestmark = pytest.mark.slow" not in source
        before, found, _ = source.partition(f"def {test}(" if test else '"""')
        decorators = before.rpartition("\n\n\n")[2].splitlines()
        assert found and "@pytest.mark.slow" not in decorators, f"{file}::{test}"

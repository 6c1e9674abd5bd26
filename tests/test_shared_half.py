"""The house: what all stages share is identical, and a stage needs no file but its own."""

import ast
import sys

import pytest
from conftest import ROOT, STAGES

sys.path.insert(0, str(ROOT / "tools"))
from sync_shared_half import split  # noqa: E402


def test_there_are_five_stages():
    assert len(STAGES) == 5


@pytest.mark.parametrize("stage", STAGES[1:])
def test_below_the_line_every_stage_is_stage_1(stage):
    assert split(ROOT / stage / "train.py")[1] == split(ROOT / STAGES[0] / "train.py")[1]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_nothing_of_ours(stage):
    allowed = {"torch", "torchvision", "tqdm", *sys.stdlib_module_names}
    tree = ast.parse((ROOT / stage / "train.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported <= allowed


@pytest.mark.parametrize("stage", STAGES)
def test_no_function_is_longer_than_a_screen(stage):
    tree = ast.parse((ROOT / stage / "train.py").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    too_long = [f.name for f in functions if f.end_lineno - f.lineno >= 60]
    assert not too_long


def test_no_module_shadows_a_stage_folder():
    assert not [path for path in ROOT.rglob("*.py") if path.stem in STAGES]

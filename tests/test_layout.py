"""The layout: what stages share, what they may import, and how little neighbours differ."""

import ast
import re
import subprocess
import sys
from collections import Counter

import pytest
from conftest import ROOT, STAGES, files

SCRIPTS = [f"{stage}/{name}" for stage in STAGES for name in ("train.py", "minimal.py")]
SHARED = (
    "make_model",
    "download_mnist",
    "load_mnist",
    "to_device",
    "Stopwatch",
    "page_faults",
)
# Some more than the lines that differ today.
NEIGHBOURS = [
    ("train.py", 1, 2, 45),
    ("train.py", 1, 3, 240),
    ("train.py", 3, 4, 85),
    ("train.py", 4, 5, 110),
    ("minimal.py", 1, 2, 12),
    ("minimal.py", 2, 3, 100),
    ("minimal.py", 3, 4, 76),  # the numbers of the changes are in stage 4 only
    ("minimal.py", 4, 5, 50),
]


@pytest.mark.parametrize(("script", "before", "after", "most"), NEIGHBOURS)
def test_neighbours_differ_in_their_lesson_only(script, before, after, most):
    paths = [str(ROOT / STAGES[number - 1] / script) for number in (before, after)]
    command = ["git", "diff", "--no-index", "--numstat", *paths]
    added, removed, _ = subprocess.run(command, capture_output=True, text=True).stdout.split("\t")
    assert int(added) + int(removed) <= most


def definitions(path):
    """-> {name: source text} of the functions and classes at the top level of a file."""
    text = path.read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = ast.get_source_segment(text, node)
    return found


@pytest.mark.parametrize("name", SHARED)
def test_a_function_that_all_stages_share_is_the_same_text_in_all(name):
    texts = {definitions(ROOT / stage / "train.py")[name] for stage in STAGES}
    assert len(texts) == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stage_imports_nothing_of_ours(script):
    allowed = {"torch", "torchvision", "tqdm", *sys.stdlib_module_names}
    imported = set()
    for node in ast.walk(ast.parse((ROOT / script).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported <= allowed


def imported_by(path):
    """The first parts of the names of all modules that a file imports, in functions as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


OURS = {path.parent.name for path in ROOT.glob("*/__init__.py")}
OURS |= {"compare", "benchmarks", "notebooks", "docs", "exercises", "tests", "doctor", "ddp_doctor"}
FOLDERS_ALONE = [("lib", {"lib"}), ("doctor/ddp_doctor", {"ddp_doctor"})]


@pytest.mark.parametrize(("folder", "allowed"), FOLDERS_ALONE)
def test_a_folder_imports_nothing_of_the_rest(folder, allowed):
    for path in (ROOT / folder).rglob("*.py"):
        assert imported_by(path) & OURS <= allowed, path


def test_a_further_script_of_a_stage_imports_its_own_folder_only():
    for stage in STAGES:
        own = {"train", "from_scratch"}
        own |= {path.stem for path in (ROOT / stage).glob("*.py")}
        for path in (ROOT / stage).glob("*.py"):
            assert imported_by(path) & (OURS | own) <= {"train", "from_scratch"}, path


def calls(name, path):
    """The calls of a function or class in a file, as nodes."""
    text = path.read_text()
    if name not in text:
        return []
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
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
    ours = [path for path in files(".py") if not path.is_relative_to(ROOT / "exercises")]
    sources = {path: path.read_text() for path in ours}
    found = [path.name for path, text in sources.items() if re.search("^import pickle", text, re.M)]
    assert found == ["flight_recorder.py"]  # it reads what its own process has recorded
    loads = [call for path in sources for call in calls("load", path)]
    assert not [call for call in loads if "weights_only=False" in ast.unparse(call)]

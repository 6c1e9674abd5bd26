"""The rule of the package's folders: who imports whom, who imports torch, what runs in a rank."""

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import DOCTOR
from ddp_doctor.run.events import Wrote
from ddp_doctor.run.launch import observe

PACKAGE = DOCTOR / "ddp_doctor"
FILES = sorted(PACKAGE.rglob("*.py"))
# Which other folders a folder may import. `run` is the ground floor.
MAY_IMPORT = {
    "run": set(),
    "watch": {"run"},
    "check": {"run"},
    "speed": {"run"},
    "film": {"run", "speed"},
    "preflight": set(),
    "start": {"watch"},
    "log": set(),
}
MAY_IMPORT_TORCH = {"watch", "preflight"}
# A rank of its own, which needs no launcher. Its last line says which modules of ours it has.
SCRIPT = """
import json, os, sys
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
Path("own.txt").write_text("3")
dist.destroy_process_group()
print(json.dumps([name for name in sys.modules if name.startswith("ddp_doctor.")]))
"""


def folder_of(file):
    """ "" for a file that lies in no folder of the package."""
    parent = file.parent
    return "" if parent == PACKAGE else parent.name


def imports_of(file):
    """The full names of all modules that a file imports, in functions as well."""
    package = ["ddp_doctor", *file.relative_to(PACKAGE).parent.parts]
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_it_may(folder):
    folders = set()
    for file in FILES:
        if folder_of(file) != folder:
            continue
        for name in imports_of(file):
            package, _, rest = name.partition(".")
            if package == "ddp_doctor" and (PACKAGE / rest.partition(".")[0]).is_dir():
                folders.add(rest.partition(".")[0])
    assert folders - {folder} <= MAY_IMPORT[folder]


def test_each_folder_has_a_row():
    assert {folder_of(file) for file in FILES} - {""} == set(MAY_IMPORT)


def test_only_two_folders_import_torch():
    importers = set()
    for file in FILES:
        if any(name.partition(".")[0] == "torch" for name in imports_of(file)):
            importers.add(folder_of(file))
    assert importers == MAY_IMPORT_TORCH


def test_each_class_has_a_name_of_its_own():
    names = Counter()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1
    assert [name for name, count in names.items() if count > 1] == []


def check_modules(done):
    """Of our modules the rank has the watchers, and those of run/ that a watcher needs."""
    loaded = set(json.loads(done.stdout.splitlines()[0]))
    watchers = {name for name in loaded if name.startswith("ddp_doctor.watch")}
    assert "ddp_doctor.watch.install" in watchers
    shared = {f"ddp_doctor.run.{name}" for name in ("digits", "events", "kept")}
    shared.add("ddp_doctor.run")
    assert loaded == watchers | shared


def test_only_the_watchers_run_in_a_rank_of_check(user):
    (user.folder / "train.py").write_text(SCRIPT)
    check_modules(user.check("python train.py")[0])


def test_the_watcher_of_files_knows_which_calls_are_the_scripts(user, monkeypatch):
    """It knows this by its own file and two others."""
    monkeypatch.chdir(user.folder)
    Path("train.py").write_text(SCRIPT)
    _, _, processes, _ = observe([sys.executable, "train.py"], patience=8, limit=100)
    events = [event for process in processes for event in process if isinstance(event, Wrote)]
    assert [Path(event.path).name for event in events] == ["own.txt"]


def test_only_the_watchers_run_in_a_rank_of_speed(user):
    (user.folder / "train.py").write_text(SCRIPT)
    check_modules(user.doctor("speed python train.py"))


def test_what_runs_before_torch_imports_no_torch():
    code = "import sys, ddp_doctor.watch.early; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=DOCTOR, check=True)

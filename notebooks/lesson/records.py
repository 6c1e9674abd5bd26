"""What was measured and committed, and the digits that notebooks train on."""

import functools
import statistics
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .ranks import ROOT, temporary_folder

RECORDS = "docs/timings/cpu-2-cores"


def records(folder: str = RECORDS) -> dict[str, dict]:
    """The committed timing records in a folder, by file name without ".json".

    Where a run was repeated: the repeat with the median images/s.
    """
    rows = compare().read_folder(ROOT / folder)
    ordered = {name: sorted(repeats, key=compare().speed) for name, repeats in rows.items()}
    return {name: repeats[len(repeats) // 2] for name, repeats in ordered.items()}


def phases(name: str) -> dict[str, float]:
    """Milliseconds of one step in each phase: medians over the epochs and repeats of a record."""
    found = compare().phases_of(compare().read_folder(ROOT / RECORDS)[name])
    return {phase: statistics.median(found[phase]) for phase in compare().PHASES}


def compare() -> ModuleType:
    """What compare.py computes from records, such as speed and accuracy."""
    return import_module("tools.records")


@functools.cache
def digits(train: int = 6000, test: int = 1000) -> Path:
    """A folder with digits drawn now, in MNIST's format: the same ones at every call and place.

    Small, and no network needed. It is removed when the notebook's kernel ends.
    """
    folder = Path(temporary_folder(), f"drawn-{train}")
    command = [sys.executable, "tools/draw_digits.py", str(folder)]
    command += ["--train", str(train), "--test", str(test)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600, stdout=subprocess.DEVNULL)
    return folder

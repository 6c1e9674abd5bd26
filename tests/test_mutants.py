"""The lessons are guarded: a line of a stage that teaches something else makes a quick test fail.

tests/mutants.txt has the list. Each mutant is a block: the file, the old line, the new line, which
lesson it makes false, and the quick test that must fail. To add one, write a block without
"test", and run

    python tests/test_mutants.py NUMBER     (the block's number, from 1; all without a number)

which applies it in a copy of the repository, and runs the quick tests of the stages there until one
fails.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants.txt"
# The quick tests of the stages. Those that find most come first.
FILES = (
    "tests/test_from_scratch.py",
    "tests/test_from_scratch_parts.py",
    "tests/test_stages.py",
    "tests/test_stage_parts.py",
    "tests/test_minimal.py",
    "tests/test_snapshots.py",
    "tests/test_own_backend.py",
    "tests/test_rank_zero.py",
    "tests/test_from_scratch_runs.py",
    "tests/test_launch.py",
    "tests/test_rehearsal.py",
    "tests/test_layout.py",
)


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    why: str
    test: str = ""  # its name for pytest; empty if nobody has looked yet


def mutants() -> list[Mutant]:
    found = []
    for block in LIST.read_text().split("\n\n"):
        fields = dict(re.findall(r"^(file|old|new|why|test): (.*)$", block, re.MULTILINE))
        if fields:
            found.append(Mutant(**fields))
    return found


def code_of(line: str) -> str:
    """A line without its comment, so that a better comment changes no mutant."""
    return line.partition("  # ")[0].strip()


def apply(mutant: Mutant, root: Path) -> None:
    """Replace the line in the copy of the repository. Raises ValueError unless it is there once."""
    path = root / mutant.file
    lines = path.read_text().splitlines()
    places = [place for place, line in enumerate(lines) if code_of(line) == mutant.old]
    if len(places) != 1:
        raise ValueError(f"{mutant.file} has {len(places)} lines {mutant.old!r}")
    line = lines[places[0]]
    indentation = line[: len(line) - len(line.lstrip())]
    lines[places[0]] = indentation + mutant.new
    path.write_text("\n".join(lines) + "\n")


def copy_of_the_repository(folder: Path) -> Path:
    """Copy what belongs to the repository, without what runs have left."""

    def left_out(place: str, names: list[str]) -> set[str]:
        ignored = {name for name in names if name.startswith(".") or name == "__pycache__"}
        if Path(place) == ROOT:
            ignored |= {"_site", "data", "timings", "checkpoints", "runs"}
        return ignored

    return Path(shutil.copytree(ROOT, folder / "copy", ignore=left_out))


def run_quick_tests(root: Path, tests: list[str]) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "not slow",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run([*command, *tests], cwd=root, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(mutants()) + 1))
def test_a_mutant_falls(tmp_path, number):
    mutant = mutants()[number - 1]
    root = copy_of_the_repository(tmp_path)
    apply(mutant, root)
    result = run_quick_tests(root, [mutant.test])
    assert result.returncode == 1, f"{mutant}\n{result.stdout}"


def test_every_mutant_can_be_applied(tmp_path):
    """A changed lesson needs a changed mutant."""
    for mutant in mutants():
        copy = tmp_path / mutant.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / mutant.file, copy)
        apply(mutant, tmp_path)
        compile(copy.read_text(), mutant.file, "exec")


def main() -> None:
    chosen = [int(number) for number in sys.argv[1:]] or range(1, len(mutants()) + 1)
    for number in chosen:
        mutant = mutants()[number - 1]
        with tempfile.TemporaryDirectory() as folder:
            root = copy_of_the_repository(Path(folder))
            apply(mutant, root)
            result = run_quick_tests(root, list(FILES))
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
        print(f"{number}: {mutant.file}: {failed[0] if failed else 'SURVIVES'}", flush=True)


if __name__ == "__main__":
    main()

"""What an exercise is, and which of them the reader has done.

Each folder NN_name is an exercise:

    task.py      what the reader changes
    check.py     what the ranks must do
    solution.py  our solution, a program that runs
    other.py     other right answers
    wrong.py     wrong answers, which the checker must refuse
    hints.md     three hints

given.zip has each task.py as it was given. So --reset needs no git, and it does not matter what the
reader has committed.
"""

import ast
import contextlib
import difflib
import json
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
GIVEN = HERE / "given.zip"
PROGRESS = HERE / ".progress.json"
# In other.py and wrong.py, an answer begins with such a line.
TITLE = re.compile(r"^# %% (.*)\n(?:# verdict: (.*)\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """An answer of ours. Its code stands below our solution, so it replaces what it defines."""

    title: str
    verdict: str | None  # words of the verdict on a wrong answer
    code: str  # empty: it is the file as it was given


@dataclass(frozen=True)
class Exercise:
    folder: Path

    @property
    def number(self) -> str:
        return self.folder.name[:2]

    @property
    def name(self) -> str:
        return self.folder.name[3:]

    @property
    def file(self) -> Path:
        """What the reader changes."""
        return self.folder / "task.py"

    @property
    def level(self) -> int:
        """As on the page; it is also the number of points."""
        if self.number <= "10":
            return 1
        return 2 if self.number <= "21" else 3

    @property
    def title(self) -> str:
        """The symptom, or what is to be written."""
        first = self.given.split("\n")[0]
        return first.strip('"')

    @property
    def given(self) -> str:
        with zipfile.ZipFile(GIVEN) as archive:
            return archive.read(f"{self.folder.name}/task.py").decode()

    @property
    def solution(self) -> str:
        return (self.folder / "solution.py").read_text()

    @property
    def hints(self) -> list[str]:
        text = (self.folder / "hints.md").read_text()
        _, *hints = re.split(r"^\d\. ", text, flags=re.MULTILINE)
        return [" ".join(hint.split()) for hint in hints]

    def difference(self) -> list[str]:
        """What our solution changes in the given file: the lines of a unified diff."""
        given = self.given.splitlines()
        head = given[: lines_of_docstring(self.given)]
        ours = self.solution.splitlines()[lines_of_docstring(self.solution) :]
        lines = difflib.unified_diff(given, [*head, *ours], n=2, lineterm="")
        return list(lines)[2:]  # without the names of the files

    def answers(self, name: str) -> list[Answer]:
        """Those of other.py or wrong.py."""
        text = (self.folder / name).read_text()
        _, *parts = TITLE.split(text)
        found = []
        for title, verdict, code in zip(parts[::3], parts[1::3], parts[2::3]):
            found.append(Answer(title, verdict, code.strip("\n")))
        return found

    def text_of(self, answer: Answer) -> str:
        """A whole file with this answer."""
        if not answer.code:
            return self.given
        return f"{self.solution}\n\n{answer.code}\n"


def lines_of_docstring(text: str) -> int:
    return ast.parse(text).body[0].end_lineno


def all_exercises() -> list[Exercise]:
    return [Exercise(folder) for folder in sorted(HERE.glob("[0-9][0-9]_*"))]


def find(word: str) -> Exercise | None:
    """The exercise with this number, name or path"""
    path = Path(word.strip())
    name = path.parent.name if path.suffix == ".py" else path.name
    if name.isdecimal():
        name = name.zfill(2)
    for exercise in all_exercises():
        if name in (exercise.number, exercise.name, exercise.folder.name):
            return exercise
    return None


# ---------------------------------------------------------------- what the reader has done


def progress() -> dict[str, dict]:
    """{name: {"done": is it, "hints": how many were shown}}; what the file has else is left out."""
    found = {exercise.name: {"done": False, "hints": 0} for exercise in all_exercises()}
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        for name, of in json.loads(PROGRESS.read_text()).items():
            if name in found and of.get("hints", 0) in range(4):
                found[name] = {"done": of.get("done") is True, "hints": int(of.get("hints", 0))}
    return found


def remember(exercise: Exercise, **values) -> None:
    state = progress()
    state[exercise.name] |= values
    part = PROGRESS.with_suffix(".part")
    try:
        part.write_text(json.dumps(state, indent=1))
        part.replace(PROGRESS)
    except OSError as error:
        print(f"your progress is not kept: {error}", file=sys.stderr)


def next_open() -> Exercise | None:
    """The first that is not done, in the order of the page."""
    state = progress()
    for exercise in all_exercises():
        if not state[exercise.name]["done"]:
            return exercise
    return None

"""Points for the answers of one reader, and a table for a class.

A point is the level of the exercise: 1, 2 or 3. Each answer gets a `kind`, which is the verdict
without its numbers, so that the same misconception of two students has the same kind.
"""

import ast
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

NOT_BEGUN = "as it was given"
MISSING = "no file"
MARKS = {NOT_BEGUN: ".", MISSING: " "}
OURS = "done, with the same code as our solution"
LEGEND = (
    "+ solved   = solved with our own code   - not solved   . as it was given   (blank) no file"
)


@dataclass
class Result:
    """One answer to one exercise."""

    number: str
    name: str
    points: int
    of: int
    kind: str
    reason: str  # the whole verdict

    @property
    def mark(self) -> str:
        """One letter for the table."""
        if self.points:
            return "=" if self.kind == OURS else "+"
        return MARKS.get(self.kind, "-")


def handed_in(folder: Path, exercise) -> Path | None:
    """What a student has handed in: NN_name/task.py or NN_name.py, in any folder below."""
    name = exercise.folder.name
    found = sorted(folder.rglob(f"{name}/task.py")) + sorted(folder.rglob(f"{name}.py"))
    return found[0] if found else None


def missing(exercise) -> Result:
    return make_result(exercise, MISSING, f"there is no {exercise.folder.name}")


def not_begun(exercise) -> Result:
    return make_result(exercise, NOT_BEGUN, NOT_BEGUN)


def result_of(exercise, file: Path, wrong: str | None) -> Result:
    """Of a file with this verdict; None: it is done."""
    if wrong is None:
        return make_result(exercise, done_how(exercise, file), "", exercise.level)
    kind = NOT_BEGUN if is_given(exercise, file) else kind_of(wrong)
    return make_result(exercise, kind, wrong)


def make_result(exercise, kind: str, reason: str, points: int = 0) -> Result:
    return Result(exercise.number, exercise.name, points, exercise.level, kind, reason)


def is_given(exercise, file: Path) -> bool:
    try:
        return file.read_text() == exercise.given
    except (OSError, ValueError):
        return False


def done_how(exercise, file: Path) -> str:
    """A part that was written has many forms, so our own form may be a copy."""
    if exercise.level == 3 and code_of(file.read_text()) == code_of(exercise.solution):
        return OURS
    return "done"


def code_of(text: str) -> list[str]:
    """The program without its first docstring, comments and layout"""
    return [ast.dump(node) for node in ast.parse(text).body if not is_text(node)]


def is_text(node) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def kind_of(wrong: str) -> str:
    """A verdict without what differs between two students with the same mistake."""
    if "it hangs:" in wrong:
        return "it hangs"
    lines = wrong.splitlines()
    if re.search(r"rank \d+ failed", lines[0]):
        error = lines[1] if len(lines) > 1 else ""
        return "it fails: " + error.split(":")[0]
    if lines[0].startswith("Python cannot read"):
        return "Python cannot read it"
    text = lines[0].split("different from our solution: ")[-1].split("different from DDP: ")[-1]
    text = re.sub(r"^On \d+ ranks: ", "", text)
    text = re.sub(r"\d[\d,.]*", "N", text)
    text = re.sub(r": N[^:;]*; N with our solution$", "", text)
    return text[:100]


def summary(results: list[Result]) -> dict:
    return {
        "points": sum(result.points for result in results),
        "of": sum(result.of for result in results),
        "exercises": [asdict(result) for result in results],
    }


# ---------------------------------------------------------------- the table


def table(students: dict[str, list[Result]], exercises: list) -> list[str]:
    """A line for each student, and below how many have solved each exercise."""
    width = max(len(name) for name in (*students, "solved by"))
    numbers = " ".join(exercise.number for exercise in exercises)
    lines = [f"{'':<{width}}  {numbers}  points"]
    of = sum(exercise.level for exercise in exercises)
    for name, results in students.items():
        marks = "  ".join(result.mark for result in results)
        points = sum(result.points for result in results)
        lines.append(f"{name:<{width}}   {marks}  {points:>3} of {of}")
    solved = []
    for results in zip(*students.values()):
        count = sum(result.points > 0 for result in results)
        solved.append(f"{count:>2}")
    lines.append(f"{'solved by':<{width}}  {' '.join(solved)}")
    return [*lines, LEGEND]


def misconceptions(students: dict[str, list[Result]]) -> list[str]:
    """For each exercise, the verdicts on wrong answers, the most common ones first."""
    kinds = Counter()
    for results in students.values():
        for result in results:
            if result.mark == "-":
                kinds[result.number, result.name, result.kind] += 1
    lines = ["\nwrong answers by exercise and verdict:"] if kinds else []
    for (number, name, kind), count in sorted(kinds.items(), key=order):
        lines.append(f"{count:>3}  {number} {name}: {kind}")
    return lines


def order(item):
    (number, _, kind), count = item
    return number, -count, kind

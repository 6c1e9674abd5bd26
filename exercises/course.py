"""Points for the exercises of one reader, and a table for a class.

A point is the level of the exercise: 1, 2 or 3. Each answer gets a `kind`, which is the verdict
without its numbers, so that the same misconception of two students has the same kind.
"""

import ast
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape

from exercises import check

NOT_BEGUN = "as it was given"
MISSING = "no file"
MARKS = {NOT_BEGUN: ".", MISSING: " "}
OURS = "done, with the same code as our solution"


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


def check_all(exercises: list, out: Path | None) -> int:
    """Check the reader's own files, print the verdicts and the points -> exit code"""
    results = []
    for exercise in exercises:
        wrong, figures = check.checked(exercise, exercise.file)
        check.print_verdict(exercise, wrong, figures)
        if wrong is None:
            check.remember(exercise, done=True)
        results.append(result_of(exercise, exercise.file, wrong))
    points = sum(result.points for result in results)
    of = sum(result.of for result in results)
    check.console.print(f"\n{points} of {of} points")
    if out:
        write(out, summary(results))
    return 0 if points == of else 1


def print_class(folder: Path, exercises: list, out: Path | None) -> int:
    """Check the answers of all students, print one table -> exit code"""
    students = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            students[path.name] = results_of(path, exercises)
    if not students:
        line(f"{folder} has no folder of a student")
        return 1
    print_table(students, exercises)
    print_misconceptions(students)
    if out:
        write(out, {name: summary(results) for name, results in students.items()})
    return 0


def results_of(folder: Path, exercises: list) -> list[Result]:
    """Check what a student has handed in; the files may be in any folder below."""
    results = []
    for exercise in exercises:
        found = sorted(folder.rglob(f"{exercise.folder_name}/task.py"))
        found += sorted(folder.rglob(f"{exercise.folder_name}.py"))
        if not found:
            results.append(make_result(exercise, MISSING, f"there is no {exercise.folder_name}"))
            continue
        if is_given(exercise, found[0]):
            results.append(make_result(exercise, NOT_BEGUN, NOT_BEGUN))
            continue
        with check.console.status(f"{folder.name}: {exercise.number} {exercise.name}"):
            wrong, _ = check.judged(exercise, found[0])
        results.append(result_of(exercise, found[0], wrong))
    return results


def result_of(exercise, file: Path, wrong: str | None) -> Result:
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


def code_of(text: str) -> str:
    """The program without comments and layout"""
    return ast.dump(ast.parse(text))


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


def write(out: Path, value: dict) -> None:
    out.write_text(json.dumps(value, indent=1) + "\n")
    line(f"{out} is written")


# ---------------------------------------------------------------- the table


def print_table(students: dict[str, list[Result]], exercises: list) -> None:
    """A line for each student, and below how many have solved each exercise."""
    width = max(len(name) for name in (*students, "solved by"))
    numbers = " ".join(exercise.number for exercise in exercises)
    line(f"{'':<{width}}  {numbers}  points")
    of = sum(exercise.level for exercise in exercises)
    for name, results in students.items():
        marks = "  ".join(result.mark for result in results)
        points = sum(result.points for result in results)
        line(f"{name:<{width}}   {marks}  {points:>3} of {of}")
    solved = []
    for number in range(len(exercises)):
        count = sum(results[number].points > 0 for results in students.values())
        solved.append(f"{count:>2}")
    line(f"{'solved by':<{width}}  {' '.join(solved)}")
    line(
        "+ solved   = solved with our own code   - not solved   . as it was given   (blank) no file"
    )


def print_misconceptions(students: dict[str, list[Result]]) -> None:
    """For each exercise, the verdicts on wrong answers, the most common ones first."""
    kinds = Counter()
    for results in students.values():
        for result in results:
            if result.mark == "-":
                kinds[result.number, result.name, result.kind] += 1
    if kinds:
        line("\nwrong answers by exercise and verdict:")
    for (number, name, kind), count in sorted(kinds.items(), key=order):
        line(f"{count:>3}  {number} {name}: {kind}")


def order(item):
    (number, _, kind), count = item
    return number, -count, kind


def line(text: str) -> None:
    check.console.print(escape(text), soft_wrap=True)

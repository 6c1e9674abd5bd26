"""The exercises: check one on real ranks, list them, get a hint. README.md has the commands."""

import argparse
import importlib.util
import json
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

# ruff: noqa: E402 (what is imported below may be missing, which is said in one line)
NEEDED = ("torch", "torchvision", "psutil", "rich", "tabulate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if MISSING:
    sys.exit(
        f"check.py needs {', '.join(MISSING)}. Activate the environment "
        "(. .venv/bin/activate), or run: pip install -r requirements/readers.txt"
    )

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from exercises import points
from exercises.exercise import Exercise, all_exercises, find, next_open, progress, remember

console = Console(highlight=False)
COLOURS = {"+": "green", "-": "red", "@": "cyan"}  # of the lines of a difference


def main() -> int:
    args = parse_args()
    let_signals_end_it()
    if args.folder:
        return check_class(args.folder, args.only, args.json)
    if args.all:
        return check_all(args.only, args.json)
    exercise = args.exercise or next_open()
    if args.list or exercise is None:
        return print_list()
    if args.hint:
        return print_hint(exercise)
    if args.solution:
        return print_solution(exercise)
    if args.reset or not exercise.file.exists():
        return reset(exercise)
    if args.watch:
        return keep_watching(exercise)
    if not check(exercise):
        return 1
    print_learnt(exercise)
    return 0


def let_signals_end_it() -> None:
    """In the ordinary way: the ranks are ended on the way out."""

    def leave(number, frame):
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), leave)


# ---------------------------------------------------------------- one verdict


def check(exercise: Exercise) -> bool:
    """Check the reader's file on real ranks, print what was seen -> is it done?"""
    return print_verdict(exercise, *judged(exercise, exercise.file))


def judged(exercise: Exercise, file: Path) -> tuple[str | None, str]:
    """As `verdict.judged`, with a sign of life."""
    from exercises import verdict  # here, because it imports PyTorch

    with console.status(f"{exercise.number} {exercise.name}: starting ranks"):
        return verdict.judged(exercise, file)


def print_verdict(exercise: Exercise, wrong: str | None, figures: str) -> bool:
    """Print the verdict, and remember what is done -> is it done?"""
    mark = "[red]not yet[/]  " if wrong else "[green]done[/]     "
    console.print(mark, f"{exercise.number} {exercise.name}")
    for text in (wrong, figures):
        if text:
            console.print(Padding(escape(text), (0, 0, 0, 10)))
    if wrong is None:
        remember(exercise, done=True)
    return wrong is None


def print_learnt(exercise: Exercise) -> None:
    """After "done": what to keep of it, two right ways to compare with one's own, the next one."""
    console.print(f"\n{escape(exercise.hints[1])}", style="bold")
    print_solution(exercise)
    other = exercise.answers("other.py")[0]
    console.print(f"\nAnother right solution: {escape(other.title)}.")
    print_line(other.code)
    following = next_open()
    if following:
        name = following.file.relative_to(HERE.parent)
        console.print(f"\nNext: {name}: {escape(following.title)}")


def print_solution(exercise: Exercise) -> int:
    """What our solution changes in the file as it was given."""
    console.print("\nOur solution:")
    for text in exercise.difference():
        print_line(text, COLOURS.get(text[:1]))
    return 0


def print_line(text: str, style: str | None = None) -> None:
    """Program text and tables: no line is wrapped."""
    console.print(escape(text), style=style, soft_wrap=True)


# ---------------------------------------------------------------- what the flags do


def print_list() -> int:
    state = progress()
    done = 0
    for exercise in all_exercises():
        mark = "    "
        if state[exercise.name]["done"]:
            mark = "[green]done[/]"
            done += 1
        name = f"[cyan]{exercise.name:<24}[/]"
        console.print(exercise.number, mark, name, escape(exercise.title), soft_wrap=True)
    console.print(f"\n{done} of {len(state)} done. Check the next one: python exercises/check.py")
    return 0


def print_hint(exercise: Exercise) -> int:
    hints = exercise.hints
    given = min(progress()[exercise.name]["hints"] + 1, len(hints))
    remember(exercise, hints=given)
    for number, hint in enumerate(hints[:given], start=1):
        console.print(f"hint {number} of {len(hints)}: {escape(hint)}")
    return 0


def reset(exercise: Exercise) -> int:
    """Write the file as it was given; the reader's own stays next to it."""
    kept = exercise.file.with_suffix(".py.yours")
    found = exercise.file.exists()
    try:
        if found:
            kept.write_bytes(exercise.file.read_bytes())
        exercise.file.write_text(exercise.given)
    except OSError as error:
        console.print(f"the file cannot be written: {error}")
        return 1
    yours = f" Your version is kept as {kept.name}." if found else ""
    console.print(f"{exercise.folder.name}/{exercise.file.name} is as it was given.{yours}")
    return 0


def keep_watching(exercise: Exercise | None) -> int:
    """Check on every save; when one is done, go on with the next one that is not."""
    while exercise:
        before = saved(exercise)
        console.rule(style="dim")
        if check(exercise):
            print_learnt(exercise)
            exercise = next_open()
            continue
        name = exercise.file.relative_to(HERE.parent)
        console.print(f"watching {name}. Ctrl-C ends the checker.", style="dim")
        while saved(exercise) in (before, None):
            time.sleep(0.2)
    return print_list()


def saved(exercise: Exercise) -> int | None:
    """When the file was saved; None if it is not there."""
    return exercise.file.stat().st_mtime_ns if exercise.file.exists() else None


def check_all(exercises: list[Exercise], out: Path | None) -> int:
    """Check the reader's own files, print the verdicts and the points -> exit code"""
    results = []
    for exercise in exercises:
        wrong, figures = judged(exercise, exercise.file)
        print_verdict(exercise, wrong, figures)
        results.append(points.result_of(exercise, exercise.file, wrong))
    summary = points.summary(results)
    console.print(f"\n{summary['points']} of {summary['of']} points")
    write(out, summary)
    return 0 if summary["points"] == summary["of"] else 1


def check_class(folder: Path, exercises: list[Exercise], out: Path | None) -> int:
    """Check the answers of all students, print one table -> exit code"""
    students = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            students[path.name] = [result(path, exercise) for exercise in exercises]
    if not students:
        print_line(f"{folder} has no folder of a student")
        return 1
    for line in points.table(students, exercises) + points.misconceptions(students):
        print_line(line)
    write(out, {name: points.summary(results) for name, results in students.items()})
    return 0


def result(student: Path, exercise: Exercise) -> points.Result:
    """Check what a student has handed in."""
    file = points.handed_in(student, exercise)
    if file is None:
        return points.missing(exercise)
    if points.is_given(exercise, file):
        return points.not_begun(exercise)
    wrong, _ = judged(exercise, file)
    return points.result_of(exercise, file, wrong)


def write(out: Path | None, value: dict) -> None:
    if out:
        out.write_text(json.dumps(value, indent=1) + "\n")
        print_line(f"{out} is written")


# ---------------------------------------------------------------- the command line


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "exercise",
        nargs="?",
        help="number, name or path of an exercise; otherwise the first that is not done",
    )
    what = parser.add_mutually_exclusive_group()
    flag = what.add_argument
    flag("--list", action="store_true", help="list all exercises, and which of them are done")
    flag("--all", action="store_true", help="check all exercises")
    flag("--watch", action="store_true", help="check the file again whenever it is saved")
    flag("--hint", action="store_true", help="show the next of three hints")
    flag("--solution", action="store_true", help="show what our solution changes")
    flag("--reset", action="store_true", help="restore the file; yours is saved next to it")
    flag(
        "--class",
        dest="folder",
        type=Path,
        help="check a folder that has a folder for each student",
    )
    parser.add_argument(
        "--json", type=Path, help="with --all or --class: write the points to a file"
    )
    parser.add_argument(
        "--only", help="with --all or --class: only some exercises, such as 01,05,07"
    )
    args = parser.parse_args()
    of_all = args.all or args.list or args.folder
    if args.exercise and of_all:
        parser.error("--all, --list and --class are about all exercises, so leave the number out")
    if (args.json or args.only) and not (args.all or args.folder):
        parser.error("--json and --only belong to --all or --class")
    if args.folder and not args.folder.is_dir():
        parser.error(f"there is no folder {args.folder}")
    if args.exercise:
        args.exercise = named(args.exercise, parser)
    elif args.reset or args.solution:
        parser.error("--reset and --solution need the number of an exercise, such as 01")
    if args.only:
        args.only = [named(word, parser) for word in args.only.split(",")]
    else:
        args.only = all_exercises()
    return args


def named(word: str, parser: argparse.ArgumentParser) -> Exercise:
    found = find(word)
    if found is None:
        parser.error(f"there is no exercise {word}: --list shows all exercises")
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""The exercises: check one on real ranks, list them, get a hint. README.md has the commands."""

import argparse
import contextlib
import difflib
import importlib.util
import json
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
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
        "(. .venv/bin/activate), or run: pip install -r requirements/exercises.txt"
    )

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

console = Console(highlight=False)
PROGRESS = HERE / ".progress.json"


@dataclass(frozen=True)
class Exercise:
    number: str
    file: Path  # what the reader changes: NN_name/task.py

    @property
    def folder_name(self) -> str:
        """NN_name"""
        return self.file.parent.name

    @property
    def name(self) -> str:
        return self.folder_name[3:]

    @property
    def check(self) -> Path:
        return HERE / self.folder_name / "check.py"

    @property
    def diff(self) -> Path:
        """What our solution changes. It holds both whole texts, so no git is needed."""
        return HERE / "solutions" / f"{self.folder_name}.diff"

    @property
    def level(self) -> int:
        """As on the page; it is also the number of points."""
        if self.number >= "22":
            return 3
        return 1 if self.number <= "10" else 2

    def text(self, marks: str) -> str:
        """The lines of the diff that begin with one of the marks, without them."""
        lines = self.diff.read_text().splitlines(keepends=True)[3:]
        return "".join(line[1:] for line in lines if line[0] in marks)

    @property
    def given(self) -> str:
        return self.text(" -")

    @property
    def solution(self) -> str:
        return self.text(" +")

    @property
    def hints(self) -> list[str]:
        text = (HERE / "hints.txt").read_text()
        own = text.split(f"\n{self.number}\n")[1].split("\n\n")[0]
        hints = f"\n{own}".split("\n- ")[1:]
        return [" ".join(hint.split()) for hint in hints]

    @property
    def title(self) -> str:
        first = self.given.split("\n")[0]
        return first.strip('"')


def main() -> int:
    args = parse_args()
    let_signals_end_it()
    if args.folder:
        from exercises import course

        return course.print_class(args.folder, args.only, args.json)
    if args.all:
        from exercises import course

        return course.check_all(args.only, args.json)
    exercise = args.exercise or next_open()
    if args.list or exercise is None:
        return print_list()
    if args.hint:
        return print_hint(exercise)
    if args.reset or not exercise.file.exists():
        return reset(exercise)
    if args.watch:
        return keep_watching(exercise)
    if not verdict(exercise):
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


def all_exercises() -> list[Exercise]:
    """One for each of our solutions, which begins with the path of the file: "--- a/..." """
    exercises = []
    for diff in sorted(HERE.glob("solutions/*.diff")):
        if diff.suffixes == [".diff"]:  # and not .other.diff
            first = diff.read_text().split("\n")[0]
            file = HERE.parent / first.removeprefix("--- a/")
            exercises.append(Exercise(file.parent.name[:2], file))
    return exercises


def next_open() -> Exercise | None:
    """The first that is not done, in the order of the page."""
    state = progress()
    for exercise in all_exercises():
        if not state[exercise.name]["done"]:
            return exercise
    return None


# ---------------------------------------------------------------- one verdict


def verdict(exercise: Exercise) -> bool:
    """Check the reader's file on real ranks, print what was seen -> is it done?"""
    wrong, figures = checked(exercise, exercise.file)
    print_verdict(exercise, wrong, figures)
    if wrong is None:
        remember(exercise, done=True)
    return wrong is None


def checked(exercise: Exercise, file: Path) -> tuple[str | None, str]:
    """As `judged`, with a sign of life."""
    with console.status(f"{exercise.number} {exercise.name}: starting ranks"):
        return judged(exercise, file)


def print_verdict(exercise: Exercise, wrong: str | None, figures: str) -> None:
    mark = "[red]not yet[/]  " if wrong else "[green]done[/]     "
    console.print(mark, f"{exercise.number} {exercise.name}")
    for text in (wrong, figures):
        if text:
            console.print(Padding(escape(text), (0, 0, 0, 10)))


def judged(exercise: Exercise, file: Path) -> tuple[str | None, str]:
    """-> what still differs, or None; and the figures that the ranks have reached, if any."""
    try:
        compile(file.read_text(), str(file), "exec")
    except SyntaxError as error:
        place = f"line {error.lineno}" if error.lineno else file.name
        return f"Python cannot read {place}: {error.msg}", ""
    except (OSError, ValueError) as error:  # gone, not UTF-8, or a null byte
        return f"Python cannot read {file.name}: {error}", ""
    from exercises import judge  # here, because it imports PyTorch

    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder, file.name)
        ours.write_text(exercise.solution)
        return judge.compared(file, ours, exercise.check)


def print_learnt(exercise: Exercise) -> None:
    """After "done": what to keep of it, two right ways to compare with one's own, the next one."""
    console.print(f"\n{escape(exercise.hints[1])}", style="bold")
    console.print("\nOur solution:")
    given = exercise.given.splitlines()
    ours = exercise.solution.splitlines()
    print_diff(difflib.unified_diff(given, ours, n=2, lineterm=""))
    name, *lines = exercise.diff.with_suffix(".other.diff").read_text().splitlines()
    console.print(f"\nAnother right solution: {escape(name)}. Compared with our solution:")
    print_diff(lines)
    following = next_open()
    if following:
        name = following.file.relative_to(HERE.parent)
        console.print(f"\nNext: {name}: {escape(following.title)}")


def print_diff(lines) -> None:
    """Without the names of the files; no line is wrapped."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in list(lines)[2:]:
        console.print(escape(line), style=colours.get(line[:1]), soft_wrap=True)


# ---------------------------------------------------------------- what the flags do


def print_list() -> int:
    state = progress()
    exercises = all_exercises()
    for exercise in exercises:
        mark = "[green]done[/]" if state[exercise.name]["done"] else "    "
        name = f"[cyan]{exercise.name:<24}[/]"
        console.print(exercise.number, mark, name, escape(exercise.title), soft_wrap=True)
    done = sum(state[exercise.name]["done"] for exercise in exercises)
    console.print(
        f"\n{done} of {len(exercises)} done. Check the next one: python exercises/check.py"
    )
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
    console.print(f"{exercise.file.name} is as it was given.{yours}")
    return 0


def keep_watching(exercise: Exercise | None) -> int:
    """Check on every save; when one is done, go on with the next one that is not."""
    while exercise:
        before = saved(exercise)
        console.rule(style="dim")
        if verdict(exercise):
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
    with contextlib.suppress(FileNotFoundError):
        return exercise.file.stat().st_mtime_ns


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
        console.print(f"your progress is not kept: {error}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "exercise",
        nargs="?",
        help="number, name or path of an exercise; otherwise the first that is not done",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--list", action="store_true", help="list all exercises, and which of them are done"
    )
    what.add_argument("--all", action="store_true", help="check all exercises")
    what.add_argument(
        "--watch", action="store_true", help="check the file again whenever it is saved"
    )
    what.add_argument("--hint", action="store_true", help="show the next of three hints")
    what.add_argument(
        "--reset", action="store_true", help="restore the file; your version is saved next to it"
    )
    what.add_argument(
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
        args.exercise = find(args.exercise, parser)
    elif args.reset:
        parser.error(
            "--reset needs the number of an exercise: python exercises/check.py 01 --reset"
        )
    if args.only:
        args.only = [find(word, parser) for word in args.only.split(",")]
    else:
        args.only = all_exercises()
    return args


def find(word: str, parser: argparse.ArgumentParser) -> Exercise:
    """The exercise with this number, name or path"""
    path = Path(word)
    stem = path.parent.name if path.suffix == ".py" else path.name
    if stem.isdecimal():
        stem = stem.zfill(2)
    for exercise in all_exercises():
        if stem in (exercise.number, exercise.folder_name, exercise.name):
            return exercise
    parser.error(f"there is no exercise {word}: --list shows all exercises")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""The exercises: check one on real ranks, list them, get a hint. README.md has the commands."""

import argparse
import contextlib
import difflib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from rich.console import Console  # noqa: E402
from rich.markup import escape  # noqa: E402
from rich.padding import Padding  # noqa: E402
from rich.syntax import Syntax  # noqa: E402
from rich.table import Table  # noqa: E402

from exercises.checks import ranks  # noqa: E402

console = Console(highlight=False)
PROGRESS = HERE / ".progress.json"
KINDS = {
    "mend": "Mend it: one mistake each",
    "write": "Write it",
    "chain": "The chain: each step improves a figure of the last one's file",
}


@dataclass(frozen=True)
class Exercise:
    number: str
    kind: str  # mend, write or chain: the folder
    file: Path

    @property
    def check(self) -> Path:
        return HERE / "checks" / self.file.name

    @property
    def diff(self) -> Path:
        """What our solution changes in the file as it is given."""
        return HERE / "solutions" / f"{self.file.stem}.diff"

    @property
    def title(self) -> str:
        """The first line of the file, which the reader may have broken or deleted."""
        lines = self.file.read_text(errors="replace").splitlines() if self.file.exists() else []
        return lines[0].strip('"') if lines else "no file: --reset brings it back"


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks are ended on the way out
    if args.all:
        return 0 if all([verdict(exercise) for exercise in all_exercises()]) else 1
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
    if not verdict(exercise):
        return 1
    print_learnt(exercise)
    return 0


def all_exercises() -> list[Exercise]:
    """One for each of our solutions, which begins with the path of the file: "--- a/..." """
    starts = [diff.read_text().split("\n")[0] for diff in sorted(HERE.glob("solutions/*.diff"))]
    files = [HERE.parent / start.removeprefix("--- a/") for start in starts]
    found = [Exercise(file.name[:2], file.parent.name, file) for file in files]
    return sorted(found, key=lambda exercise: list(KINDS).index(exercise.kind))


def next_open() -> Exercise | None:
    """The first that is not done, in the order of the page."""
    state = progress()
    left = [e for e in all_exercises() if not state.get(e.number, {}).get("done")]
    return left[0] if left else None


# ---------------------------------------------------------------- one verdict


def verdict(exercise: Exercise) -> bool:
    """Check the reader's file on real ranks, print what was seen -> is it done?"""
    name = f"{exercise.number} {exercise.file.stem[3:]}"
    with console.status(f"{name}: starting ranks"):
        wrong, figures = judged(exercise, exercise.file)
    if wrong is None:
        console.print(f"[green]done[/]      {name}")
        remember(exercise, done=True)
    else:
        console.print(f"[red]not yet[/]   {name}")
        console.print(Padding(escape(wrong), (0, 0, 0, 10)))
    if figures:
        console.print(Padding(escape(figures), (1, 0, 0, 10)))
    return wrong is None


def judged(exercise: Exercise, file: Path) -> tuple[str | None, str]:
    """-> what still differs, or None; and the figures that the ranks have reached, if any."""
    figures = ""
    try:
        compile(file.read_text(), str(file), "exec")
    except SyntaxError as error:
        return f"Python cannot read line {error.lineno}: {error.msg}", figures
    except (OSError, ValueError) as error:  # gone, not UTF-8, or a null byte
        return f"Python cannot read {file.name}: {error}", figures
    check = ranks.load(exercise.check)
    sizes = getattr(check, "WORLD_SIZES", (2, 3))
    for world_size in sizes:
        seen = ranks.run(file, exercise.check, world_size)
        wrong = ranks.failure(seen)
        if wrong is None:
            wrong = of_cases(check, [rank.values for rank in seen])
            figures = check.figures(*seen[0].values) if hasattr(check, "figures") else ""
        if wrong:
            return wrong if world_size == sizes[0] else f"On {world_size} ranks: {wrong}", figures
    return None, figures


def of_cases(check: ModuleType, values: list[list]) -> str | None:
    """The first case that the check finds wrong in what each rank has returned for it."""
    for case, seen in zip(getattr(check, "CASES", [()]), zip(*values)):
        if wrong := check.judge(seen, *case):
            return getattr(check, "CASE", "").format(*case) + wrong
    return None


def print_learnt(exercise: Exercise) -> None:
    """After "done": what to keep of it, two right ways to compare with one's own, the next one."""
    console.print(f"\n{escape(ranks.load(exercise.check).HINTS[1])}", style="bold")
    console.print("\nOur way:")
    print_diff(exercise.diff.read_text())
    others = HERE.parent / f"tests/exercises/{exercise.number}.py"
    if others.exists():
        name, edits = next(iter(ranks.load(others).RIGHT.items()))
        console.print(f"Another way, as it differs from ours: {escape(name)}")
        for old, new in edits:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=9, lineterm="")
            print_diff("\n".join([*lines][3:]))  # without its heading
    following = next_open()
    if following:
        name = following.file.relative_to(HERE.parent)
        console.print(f"\nNext: {name}: {escape(following.title)}")


def print_diff(text: str) -> None:
    if text:
        console.print(Syntax(text, "diff", background_color="default", word_wrap=True))


# ---------------------------------------------------------------- what the flags do


def print_list() -> int:
    state, exercises, count = progress(), all_exercises(), 0
    for kind, heading in KINDS.items():
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in range(4):
            table.add_column(no_wrap=column < 3)
        for exercise in [e for e in exercises if e.kind == kind]:
            done = state.get(exercise.number, {}).get("done")
            count += bool(done)
            mark = "[green]done[/]" if done else "    "
            name = f"[cyan]{exercise.file.stem[3:]}[/]"
            table.add_row(exercise.number, mark, name, escape(exercise.title))
        console.print(f"{heading} (exercises/{kind}/)", style="bold")
        console.print(table)
    console.print(f"\n{count} of {len(exercises)} done; the next one: python exercises/check.py")
    return 0


def print_hint(exercise: Exercise) -> int:
    hints = ranks.load(exercise.check).HINTS
    given = min(progress().get(exercise.number, {}).get("hints", 0) + 1, len(hints))
    remember(exercise, hints=given)
    for number, hint in enumerate(hints[:given], start=1):
        console.print(f"hint {number} of {len(hints)}: {escape(hint)}")
    return 0


def print_solution(exercise: Exercise) -> int:
    """What ours changes; a closed stdin is no "y"."""
    with contextlib.suppress(EOFError, RuntimeError):
        if input("Show our solution? Hints are left with --hint. [y/N] ").strip().lower() == "y":
            print_diff(exercise.diff.read_text())
    return 0


def reset(exercise: Exercise) -> int:
    """Take the file back from git; the reader's own stays beside it."""
    kept = exercise.file.with_suffix(".py.yours")
    if exercise.file.exists():
        kept.write_bytes(exercise.file.read_bytes())
    command = ["git", "-C", str(HERE), "checkout", "--quiet", "--", str(exercise.file)]
    if subprocess.run(command).returncode:
        console.print("git cannot restore it: is this a clone? Otherwise download the file again.")
        return 1
    console.print(f"{exercise.file.name} is as it was; yours is {kept.name}")
    return 0


def keep_watching(exercise: Exercise) -> int:
    """Check on every save; when one is done, go on with the next one that is not."""
    from watchfiles import watch

    flags = {"h": lambda: print_hint(exercise), "l": print_list, "r": lambda: reset(exercise)}
    changed = True
    with key_pressed() as key:
        for changes in watch(HERE, rust_timeout=200, yield_on_timeout=True):
            if flag := flags.get(key()):
                flag()
            changed = changed or any(Path(path) == exercise.file for _, path in changes)
            if not changed or not exercise.file.exists():
                continue
            changed = False
            console.rule(style="dim")
            if verdict(exercise):
                print_learnt(exercise)
                exercise, changed = next_open(), True
                if exercise is None:
                    return print_list()
            else:
                name = exercise.file.relative_to(HERE.parent)
                console.print(f"watching {name}: h hint, l list, r reset, Ctrl-C ends", style="dim")
    return 1


@contextlib.contextmanager
def key_pressed():
    """A function: the key that was pressed, or "" (always, if stdin is no terminal of Unix)."""
    if sys.platform == "win32" or not sys.stdin or not sys.stdin.isatty():
        yield lambda: ""
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield lambda: os.read(0, 1).decode() if select.select([0], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def progress() -> dict:
    """{number: {"done": True, "hints": how many were shown}}"""
    try:
        return json.loads(PROGRESS.read_text())
    except (OSError, ValueError):
        return {}


def remember(exercise: Exercise, **values) -> None:
    state = progress()
    state[exercise.number] = state.get(exercise.number, {}) | values
    part = PROGRESS.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1))
    part.replace(PROGRESS)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exercise", nargs="?", help="number, name or path; otherwise the next one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list all, with what is done")
    what.add_argument("--all", action="store_true", help="check all")
    what.add_argument("--watch", action="store_true", help="check again on every save")
    what.add_argument("--hint", action="store_true", help="the next of three hints")
    what.add_argument("--solution", action="store_true", help="what ours changes, after a question")
    what.add_argument("--reset", action="store_true", help="the file as it was")
    args = parser.parse_args()
    if args.exercise and (args.all or args.list):
        parser.error("--all and --list are about all of them: leave the number out")
    if args.exercise:
        stem = Path(args.exercise).name.removesuffix(".py")
        names = {
            name: e for e in all_exercises() for name in (e.number, e.file.stem, e.file.stem[3:])
        }
        name = stem.zfill(2) if stem.isdecimal() else stem
        if name not in names:
            parser.error(f"there is no exercise {args.exercise}: --list shows them")
        args.exercise = names[name]
    elif args.reset:
        parser.error("which one? Give its number: python exercises/check.py 07 --reset")
    return args


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

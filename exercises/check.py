"""The exercises: list them, check one on real ranks, get a hint.

python exercises/check.py            # list all, with what is done
python exercises/check.py 07         # check one
python exercises/check.py 07 --watch # and again whenever the file is saved
python exercises/check.py 07 --hint  # the next of three hints
python exercises/check.py --all      # check all
"""

import argparse
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Exercise:
    number: str
    kind: str  # mend or write
    file: Path

    @property
    def check(self) -> Path:
        return HERE / "checks" / self.file.name

    @property
    def diff(self) -> Path:
        """What our solution changes in the file as it is given."""
        return HERE / "solutions" / f"{self.file.stem}.diff"

    @property
    def solution(self) -> str:
        """Of a file that is as it was given."""
        return applied(self.file.read_text(), self.diff.read_text())

    @property
    def title(self) -> str:
        """The first line of the file, which the reader may have broken or deleted."""
        lines = self.file.read_text(errors="replace").splitlines() if self.file.exists() else []
        return lines[0].strip('"') if lines else "no file: --reset brings it back"


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks are ended on the way out
    exercises = [e for e in all_exercises() if args.number in (None, e.number)]
    if args.all:
        return 0 if all([verdict(exercise) for exercise in exercises]) else 1
    if args.number is None:
        return print_list(exercises)
    (exercise,) = exercises
    if args.hint:
        return print_hint(exercise)
    if args.solution:
        return print_solution(exercise)
    if args.reset:
        return reset(exercise)
    if args.watch:
        return keep_watching(exercise)
    return 0 if verdict(exercise) else 1


def all_exercises() -> list[Exercise]:
    """One for each of our solutions, which begins with the path of the file: "--- a/..." """
    starts = [diff.read_text().split("\n")[0] for diff in sorted(HERE.glob("solutions/*.diff"))]
    files = [HERE.parent / start.removeprefix("--- a/") for start in starts]
    return [Exercise(file.name[:2], file.parent.name, file) for file in files]


def applied(text: str, diff: str) -> str:
    """The text after a unified diff, which has to be a diff of this very text."""
    lines, result, at = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:  # after the two names
        mark, rest = line[0], line[1:]
        if mark == "@":  # @@ -22,2 +22,3 @@
            start = int(line[4:].split(",")[0]) - 1
            result += lines[at:start]
            at = start
        elif mark == "+":
            result.append(rest)
        elif mark not in " -" or lines[at : at + 1] != [rest]:
            raise ValueError(f"line {at + 1} of the file is not that of the diff: {line!r}")
        else:
            result += [rest] * (mark == " ")
            at += 1
    return "".join(result + lines[at:])


# ---------------------------------------------------------------- one verdict


def verdict(exercise: Exercise) -> bool:
    """Check the reader's file on real ranks, print what was seen -> is it done?"""
    name = f"{exercise.number} {exercise.file.stem[3:]}"
    with console.status(f"{name}: starting ranks"):
        wrong = judge(exercise, exercise.file)
    if wrong is None:
        console.print(f"[green]done[/]      {name}")
        remember(exercise, done=fingerprint(exercise.file))
    else:
        console.print(f"[red]not yet[/]   {name}")
        console.print(Padding(escape(wrong), (0, 0, 0, 10)))
    return wrong is None


def judge(exercise: Exercise, file: Path) -> str | None:
    """-> None if the exercise is done, otherwise what still differs, in words."""
    try:
        compile(file.read_text(), str(file), "exec")
    except SyntaxError as error:
        return f"Python cannot read line {error.lineno}: {error.msg}"
    except (OSError, ValueError) as error:  # gone, not UTF-8, or a null byte
        return f"Python cannot read {file.name}: {error}"
    check = ranks.load(exercise.check)
    for world_size in check.WORLD_SIZES:
        seen = ranks.run(file, exercise.check, world_size)
        wrong = failure(seen) or check.judge([rank.values for rank in seen])
        if wrong:
            return (
                wrong if world_size == check.WORLD_SIZES[0] else f"On {world_size} ranks: {wrong}"
            )
    return None


STUB = "NotImplementedError: "  # raised by the functions that a reader is to write


def failure(seen: list[ranks.Rank]) -> str | None:
    """What went wrong if not all ranks came to their end: the cause, not a rank that waited."""
    ends = ["died", "prints", "computes", "raised"]  # the cause first: others may fail by it
    for rank in sorted(seen, key=lambda rank: [*ends, rank.end].index(rank.end)):
        place = f" in {rank.place}" if rank.place else ""
        if rank.end == "died":
            return f"the process of rank {rank.number} ended by itself{tail(rank)}"
        if rank.end == "prints":
            return f"rank {rank.number} printed more than {ranks.FLOOD:,} bytes: an endless loop?"
        if rank.end == "computes":
            spent = f"{ranks.BUSY:.0f} s of processor time"
            return f"rank {rank.number} was still computing after {spent} (an endless loop?){place}"
        if rank.message.startswith(STUB):
            return rank.message.removeprefix(STUB)
        if rank.end == "raised":
            return f"rank {rank.number} failed{place}\n{rank.message}{tail(rank)}"
    if all(rank.end == "finished" for rank in seen):
        return None
    lines = ["it hangs:"]
    for rank in seen:
        place = f"waits in {rank.place or 'code outside your file'}"
        lines.append(f"rank {rank.number} {'has finished' if rank.end == 'finished' else place}")
    return "\n".join(lines)


def tail(rank: ranks.Rank) -> str:
    """The last lines that a rank has printed."""
    lines = rank.output.strip().splitlines()[-3:]
    return "".join(f"\n  it printed: {line}" for line in lines)


# ---------------------------------------------------------------- what the flags do


def print_list(exercises: list[Exercise]) -> int:
    state = progress()
    count = 0
    for kind, heading in (("mend", "Mend it: one mistake each"), ("write", "Write it")):
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in range(4):
            table.add_column(no_wrap=column < 3)
        for exercise in [e for e in exercises if e.kind == kind]:
            done = state.get(exercise.number, {}).get("done")
            count += bool(done)
            changed = done and done != fingerprint(exercise.file)
            mark = "[yellow]changed[/]" if changed else "[green]done[/]" if done else "    "
            name = f"[cyan]{exercise.file.stem[3:]}[/]"
            table.add_row(exercise.number, mark, name, escape(exercise.title))
        console.print(f"{heading} (exercises/{kind}/)", style="bold")
        console.print(table)
    console.print(f"\n{count} of {len(exercises)} done. Check one: python exercises/check.py 01")
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
            text = exercise.diff.read_text()
            console.print(Syntax(text, "diff", background_color="default", word_wrap=True))
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
    from watchfiles import watch

    console.print(f"watching {exercise.file.relative_to(HERE.parent)}; Ctrl-C ends it")
    done = verdict(exercise)
    for changes in watch(exercise.file.parent):
        if any(Path(path).name == exercise.file.name for _, path in changes):
            console.rule(style="dim")
            done = verdict(exercise)
    return 0 if done else 1


# ---------------------------------------------------------------- progress


def progress() -> dict:
    """{number: {"done": fingerprint of the file that passed, "hints": how many were shown}}"""
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


def fingerprint(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", nargs="?", help="of the exercise: 07")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="check all")
    what.add_argument("--watch", action="store_true", help="check again on every save")
    what.add_argument("--hint", action="store_true", help="the next of three hints")
    what.add_argument("--solution", action="store_true", help="what ours changes, after a question")
    what.add_argument("--reset", action="store_true", help="the file as it was")
    args = parser.parse_args()
    if args.number and args.number.isdecimal():
        args.number = args.number.zfill(2)
    if args.number and args.number not in [e.number for e in all_exercises()]:
        parser.error(f"there is no exercise {args.number}: python exercises/check.py lists them")
    if args.number is None and (args.watch or args.hint or args.solution or args.reset):
        parser.error("which one? Give its number: python exercises/check.py 07 --hint")
    if args.number and args.all:
        parser.error("--all checks all of them: leave the number out")
    return args


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

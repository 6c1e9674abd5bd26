"""%%check 07 in a notebook: runs the checker on the function that the cell has.

A cell holds only what the reader changes. It is put into the file of the exercise in place of the
functions and classes that it defines. A helper process runs the ranks, because the process of a
notebook is no place to start them from; it is kept, so that PyTorch is imported once.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402 (the path must be set before)

from exercises import check  # noqa: E402
from exercises.exercise import find  # noqa: E402

WIDTH = 100
helper = None


def load_ipython_extension(ipython):
    """%load_ext exercises.magic calls this."""
    ipython.register_magic_function(check_cell, "cell", "check")
    ipython.register_magic_function(print_hint, "line", "hint")


def check_cell(line, cell):
    """%%check NUMBER"""
    exercise = find(line)
    if exercise is None:
        print(f"there is no exercise {line!r}: write a number from 01 to 26")
        return
    try:
        text, offset = put_in(exercise.given, cell)
    except SyntaxError as error:
        print(f"Python cannot read line {error.lineno or 1} of the cell: {error.msg}")
        return
    except ValueError as error:
        print(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, exercise.file.name)
        file.write_text(text)
        answer = ask(exercise, file)
    print(in_lines_of_the_cell(answer, offset, len(cell.rstrip().splitlines())))


def print_hint(line):
    """%hint NUMBER: the next of three hints"""
    exercise = find(line)
    if exercise:
        check.print_hint(exercise)


# ---------------------------------------------------------------- the cell in its file


def put_in(given: str, cell: str) -> tuple[str, int]:
    """The file with the cell in place of what it defines, and how many lines are above the cell."""
    names = {node.name for node in definitions(cell)}
    lines = given.splitlines()
    first = None
    for node in definitions(given):
        if node.name in names:
            start = first_line(node) - 1
            if first is None:
                first = start
            for number in range(start, node.end_lineno):
                lines[number] = ""  # blank, so that the lines below keep their numbers
    if first is None:
        there = ", ".join(f"`{node.name}`" for node in definitions(given))
        raise ValueError(f"the cell defines none of the functions of this exercise: {there}")
    text = "\n".join([*lines[:first], cell.rstrip(), *lines[first:]])
    return f"{text}\n", first


def definitions(text: str) -> list:
    """The functions and classes at the top level, as nodes"""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node for node in ast.parse(text).body if isinstance(node, kinds)]


def first_line(node) -> int:
    """With its decorators"""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def in_lines_of_the_cell(text: str, offset: int, count: int) -> str:
    """The line numbers of a verdict, counted in the cell, where %%check is line 1, or the file."""

    def replaced(match):
        number = int(match[1])
        if number <= offset:
            return f"line {number} of the file:"
        if number <= offset + count:
            return f"line {number - offset + 1} of the cell:"
        return f"line {number - count} of the file:"

    return re.sub(r"\bline (\d+):", replaced, text)


# ---------------------------------------------------------------- the helper process


def ask(exercise, file: Path) -> str:
    """Let the helper check the file -> what check.py prints"""
    global helper
    if helper is None or helper.poll() is not None:
        helper = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt is for the notebook, which ends the helper
        )
    try:
        helper.stdin.write(json.dumps([exercise.number, str(file)]) + "\n")
        helper.stdin.flush()
        answer = helper.stdout.readline()
    except (KeyboardInterrupt, OSError):
        helper.terminate()  # it ends its ranks on the way out
        helper.wait()
        return "stopped"
    return json.loads(answer) if answer else "the checker has ended: run the cell again"


def help_notebook() -> None:
    """The helper: one request in a line of stdin, one answer in a line of stdout."""
    from exercises import verdict  # here, because the notebook has no need of PyTorch

    check.let_signals_end_it()
    for line in sys.stdin:
        number, file = json.loads(line)
        out = io.StringIO()
        check.console = Console(file=out, width=WIDTH, highlight=False, color_system=None)
        exercise = find(number)
        if check.print_verdict(exercise, *verdict.judged(exercise, Path(file))):
            check.print_learnt(exercise)
        text = re.sub(r" +\n", "\n", out.getvalue())
        print(json.dumps(text.rstrip()), flush=True)


if __name__ == "__main__":
    help_notebook()

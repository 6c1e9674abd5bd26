"""notebooks/exercises.ipynb: its source is that of the exercises, and %%check is check.py."""

import os

import pytest

from exercises import exercise, magic
from tools import exercise_notebook

EXERCISES = {one.number: one for one in exercise.all_exercises()}


def test_the_source_is_made_of_the_exercises():
    assert exercise_notebook.SOURCE.read_text() == exercise_notebook.text()


@pytest.mark.parametrize("number", EXERCISES)
def test_a_cell_as_it_is_given_makes_the_given_program(number):
    one = EXERCISES[number]
    text, _ = magic.put_in(one.given, exercise_notebook.definition(one))
    rest = [line for line in text.splitlines() if line]
    assert sorted(rest) == sorted(line for line in one.given.splitlines() if line)
    compile(text, "cell", "exec")


GIVEN = '''"""Text."""

import math


def helper():
    return 1


@decorated
def task(x):
    return x


print(task(1))
'''


def test_lines_of_the_cell_and_of_the_file():
    cell = "from math import inf\n\ndef task(x):\n    y = x\n    return y\n"
    text, offset = magic.put_in(GIVEN, cell)
    lines = text.splitlines()
    assert offset == 9 and "@decorated" not in text and "return x" not in text
    for number, line in enumerate(cell.splitlines(), start=1):
        assert lines[offset + number - 1] == line
    shown = magic.in_lines_of_the_cell("in line 7: a\nin line 14: b\nin line 20: c", offset, 5)
    assert shown == "in line 7 of the file: a\nin line 6 of the cell: b\nin line 15 of the file: c"
    assert lines[20 - 1] == "print(task(1))" == GIVEN.splitlines()[15 - 1]


@pytest.mark.parametrize(
    ("line", "cell", "words"),
    [
        ("99", "pass\n", "there is no exercise '99'"),
        ("1", "def train(:\n", "Python cannot read line 1 of the cell"),
        (
            "1",
            "def other():\n    pass\n",
            "defines none of the functions of this exercise: `train`",
        ),
    ],
)
def test_cells_that_cannot_be_checked(capsys, line, cell, words):
    magic.check_cell(line, cell)
    assert words in capsys.readouterr().out


def test_hints(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(exercise, "PROGRESS", tmp_path / "progress.json")
    magic.print_hint("7")
    assert "hint 1 of 3" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_right_and_wrong_answers_get_the_verdict_of_the_command_line(capsys):
    """Both check a whole text, so the definitions of the whole text are the cell."""
    progress = exercise.PROGRESS.read_bytes() if exercise.PROGRESS.exists() else None
    try:
        for number in ("01", "07", "11", "24"):
            one = EXERCISES[number]
            for answer in (one.answers("other.py")[-1], one.answers("wrong.py")[1]):
                cell = one.text_of(answer).split('"""\n', 1)[1]
                magic.check_cell(number, cell)
                said = " ".join(capsys.readouterr().out.split())
                assert said.startswith("not yet" if answer.verdict else "done"), said
                assert (answer.verdict or one.hints[1]) in said
    finally:
        if magic.helper:
            magic.helper.terminate()
            magic.helper.wait(60)
        if progress is not None:
            exercise.PROGRESS.write_bytes(progress)
        elif exercise.PROGRESS.exists():
            os.unlink(exercise.PROGRESS)

"""Each exercise: the given file fails, our two ways pass, two wrong ones fail.

exercise_ways.py holds the words of the verdict on the given file, and the edits of our solution.
"""

import re
import subprocess

import pytest
from conftest import ROOT
from exercise_ways import GIVEN, RIGHT, WRONG

from exercises import check

EXERCISES = check.all_exercises()
QUICK = {"01", "04", "08", "10", "11", "12", "14", "22", "24"}  # the others are slow tests
pytestmark = pytest.mark.timeout(300)


def ways():
    """[(exercise, "given", "other" or edits of our solution, words of the verdict, or None)]"""
    found = []
    for exercise in EXERCISES:
        wrong = [("as-it-is-given", "given", GIVEN[exercise.number])]
        wrong += [(f"not-{name}", *way) for name, way in WRONG[exercise.number].items()]
        right = {"ours": {}, "other": "other"} | RIGHT.get(exercise.number, {})
        right = [(name, way, None) for name, way in right.items()]
        quick = [*wrong[:2], right[-1]] if exercise.number in QUICK else []
        for way in wrong + right:
            marks = [] if way in quick else [pytest.mark.slow]
            name = f"{exercise.number}-{way[0]}"
            found.append(pytest.param(exercise, *way[1:], id=name, marks=marks))
    return found


def text_of(exercise, way, folder):
    """The exercise's file in one of the ways."""
    if way == "given":
        return exercise.given
    text = exercise.solution
    if way == "other":
        return patched(exercise, text, exercise.diff.with_suffix(".other.diff"), folder)
    for old, new in way.items():
        assert text.count(old) == 1, f"not once in the solution: {old}"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(("exercise", "way", "words"), ways())
def test_each_way_has_its_verdict(exercise, way, words, tmp_path):
    file = tmp_path / exercise.file.name
    file.write_text(text_of(exercise, way, tmp_path))
    verdict = check.judged(exercise, file)[0]
    assert verdict is None if words is None else verdict and words in verdict, verdict


def patched(exercise, text, diff, folder):
    """The text of the exercise's file after `git apply` of a diff."""
    file = folder / exercise.file.relative_to(ROOT)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    subprocess.run(["git", "apply", diff], cwd=folder, check=True)
    return file.read_text()


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_an_exercise_is_whole(exercise, tmp_path):
    """Its diff holds the given file and our solution, as git reads it, too."""
    assert exercise.given == exercise.file.read_text()
    ours = patched(exercise, exercise.given, exercise.diff, tmp_path)
    assert exercise.solution == ours != exercise.given
    docstring = exercise.given.split('"""')[1]
    assert docstring == exercise.solution.split('"""')[1]
    assert f"check.py {exercise.number}" in docstring
    assert len(exercise.hints) == 3 and len(exercise.given.splitlines()) <= 80


@pytest.mark.slow
def test_play_draws_the_step(reader):
    """The picture of the file as it is given: the rank waits for each of three calls."""
    command = "torchrun --standalone --nproc-per-node 2"
    out = reader.run(f"{command} '{ROOT}/exercises/play.py' 24").out
    yours, ddp = out.split("DDP, with buckets for two layers")
    assert "the last step of rank 0, 10.4 ms" in yours and "after 6.0 ms" in yours
    bars = re.findall(r"^allreduce 4,352 +#{6}$", yours, re.MULTILINE)
    waits = re.search(r"^the step waits +(.*)$", yours, re.MULTILINE)[1]
    assert len(bars) == 3 and len(waits.split()) == 3
    assert "the last step of rank 0, 7.9 ms" in ddp and re.search(r"^yours +3 +13,056", ddp, re.M)


def test_the_page_lists_all_in_order():
    text = (ROOT / "exercises/README.md").read_text()
    row = re.compile(r"^\| \[(\d\d) `(\w+)`\]\((\w+)/task\.py\) \| (.+?) \|", re.MULTILINE)
    wanted = [(e.number, e.name, e.folder_name, e.title) for e in EXERCISES]
    assert row.findall(text) == wanted
    assert [e.number for e in EXERCISES] == [f"{n:02}" for n in range(1, len(EXERCISES) + 1)]

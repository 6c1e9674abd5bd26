"""Each exercise: the given file fails, ours passes, another right way passes, two wrong ones fail.

tests/exercises/NN.py holds the other ways: RIGHT and WRONG, edits of our solution.
"""

import re

import pytest
from conftest import ROOT, solution_of

from exercises import check
from exercises.checks import ranks

EXERCISES = check.all_exercises()
QUICK = {"01", "07", "10", "15", "22", "25", "27", "31", "36"}  # the others are slow tests
pytestmark = pytest.mark.timeout(300)


def ways():
    """[(exercise, edits of our solution or None, words of the verdict or None if it is right)]"""
    found = []
    for exercise in EXERCISES:
        other = ranks.load(ROOT / f"tests/exercises/{exercise.number}.py")
        wrong = [("as-it-is-given", None, other.GIVEN)]
        wrong += [(f"not-{name}", *way) for name, way in other.WRONG.items()]
        right = [(name, edits, None) for name, edits in {"ours": [], **other.RIGHT}.items()]
        quick = [*wrong[:2], right[-1]] if exercise.number in QUICK else []
        for way in wrong + right:
            marks = [] if way in quick else [pytest.mark.slow]
            name = f"{exercise.number}-{way[0]}"
            found.append(pytest.param(exercise, *way[1:], id=name, marks=marks))
    return found


@pytest.mark.parametrize(("exercise", "edits", "words"), ways())
def test_each_way_has_its_verdict(exercise, edits, words, tmp_path):
    text = exercise.file.read_text() if edits is None else solution_of(exercise)
    for old, new in edits or []:
        assert text.count(old) == 1, f"not once in the solution: {old}"
        text = text.replace(old, new)
    file = tmp_path / exercise.file.name
    file.write_text(text)
    verdict = check.judged(exercise, file)[0]
    assert verdict is None if words is None else verdict and words in verdict, verdict


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_an_exercise_is_whole(exercise):
    other = ranks.load(ROOT / f"tests/exercises/{exercise.number}.py")
    assert len(other.RIGHT) >= 1 and len(other.WRONG) >= 2
    assert len(ranks.load(exercise.check).HINTS) == 3
    given, solution = exercise.file.read_text(), solution_of(exercise)
    assert given.split('"""')[1] == solution.split('"""')[1], "one docstring"
    assert f"check.py {exercise.number}" in given.split('"""')[1]
    assert given != solution and len(given.splitlines()) <= 80
    for old, _ in next(iter(other.RIGHT.values())):  # check.py shows it: whole lines
        assert old.endswith("\n") and f"\n{old}" in f"\n{solution}"


def test_the_page_lists_all_in_order():
    text = (ROOT / "exercises/README.md").read_text()
    row = re.compile(
        r"^\| (\d\d) \| \[`(\w+)`\]\((\w+)/(\w+)\.py\) \| (.+) \| .+ \|$", re.MULTILINE
    )
    wanted = [(e.number, e.file.stem[3:], e.kind, e.file.stem, e.title) for e in EXERCISES]
    assert row.findall(text) == wanted and len(wanted) <= 32
    assert len({e.number for e in EXERCISES}) == len(wanted)


@pytest.mark.slow
def test_ranks_that_both_send_first_are_ended_by_the_timeout(reader):
    """What 18 says of its symptom."""
    file = ROOT / "exercises/mend/18_both_send_first.py"
    result = reader.run(f"torchrun --standalone --nproc-per-node 2 {file}")
    assert result.code == 1 and "rank 0 begins" in result.out and "rank 1 begins" in result.out
    assert "the mean is" not in result.out and "Timed out waiting 5000ms for send" in result.err

"""Each exercise: the given file is refused, right answers are accepted, wrong ones are refused.

The answers stand in the folder of the exercise: solution.py, other.py and wrong.py.
"""

import re

import pytest
from conftest import ROOT

from exercises import verdict
from exercises.exercise import Answer, all_exercises

EXERCISES = all_exercises()
QUICK = {"01", "04", "08", "10", "11", "12", "14", "22", "24"}  # the others are slow tests
OURS = Answer("ours", None, "pass")
PROGRAMS = [exercise for exercise in EXERCISES if "__main__" in exercise.solution]
pytestmark = pytest.mark.timeout(300)


def answers():
    """Each answer with its exercise. Three answers to some of the exercises are quick tests."""
    found = []
    for exercise in EXERCISES:
        right = [OURS, *exercise.answers("other.py")]
        wrong = exercise.answers("wrong.py")
        quick = [*wrong[:2], right[-1]] if exercise.number in QUICK else []
        for answer in right + wrong:
            marks = [] if answer in quick else [pytest.mark.slow]
            name = f"{exercise.number}-{answer.title}"
            found.append(pytest.param(exercise, answer, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("exercise", "answer"), answers())
def test_each_answer_has_its_verdict(exercise, answer, tmp_path):
    file = tmp_path / "task.py"
    file.write_text(exercise.text_of(answer))
    said, _ = verdict.judged(exercise, file)
    if answer.verdict is None:
        assert said is None, said
    else:
        assert said and answer.verdict in " ".join(said.split()), said


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_an_exercise_is_whole(exercise):
    assert exercise.given == exercise.file.read_text()
    assert f"check.py {exercise.number}" in exercise.given.split('"""')[1]
    assert len(exercise.hints) == 3
    assert len(exercise.given.splitlines()) <= 80
    given, *wrong = exercise.answers("wrong.py")
    assert not given.code
    assert len(wrong) >= 2
    assert all(answer.code and answer.verdict for answer in wrong)
    others = exercise.answers("other.py")
    assert others and all(answer.code and not answer.verdict for answer in others)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", PROGRAMS, ids=lambda exercise: exercise.number)
def test_our_solution_is_a_program_that_runs(exercise, reader):
    file = exercise.folder / "solution.py"
    result = reader.run(f"torchrun --standalone --nproc-per-node 2 '{file}'")
    assert result.code == 0 and "rank 1" in result.out, result


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
    wanted = [(e.number, e.name, e.folder.name, e.title) for e in EXERCISES]
    assert row.findall(text) == wanted
    assert [e.number for e in EXERCISES] == [f"{n:02}" for n in range(1, len(EXERCISES) + 1)]


def test_what_one_practises_names_each_exercise_once():
    text = (ROOT / "exercises/README.md").read_text()
    table = text.split("| read first |")[1].split("\n\n")[0]
    numbers = re.findall(r"\b\d\d\b", " ".join(row.split("|")[-2] for row in table.splitlines()))
    assert sorted(numbers) == [exercise.number for exercise in EXERCISES]


@pytest.mark.parametrize(
    ("number", "page", "shows", "is_in"),
    [
        ("15", "doctor/README.md", (29, "optimizer.step()"), (25, "no_sync()")),
    ],
)
def test_a_page_names_the_line_where_a_mistake_shows_and_where_it_is(number, page, shows, is_in):
    lines = EXERCISES[int(number) - 1].given.splitlines()
    text = (ROOT / page).read_text().lower()
    for line, words in (shows, is_in):
        assert words in lines[line - 1]
        assert f"line {line}" in text

"""Points for a reader, and the table of a class: check.py --all and --class, points.py."""

import json
import sys

import pytest

from exercises import check, exercise, points, verdict

EXERCISES = {one.number: one for one in exercise.all_exercises()}
ONLY = "01,04,25"


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """-> a function: arguments -> exit code, what is printed. Progress is kept in a folder."""
    monkeypatch.setattr(exercise, "PROGRESS", tmp_path / "progress.json")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["check.py", *map(str, words)])
        code = check.main()
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def hand_in(tmp_path):
    """-> a function: the name of a student, {number: text of the file}"""
    folder = tmp_path / "class"
    folder.mkdir()

    def write(name, answers):
        (folder / name).mkdir()
        for number, text in answers.items():
            file = folder / name / "homework" / EXERCISES[number].folder.name / "task.py"
            if name == "cem":  # has renamed the files
                file = file.parent.with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder

    return write


def without_ranks(monkeypatch):
    """Judge by the text, without ranks."""

    def judged(exercise, file):
        text = file.read_text()
        if text == exercise.solution or text.endswith("# another way\n"):
            return None, ""
        return "On 3 ranks: different from our solution: what step 17 adds\n  rank 0: 1.5", ""

    monkeypatch.setattr(verdict, "judged", judged)


def test_ten_students_in_one_table(typed, hand_in, monkeypatch, tmp_path):
    without_ranks(monkeypatch)
    right = {number: EXERCISES[number].solution for number in ONLY.split(",")}
    other = {number: f"{text}# another way\n" for number, text in right.items()}
    given = {number: EXERCISES[number].given for number in right}
    wrong = dict.fromkeys(right, "pass\n")
    for name in ("ada", "bea", "cem"):
        folder = hand_in(name, right)
    hand_in("dan", other | {"25": f"x = 1\n{right['25']}# another way\n"})
    hand_in("eva", given)
    hand_in("fay", {})
    for name in ("gus", "han", "ida"):
        hand_in(name, wrong)
    hand_in("jon", {"01": right["01"], "04": "pass\n"})
    out = tmp_path / "class.json"
    code, printed = typed("--class", folder, "--only", ONLY, "--json", out)
    lines = printed.splitlines()
    assert code == 0 and lines[0].split() == ["01", "04", "25", "points"]
    assert [line.split() for line in lines[1:12]] == [
        ["ada", "+", "+", "=", "5", "of", "5"],
        ["bea", "+", "+", "=", "5", "of", "5"],
        ["cem", "+", "+", "=", "5", "of", "5"],
        ["dan", "+", "+", "+", "5", "of", "5"],
        ["eva", ".", ".", ".", "0", "of", "5"],
        ["fay", "0", "of", "5"],
        ["gus", "-", "-", "-", "0", "of", "5"],
        ["han", "-", "-", "-", "0", "of", "5"],
        ["ida", "-", "-", "-", "0", "of", "5"],
        ["jon", "+", "-", "1", "of", "5"],
        ["solved", "by", "5", "4", "4"],
    ]
    assert "  4  04 through_the_module: what step N adds" in printed
    assert "  3  01 same_order: what step N adds" in printed
    said = json.loads(out.read_text())
    assert said["jon"]["points"] == 1 and said["jon"]["of"] == 5
    assert said["fay"]["exercises"][0]["kind"] == "no file"
    assert said["gus"]["exercises"][1]["reason"].startswith("On 3 ranks: different from")


def test_points_of_all_with_their_reasons(typed, monkeypatch, tmp_path):
    monkeypatch.setattr(verdict, "judged", lambda exercise, file: ("it hangs:\nrank 0 waits", ""))
    out = tmp_path / "points.json"
    code, printed = typed("--all", "--json", out)
    said = json.loads(out.read_text())
    assert code == 1 and said["points"] == 0 and f"0 of {said['of']} points" in printed
    assert {one["kind"] for one in said["exercises"]} == {points.NOT_BEGUN}
    monkeypatch.setattr(verdict, "judged", lambda exercise, file: (None, ""))
    code, printed = typed("--all", "--only", "1,24", "--json", out)
    said = json.loads(out.read_text())
    assert code == 0 and (said["points"], said["of"]) == (4, 4)
    assert [one["number"] for one in said["exercises"]] == ["01", "24"]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("it hangs:\nrank 0 waits in line 3", "it hangs"),
        ("On 3 ranks: k=2: it hangs:\nrank 0 has finished", "it hangs"),
        (
            "rank 1 failed in line 4: 1 / 0\nZeroDivisionError: division",
            "it fails: ZeroDivisionError",
        ),
        ("Python cannot read line 7: '(' was never closed", "Python cannot read it"),
        (
            "images that a rank tests: 11 on rank 0, 11 on rank 1; 6 with our solution",
            "images that a rank tests",
        ),
        ("rank 0 made 12 calls in a step, where 3", "rank N made N calls in a step, where N"),
    ],
)
def test_a_kind_has_no_numbers(verdict, kind):
    assert points.kind_of(verdict) == kind


def test_the_points_are_the_levels_of_the_page():
    text = (exercise.HERE / "README.md").read_text()
    for one in EXERCISES.values():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| [{one.number} ")]
        assert row.split("|")[3].strip() == str(one.level)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--class", "no such folder"], "there is no folder no such folder"),
        (["--json", "x.json"], "belong to --all or --class"),
        (["--all", "--only", "1,99"], "there is no exercise 99"),
    ],
)
def test_bad_input(typed, capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        typed(*words)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_without_students(typed, tmp_path):
    (tmp_path / "empty").mkdir()
    code, printed = typed("--class", tmp_path / "empty")
    assert code == 1 and "has no folder of a student" in printed


@pytest.mark.slow
def test_a_class_on_real_ranks(typed, hand_in):
    hand_in("right", {"04": EXERCISES["04"].solution})
    wrong = EXERCISES["04"].answers("wrong.py")[1]
    folder = hand_in("wrong", {"04": EXERCISES["04"].text_of(wrong)})
    _, printed = typed("--class", folder, "--only", "04")
    assert [line.split()[:2] for line in printed.splitlines()[1:3]] == [
        ["right", "+"],
        ["wrong", "-"],
    ]
    assert "  1  04 through_the_module: what step N adds to the weights" in printed

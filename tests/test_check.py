"""exercises/check.py: what it prints, and that whatever a file does ends in bounded time.

No verdict may depend on the clock, so the bounds are those of ranks.py, made small here.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

import psutil
import pytest
import torch
import watchfiles
from conftest import ROOT, solution_of

from exercises import check
from exercises.checks import ranks
from tools import processes

EXERCISE = next(e for e in check.all_exercises() if e.number == "04")
SOLUTION = solution_of(EXERCISE)
TRAIN = "def train(model, x, y, lr, epochs):\n"


def verdict(tmp_path, body):
    """Of exercise 04 with this body of `train`."""
    file = tmp_path / EXERCISE.file.name
    file.write_text(SOLUTION.replace(TRAIN, TRAIN + body))
    found = check.judged(EXERCISE, file)[0]
    assert not running(str(file))
    return found


def running(words):
    """Processes with these words in their command line."""
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if words in " ".join(p.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    return [\n", "Python cannot read line 20: '[' was never closed"),
        ("    1 / 0\n", "failed in line 20: 1 / 0\nZeroDivisionError: division by zero"),
        ("    raise SystemExit('no')\n", "failed in line 20: raise SystemExit('no')"),
        ("    import os; os._exit(3)\n", "ended by itself"),
        ("    if dist.get_rank(): dist.barrier()\n", "rank 1 waits in line 20: if dist.get_rank()"),
        ("    return None\n", "train is to return 8 learning rates, not None"),
    ],
)
def test_what_is_said_of_a_file(tmp_path, body, words):
    assert words in verdict(tmp_path, body)


@pytest.mark.slow
def test_an_endless_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "BUSY", 3.0)
    found = verdict(tmp_path, "    while True:\n        pass\n")
    assert "still computing after 3 s of processor time (an endless loop?) in line" in found


def test_ranks_that_look_now_and_then_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "POLLS", 100)
    found = verdict(tmp_path, "    import time\n    while True: time.sleep(0.001)\n")
    assert "it hangs:\nrank 0 waits in line 21: while True: time.sleep(0.001)" in found


def test_a_flood_of_output(tmp_path):
    found = verdict(tmp_path, "    while True:\n        print('x' * 1000)\n")
    assert "printed more than 2,000,000 bytes" in found


def test_a_process_that_the_file_leaves_behind_is_ended(tmp_path):
    start = f"    import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
    assert verdict(tmp_path, start) is None
    assert not running(SLEEP)


SLEEP = "import time; time.sleep(1234.5)"


EVIL = """    class Result(dict):
        def __reduce__(self):
            return exec, ("import pathlib; pathlib.Path(%r).touch()",)

        def __repr__(self):
            return "a text"

    return Result()
"""


def test_nothing_that_a_file_returns_runs_in_the_checker(tmp_path):
    found = verdict(tmp_path, EVIL % str(tmp_path / "was here"))
    assert found == "train is to return 8 learning rates, not {}"
    assert not (tmp_path / "was here").exists()


def test_what_travels_from_a_rank():
    class Pair(NamedTuple):
        one: object
        two: object

    got = ranks.plain(
        {"a": Pair(Counter("xx"), [torch.nn.Parameter(torch.ones(2)), object]), 1: {2}}
    )
    assert type(got["a"]) is tuple and type(got["a"][0]) is dict and got["a"][0] == {"x": 2}
    assert type(got["a"][1][0]) is torch.Tensor and got[1] == {2}
    assert got["a"][1][1] == "<class 'object'>"


@pytest.mark.slow
def test_no_rank_outlives_the_checker():
    """Ended by SIGTERM, or by SIGKILL when it cannot clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        mark = f"check-{os.getpid()}-{number}"
        env = processes.environment(mark)
        started = partial(processes.marked, mark)
        command = [sys.executable, "exercises/check.py", "16"]  # as it is given: it hangs
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while len(started()) < 4 and time.monotonic() < end:  # itself, the server, two ranks
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
        end = time.monotonic() + 60
        while started() and time.monotonic() < end:
            time.sleep(0.05)
        assert not started(), number


# ---------------------------------------------------------------- the command line


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """-> a function: arguments -> exit code, what is printed. Progress is kept in a folder."""
    monkeypatch.setattr(check, "PROGRESS", tmp_path / "progress.json")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["check.py", *words])
        code = check.main()
        return code, capsys.readouterr().out

    return call


def test_the_list_shows_what_is_done(typed, monkeypatch):
    code, out = typed("--list")
    assert code == 0 and f"0 of {len(check.all_exercises())} done" in out
    check.remember(EXERCISE, done=True)
    assert f"1 of {len(check.all_exercises())} done" in typed("--list")[1]


def test_without_a_number_it_is_the_next_one(typed, monkeypatch):
    monkeypatch.setattr(check, "judged", lambda exercise, file: (None, "3 calls"))
    first, second, third, *_ = check.all_exercises()
    check.remember(second, done=True)
    code, out = typed()
    words = " ".join(out.split())
    assert code == 0 and f"done {first.number}" in words and "3 calls" in words
    assert "set_epoch" in words and third.file.stem in words  # our way, and the next one
    for exercise in check.all_exercises():
        check.remember(exercise, done=True)
    assert "32 of 32 done" in typed()[1]


@pytest.mark.parametrize(
    "word", ["4", "reduced_on_one_rank", "exercises/mend/04_reduced_on_one_rank.py"]
)
def test_an_exercise_has_a_number_a_name_and_a_path(typed, word):
    assert "hint 1 of 3" in typed(word, "--hint")[1]


def test_the_keys_of_watch(typed, monkeypatch):
    """h, l and r do what the flags do; after "done" the next one is watched."""
    keys, seen = iter("hlr"), []
    monkeypatch.setattr(check, "key_pressed", lambda: contextlib.nullcontext(lambda: next(keys)))
    monkeypatch.setattr(watchfiles, "watch", lambda *_, **__: iter([set()] * 3))
    monkeypatch.setattr(check, "verdict", lambda exercise: seen.append(exercise.number) or False)
    monkeypatch.setattr(check, "reset", lambda exercise: seen.append("reset"))
    code, out = typed("04", "--watch")
    assert code == 1 and "hint 1 of 3" in out and "0 of 32 done" in out
    assert seen == ["04", "reset"]


def test_hints_come_one_by_one(typed):
    hints = [" ".join(typed("04", "--hint")[1].split()).count("hint ") for _ in range(4)]
    assert hints == [1, 2, 3, 3]


def test_a_solution_is_shown_after_a_question_only(typed, monkeypatch):
    for answer, shown in (("n", False), ("y", True), ("", False)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert ("+        dist.all_reduce(mean)" in typed("04", "--solution")[1]) is shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["99"], "there is no exercise 99"),
        (["--reset"], "which one?"),
        (["01", "--all"], "leave the number out"),
        (["x"], "there is no exercise x"),
    ],
)
def test_bad_input(typed, capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        typed(*words)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_reset_keeps_the_readers_file(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    file = clone / EXERCISE.file.relative_to(ROOT)
    given = file.read_text()
    command = [sys.executable, "exercises/check.py", "04", "--reset"]
    for change in (lambda: file.write_text("mine = 1\n"), file.unlink):
        change()
        result = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        assert file.read_text() == given
        assert file.with_suffix(".py.yours").read_text() == "mine = 1\n"

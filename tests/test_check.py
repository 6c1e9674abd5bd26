"""exercises/check.py: what it prints, and that whatever a file does ends in bounded time.

No verdict may depend on the clock, so the bounds are those of ranks.py, made small here.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import NamedTuple

import psutil
import pytest
import torch
from conftest import ROOT, wait_for

from exercises import check, exercise, ranks, verdict
from exercises.exercise import all_exercises, remember
from lib import processes

EXERCISE = exercise.find("crossed_collectives")
SOLUTION = EXERCISE.solution
TRAIN = "def totals(counts):\n"
LINE = SOLUTION[: SOLUTION.index(TRAIN)].count("\n") + 2  # the first one in it


def said_of(tmp_path, body):
    """Of our solution of this exercise, with this body of `totals`."""
    file = tmp_path / EXERCISE.file.name
    file.write_text(SOLUTION.replace(TRAIN, TRAIN + body))
    found, _ = verdict.judged(EXERCISE, file)
    assert not running(str(file))
    return found


def running(words):
    """Processes with these words in their command line."""
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if words in " ".join(p.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    return [\n", f"Python cannot read line {LINE}: '[' was never closed"),
        ("    '\0'\n", "Python cannot read task.py: source code"),
        ("    1 / 0\n", f"failed in line {LINE}: 1 / 0\nZeroDivisionError: division by zero"),
        ("    raise SystemExit('no')\n", f"failed in line {LINE}: raise SystemExit('no')"),
        ("    if dist.get_rank(): dist.barrier()\n", f"rank 1 waits in line {LINE}: if dist"),
        ("    return None\n", "what totals returns\n  rank 0: None\n"),
        ("    return b''\n", "what totals returns\n  rank 0: b''\n"),
        ("    return torch.ones(2, device='meta')\n", "what your file has returned cannot be"),
        ("    return torch.ones(2, dtype=torch.cfloat)\n", "what totals returns"),
        ("    return torch.ones(2).to_sparse()\n", "failed\nNotImplementedError: Cannot access"),
        ("    return {(1, (2,)): {3: [counts, totals]}}\n", "what totals returns"),
        ("    x = []\n    x.append(x)\n    return x\n", "RecursionError"),
        ("    return\ndel totals\ndef other():\n", "keep the name `totals`"),
    ],
)
def test_what_is_said_of_a_file(tmp_path, body, words):
    assert words in said_of(tmp_path, body)


@pytest.mark.slow
def test_an_endless_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "BUSY", 3.0)
    found = said_of(tmp_path, "    while True:\n        pass\n")
    assert "still computing after 3 s of processor time (an endless loop?) in line" in found


def test_ranks_that_look_now_and_then_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "POLLS", 30)
    found = said_of(tmp_path, "    import time\n    while True: time.sleep(0.001)\n")
    assert f"it hangs:\nrank 0 waits in line {LINE + 1}: while True: time.sleep(0.001)" in found


def test_a_flood_of_output(tmp_path):
    found = said_of(tmp_path, "    while True:\n        print('x' * 1000)\n")
    assert "printed more than 2,000,000 bytes" in found


@pytest.mark.parametrize("ends", ["", "; os._exit(3)"])
def test_processes_that_the_file_leaves_behind_are_ended(tmp_path, ends):
    """A child, and a grandchild in a session of its own whose parent has exited."""
    words = f"[sys.executable, '-c', {SLEEP!r}]"
    start = f"    import os, subprocess, sys; subprocess.Popen({words})\n"
    start += f"    if not os.fork(): os.setsid(); subprocess.Popen({words}); os._exit(0)\n"
    start += f"    os.wait(){ends}\n"
    found = said_of(tmp_path, start)
    assert "ended by itself" in found if ends else found is None
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
    found = said_of(tmp_path, EVIL % str(tmp_path / "was here"))
    assert "rank 0: {}" in found
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
    """Ended by SIGTERM or SIGHUP, or by SIGKILL when it cannot clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        mark = f"check-{os.getpid()}-{number}"
        env = processes.environment(mark)
        started = partial(processes.marked, mark)
        command = [sys.executable, "exercises/check.py", "03"]  # as it is given: it hangs
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        wait_for(lambda started=started: len(started()) >= 4)  # the last is a rank that starts
        process.send_signal(number)
        process.wait(60)
        wait_for(lambda started=started: not started(), 60)


# ---------------------------------------------------------------- the command line


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """-> a function: arguments -> exit code, what is printed. Progress is kept in a folder."""
    monkeypatch.setattr(exercise, "PROGRESS", tmp_path / "progress.json")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["check.py", *words])
        code = check.main()
        return code, "".join(capsys.readouterr())

    return call


def test_the_list_shows_what_is_done(typed, monkeypatch):
    code, out = typed("--list")
    assert code == 0 and f"0 of {len(all_exercises())} done" in out
    remember(EXERCISE, done=True)
    assert f"1 of {len(all_exercises())} done" in typed("--list")[1]


def test_without_a_number_it_is_the_next_one(typed, monkeypatch):
    monkeypatch.setattr(verdict, "judged", lambda exercise, file: (None, "3 calls"))
    first, second, third, *_ = all_exercises()
    remember(second, done=True)
    code, out = typed()
    words = " ".join(out.split())
    assert code == 0 and f"done {first.number}" in words and "3 calls" in words
    assert "set_epoch" in words and third.folder.name in words  # our way, and the next one
    for one in all_exercises():
        remember(one, done=True)
    assert "26 of 26 done" in typed()[1]


@pytest.mark.parametrize(
    "word", ["11", "crossed_collectives", "exercises/11_crossed_collectives/task.py"]
)
def test_an_exercise_has_a_number_a_name_and_a_path(typed, word):
    assert "hint 1 of 3" in typed(word, "--hint")[1]


def test_watch_checks_after_each_save_and_goes_on(typed, monkeypatch, tmp_path):
    """It is over when no exercise is left."""
    exercises = all_exercises()[:2]
    seen = []
    times = iter([0, None, 0, 1, 1, 2])
    monkeypatch.setattr(check, "all_exercises", lambda: exercises)
    monkeypatch.setattr(exercise, "all_exercises", lambda: exercises)
    monkeypatch.setattr(check, "saved", lambda exercise: next(times))

    def judged(exercise, file):
        seen.append(exercise.number)
        return "it hangs" if len(seen) == 1 else None, ""

    monkeypatch.setattr(verdict, "judged", judged)
    code, out = typed("--watch")
    assert code == 0 and seen == ["01", "01", "02"] and "2 of 2 done" in out


def test_hints_come_one_by_one(typed):
    hints = [" ".join(typed("06", "--hint")[1].split()).count("hint ") for _ in range(4)]
    assert hints == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["99"], "there is no exercise 99"),
        (["--reset"], "need the number of an exercise"),
        (["01", "--all"], "leave the number out"),
    ],
)
def test_bad_input(typed, capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        typed(*words)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_reset_keeps_the_readers_file(typed, tmp_path, monkeypatch):
    """The file is that of given.zip: no git is needed, and a commit of the reader's is no harm."""
    one = exercise.Exercise(tmp_path / EXERCISE.folder.name)
    one.folder.mkdir()
    file = one.file
    kept = file.with_suffix(".py.yours")
    monkeypatch.setattr(exercise, "all_exercises", lambda: [one])
    file.write_text("mine = 1\n")
    assert kept.name in typed("11", "--reset")[1]
    assert file.read_text() == EXERCISE.file.read_text()
    assert kept.read_text() == "mine = 1\n"
    file.unlink()
    code, out = typed("11", "--reset")
    assert code == 0 and "yours" not in out and file.read_text() == EXERCISE.file.read_text()


@pytest.mark.parametrize("text", ["[1]", '{"same_order": {"hints": null}}', "{", "[" * 9999])
def test_an_odd_progress_file_is_no_progress(typed, text):
    exercise.PROGRESS.write_text(text)
    assert "0 of 26 done" in typed("--list")[1] and "hint 1 of 3" in typed("--hint")[1]


def test_progress_that_cannot_be_kept_is_one_line(typed, monkeypatch, tmp_path):
    monkeypatch.setattr(exercise, "PROGRESS", tmp_path / "no such folder" / "progress.json")
    code, out = typed("06", "--hint")
    assert code == 0 and "your progress is not kept" in out and "hint 1 of 3" in out


def test_what_runs_no_ranks_does_not_import_torch(tmp_path):
    code = """import sys
from exercises import check, exercise
from pathlib import Path
exercise.PROGRESS = Path(sys.argv.pop(1))
for words in (["--list"], ["--hint"], ["01", "--solution"], ["99"]):
    sys.argv = ["check.py", *words]
    try:
        check.main()
    except SystemExit:
        pass
sys.exit("torch" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "progress.json")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=100).returncode == 0

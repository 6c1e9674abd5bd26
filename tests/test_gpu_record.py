"""What make gpu runs: each step has its log and its limit, and a failure stops no other step."""

import sys

import pytest
from conftest import ROOT

from tools import gpu_record
from tools.gpu_record import Step


def test_steps_that_pass_fail_and_hang(tmp_path, monkeypatch, capsys):
    steps = [
        Step("passes", "python -c print(7)", 1, gpus=0),
        Step("fails", "python -c 1/0", 1, gpus=0),
        Step("must_fail", "python -c 1/0", 1, gpus=0, fails=True),
        Step("hangs", "python -c 'import time; time.sleep(60)'", 0.02, gpus=0),
        Step("missing", "no-such-command", 1, gpus=0),
        Step("skipped", "python -c 1/0", 1, gpus=2),
    ]
    monkeypatch.setattr(gpu_record, "steps", lambda gpus: steps)
    monkeypatch.setattr(sys, "argv", ["gpu_record", str(tmp_path), "--gpus", "1"])
    assert gpu_record.main() == 1
    table = (tmp_path / "summary.md").read_text()
    for row in (
        "passes | ok",
        "fails | FAILED: exit code 1",
        "must_fail | ok",
        "hangs | FAILED: more than 0.02 min",
        "missing | FAILED: exit code 127",
        "skipped | skipped: 2 GPU(s) needed",
    ):
        assert f"| {row} |" in table, table
    assert (tmp_path / "passes.log").read_text() == "$ python -c print(7)\n7\n"
    assert "ZeroDivisionError" in (tmp_path / "fails.log").read_text()
    assert "failed: fails, hangs, missing" in capsys.readouterr().out


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_files_of_the_steps_exist(gpus):
    for step in gpu_record.steps(gpus):
        for word in step.command.split():
            if word.endswith(".py"):
                assert (ROOT / word).exists(), step

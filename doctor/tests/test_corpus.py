"""The corpus: each mutant is named, and no innocent script is called wrong."""

import json
import subprocess
import sys

import cases
import pytest
from conftest import DOCTOR, keys

LAUNCHED = {case.name: case for case in cases.mutants() if "launched" in case.options}


def judged(*words):
    """A line per case, from judge_cases.py."""
    command = [sys.executable, str(DOCTOR / "tests/judge_cases.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in lines if not line["ends_as_it_says"]] == []
    assert [line["failed"] for line in lines if line["failed"]] == []
    return lines


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_named():
    lines = judged()
    assert len(lines) >= 90
    assert [line["name"] for line in lines if line["named"] == line["missed"]] == []
    false = []
    for line in lines:
        for severity, key, *_ in line["findings"]:
            if severity == "wrong" and key not in line["labels"]:
                false.append((line["name"], key))
    assert false == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("short", [[], ["--short-3"]])
def test_no_innocent_script_is_called_wrong(short):
    lines = judged("--innocents", *short)
    assert len(lines) >= 90
    false = []
    for line in lines:
        if "wrong" in [severity for severity, *_ in line["findings"]]:
            false.append(line["name"])
    assert false == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHED)
def test_a_mistake_of_the_launch_is_named(name, user):
    case = LAUNCHED[name]
    (user.folder / "train.py").write_text(case.source)
    done, said = user.check(case.command())
    assert keys(said) & set(case.findings), done

"""Stage 5's failures: each ends as the page shows it, and nothing is left of it."""

import importlib
import json
import re

import pytest
from conftest import NEEDS_HOSTS, NET, ROOT, left, one_line, usage_error
from ranks import run, torchrun

failures = importlib.import_module("05_multinode.rehearsal.failures")

FOLDER = ROOT / "05_multinode/rehearsal"
RECORD = json.loads((FOLDER / "failures.json").read_text())
COMMAND = f"python 05_multinode/rehearsal/failures.py --net {NET}"


def without_luck(case):
    """What is the same in every run of a case: not the seconds, nor which rank was faster."""
    rows = [(row["node"], row["code"], row["message"]) for row in case["nodes"]]
    rows = re.sub(failures.PEER_LOST, "peer lost", repr(rows))
    rows = re.sub(failures.NO_RENDEZVOUS, "no rendezvous", rows)
    if "127.0.1.1" in rows:  # which of the two ranks is refused
        rows = [row["code"] for row in case["nodes"]]
    return rows, case["left"]


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize("name", failures.CASES)
def test_a_case_ends_as_its_record_shows(reader, name):
    result = reader.run(f"{COMMAND} --json found.json {name}", timeout=400)
    assert result.code == 0, result
    found = json.loads((reader.folder / "found.json").read_text())["cases"]
    assert without_luck(found[name]) == without_luck(RECORD["cases"][name]), result
    assert not left()


def test_the_page_has_the_table_of_the_record():
    assert f"\n{failures.table(RECORD['cases'])}\n" in (FOLDER / "README.md").read_text()


def test_bad_input(reader):
    told = "there is no case killd; there are killed, raises"
    one_line(run(reader, "05_multinode/rehearsal/failures.py", "killd"), "failures", told)


# ---------------------------------------------------------------- several_devices.py


def test_a_model_over_several_devices(reader):
    nodes = [{"CUDA_VISIBLE_DEVICES": ""}] * 2
    result = torchrun(reader, 1, "05_multinode/several_devices.py", nodes=nodes)
    first, *claims = result.out.splitlines()
    expected = "2 processes, the first block on cpu, the rest on cpu, gloo"
    assert result.code == 0 and first == expected, result
    assert len(claims) == 1 and claims[0].startswith("ok ")


def test_bad_input_for_several_devices(called, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    usage_error(called("05_multinode/several_devices.py"), "--nproc-per-node 1")

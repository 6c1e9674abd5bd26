"""Stage 5's failures: each ends as the page says it does, and nothing is left of it."""

import importlib
import json
import os
import re
import signal

import pytest
from conftest import NEEDS_HOSTS, NET, ROOT, free_port, hosts, left, wait_for

failures = importlib.import_module("05_multinode.rehearsal.failures")

RECORD = ROOT / "benchmarks/results/failures.json"
CASES = [name for name in failures.CASES if name not in failures.IF_NAMED]
# What ends well, or is tested in test_snapshots.py, is run by failures.py alone: tests take long.
TESTED = [name for name in CASES if name not in ("blinks", "loopback", "unequal", "restart")]


def run(reader, flags):
    command = f"python 05_multinode/rehearsal/failures.py --net {NET} --json found.json {flags}"
    result = reader.run(f"{command} --data {reader.env['MNIST_ROOT']}", timeout=170)
    assert result.code == 0, result
    return result, json.loads((reader.folder / "found.json").read_text())["cases"]


def without_luck(case):
    """What is the same in every run of a case: not the seconds, and not who was a little faster."""
    sides = [(row["host"], row["code"], row["says"]) for row in case["sides"]]
    sides = re.sub("Connection (closed|reset) by peer", "Connection lost", repr(sides))
    sides = re.sub(failures.NO_MEETING, "no meeting", sides)
    if "127.0.1.1" in sides or "refusing" in sides:  # one of them says so, and the other does not
        sides = [row["code"] for row in case["sides"]]
    files = {file for file in case["left"] if not file.endswith(".previous")}
    return sides, files


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_a_case_ends_as_its_record_says(reader, name):
    result, found = run(reader, name)
    assert without_luck(found[name]) == without_luck(record()["cases"][name]), result
    assert "LEFT BEHIND" not in result.out and not left()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")
def test_without_hosts(reader):
    result, found = run(reader, "--no-hosts killed cut_off")
    assert list(found) == ["killed"] and found["killed"]["ok"]
    assert "left out without hosts (--no-hosts): cut_off" in result.out
    assert without_luck(found["killed"]) == without_luck(record()["cases"]["killed"])


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_finds_nothing_left(reader, number):
    data = reader.env["MNIST_ROOT"]
    process = reader.start(
        f"python 05_multinode/rehearsal/failures.py --net {NET} sleeps --data {data}"
    )
    wait_for(lambda: (hosts.NAMESPACES / f"{NET}-host1").exists())
    os.kill(process.pid, number)
    assert reader.finish(process, timeout=30).code == 128 + number
    assert not left()


def record():
    return json.loads(RECORD.read_text())


def test_the_record_has_every_case_as_it_should_be():
    cases = record()["cases"]
    assert list(cases) == list(failures.CASES) and record()["hosts"]
    assert all(case["ok"] for case in cases.values())
    for name in ("killed", "stopped", "cut_off", "head_lost"):
        assert "snapshot.pt" in cases[name]["left"], "that is all there is: it was not done"
        assert not any(re.match("checkpoints|timings", file) for file in cases[name]["left"])
    rate = cases["restart_rate"]
    assert rate["restarted"]["with it"] == rate["tries"] == 20 > rate["restarted"]["as it is"]


def test_the_page_has_the_table_of_the_record():
    page, cases = (ROOT / "05_multinode/README.md").read_text(), record()["cases"]
    table = failures.table({name: cases[name] for name in CASES})
    assert table in page
    rate, waited = cases["restart_rate"], cases["head_lost_by_default"]["sides"][1]["seconds"]
    page = " ".join(page.split())
    assert f"in {rate['restarted']['as it is']} of {rate['tries']} tries" in page
    assert f"{waited:.0f} s" in page


@pytest.mark.parametrize(
    "flags, told",
    [
        ("killd", "there is no case killd; there are killed, raises"),
        ("killed --data nowhere", "there is no MNIST/raw"),
        ("killed --json nowhere/found.json", "there is no such folder"),
        ("killed --timeout 0", "number from 1 to 600"),
        ("killed --net A", "small letters"),
    ],
)
def test_bad_input(reader, flags, told):
    result = reader.run(f"python 05_multinode/rehearsal/failures.py {flags}")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("failures: error: ") and told in result.err
    assert not (reader.folder / "nowhere").exists()


# ---------------------------------------------------------------- several_devices.py


@pytest.mark.slow
def test_a_model_over_several_devices(reader):
    meet = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    line = f"torchrun --nnodes 2 --nproc-per-node 1 {meet} 05_multinode/several_devices.py"
    env = {"CUDA_VISIBLE_DEVICES": ""}
    result = reader.finish_all([reader.start(line, **env) for _ in range(2)])
    first, *claims = result.out.splitlines()
    assert result.code == 0 and first == "2 processes, block1 on cpu, the rest on cpu, gloo", result
    assert len(claims) == 2 and all(claim.startswith("ok ") for claim in claims)


@pytest.mark.parametrize(
    "flags, env, told",
    [
        ("", {}, "start it with torchrun"),
        ("--backend mpi", {}, "invalid choice"),
        ("", {"RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "--nproc-per-node 1"),
    ],
)
def test_bad_input_for_several_devices(reader, flags, env, told):
    result = reader.run(f"python 05_multinode/several_devices.py {flags}", **env)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("several_devices: error: ") and told in result.err

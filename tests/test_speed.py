"""--speed: what it names and what not, a twin that changes nothing, weights that stay equal."""

import json
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from conftest import LINUX, ROOT

from benchmarks import doctor_costs

sys.path.insert(0, str(ROOT / "doctor"))
from ddp_doctor import judge_speed, speed  # noqa: E402
from ddp_doctor.launch import Run  # noqa: E402

RUN = f"{doctor_costs.TORCHRUN} {doctor_costs.SCRIPT}"
LAPS = {"data": 1, "forward": 30, "backward": 50, "exposed": 2, "optimizer": 3, "own": 1}
WRAP = {"kind": "wrap", "bytes": 10**7, "find_unused": False, "count": 4, "at": "t.py:9"}


def measured(ranks, wrap=WRAP, tenth=None, kinds="with", **step):
    """A run of 40 steps.

    ranks: for each the milliseconds of a phase, or of "collective OPERATION LINE", and of those
    without a processor. tenth: more, in each tenth step. kinds: of blocks of 4 steps after 8.
    """
    processes, kinds = [], kinds.split()
    for number, laps in enumerate(ranks):
        made, hot = [], Counter()
        for n in range(1, 41):
            kind = kinds[max(0, n - 9) // 4 % len(kinds)]
            one = {"n": n, "laps": [], "kind": kind, "cpu": 0.05, "new": False}
            more = tenth[number] if tenth and n % 10 == 0 else {}
            for phase, value in (LAPS | laps.get(kind, laps) | more).items():
                for times in value if isinstance(value, list) else [value]:
                    milliseconds, wait = times if isinstance(times, tuple) else (times, 0)
                    one["laps"].append([phase, milliseconds / 1000, wait / 1000])
                    hot[f"{phase} t.py:{len(phase)}"] += milliseconds
            made.append({**one, "passes": 1, "synced": 1, "moved": 0, "others": 0, **step})
        events = [{"kind": "init", "rank": number, "at": "t.py:1"}, {"kind": "laps", "steps": made}]
        events += [wrap, {"kind": "end", "hot": hot, "threads": 8, "gradients": 160}]
        processes.append(([event for event in events if event], {}))
    return judge_speed.Measured(Run(0, processes=processes))


CASES = {  # key -> the ranks' laps, line, milliseconds, and what else is unusual
    "slow-data": ([{"data": 40}] * 2, 4, 40, {}),
    "straggler": ([{"exposed": 32}, {"forward": 60}], 7, 30, {}),
    "exposed": ([{"exposed": 60}] * 2, 7, 60, {}),
    "small-batch": ([{"exposed": 60}] * 2, 7, 60, {"wrap": {**WRAP, "bytes": 5000}}),
    "own-code": ([{"own": 25}] * 2, 3, 25, {}),
    "saving-share": ([{"saving": 25}] * 2, 6, 25, {}),
    "evaluation-share": ([{}] * 2, 10, 80, {"tenth": [{"evaluation": 800}] * 2}),
    "rank-0-works-alone": (
        [{}] * 2, 10, 80, {"tenth": [{"evaluation": 800}, {"collective barrier t.py:70": 800}]}),
    "own-collectives-per-step": ([{"collective barrier t.py:70": 5}] * 2, 70, 5, {}),
    "averaged-twice": (
        [{"collective all_reduce t.py:70": 5}] * 2, 70, 5, {"moved": 10**7}),
    "each-pass-synced": (
        [{"exposed": [2, 9, 9]}] * 2, 7, 11, {"synced": 3, "passes": 3}),
    "unused-search": ([{"search": 6}] * 2, 9, 6, {"wrap": {**WRAP, "find_unused": True}}),
}  # fmt: skip


@pytest.mark.parametrize("key", CASES)
def test_a_cost_is_named_with_its_line(key):
    ranks, line, milliseconds, more = CASES[key]
    ((cost, found, at, text),) = judge_speed.findings(measured(ranks, **more))
    assert (found, at) == (key, f"t.py:{line}"), text
    assert 1000 * cost == pytest.approx(milliseconds, abs=0.1)


def test_what_is_usual_is_not_named():
    assert not judge_speed.findings(measured([{}, {"forward": 31}]))
    assert not judge_speed.findings(measured([{name: 0.01 * LAPS[name] for name in LAPS}] * 2))
    assert not judge_speed.findings(measured([{}], wrap=None))


def test_time_without_a_processor_is_nobodys_cost():
    run = measured([{}, {"forward": (70, 40)}])
    assert not judge_speed.findings(run)
    assert run.ranks[1].steps[9].wait == pytest.approx(0.04)


def test_the_parts_of_the_twin_add_up_or_are_unknown():
    kinds = "with without alone"
    blocks = [{"with": {"exposed": 12}, "without": {"exposed": 0}, "alone": {"exposed": 0}}] * 2
    blocks[1] = blocks[1] | {"without": {"exposed": 0, "forward": 36}}
    run = measured(blocks, kinds=kinds)
    run.kinds = run.rounds(4)
    assert speed.split(run)[0] == {}, "8 blocks: fewer than four rounds"
    run.kinds = {kind: times * 3 for kind, times in run.kinds.items()}
    parts, shares = speed.split(run)
    milliseconds = [round(1000 * seconds, 6) for seconds in parts.values()]
    assert milliseconds == [85, 3, 3, 6] and shares == [pytest.approx(85 / 97)] * 6
    run.cores = 2
    low, high = speed.predict(run, parts, 4)
    assert 1000 * low == pytest.approx(97 + 6 * 0.5 + 50)
    assert 1000 * high == pytest.approx(97 + 6 * 2 + 3 + 50)
    run.kinds["with"][:4] = [(0.2, 0.2)] * 4
    assert speed.split(run)[0] == {}, "the rounds disagree"


OUTSIDE = """
import os, pathlib, subprocess, sys
sys.path[:0] = [DOCTOR]
from ddp_doctor import twin
twin.fence(twin.COPY, "/dev")
twin.go_on()
for name in sys.argv[1:]:
    for mode in ("w", "a", "r+", "x"):
        with open(name, mode) as file:
            file.write("twin")
    os.close(os.open(name, os.O_WRONLY | os.O_TRUNC))
    os.chmod(name, 0o600)
    os.utime(name)
    os.truncate(name, 0)
    subprocess.run(f"echo twin > {name}", shell=True)
    assert open(name).read() == "kept" == pathlib.Path(name).read_text()
    pathlib.Path(name + ".new").write_text("twin")
    os.replace(name + ".new", name)
    os.remove(name)
    subprocess.run(f"rm -f {name}", shell=True)
    os.makedirs(name + ".folder/more", exist_ok=True)
    open(name + ".folder/more/file", "a").close()
assert open(sys.argv[1]).read() == "kept"
pathlib.Path("own").touch()
os.chmod("own", 0o600)
assert os.stat("own").st_mode & 0o777 == 0o600
"""


@LINUX
def test_a_twin_cannot_write_outside_of_its_copy(tmp_path):
    before = {}
    for name in ("absolute", "linked"):
        file = tmp_path / name
        file.write_text("kept")
        os.utime(file, (10**9, 10**9))
        before[file] = file.stat()[:9]
    copy = tmp_path / "twin"
    (copy / "copy").mkdir(parents=True)
    (copy / "copy/link").symlink_to(tmp_path / "linked")
    code = OUTSIDE.replace("DOCTOR", repr(str(ROOT / "doctor")), 1)
    env = os.environ | {"DDP_DOCTOR_COPY": str(copy)}
    command = [sys.executable, "-c", code, str(tmp_path / "absolute"), "link"]
    subprocess.run(command, cwd=copy / "copy", env=env, check=True, timeout=60)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["absolute", "linked", "twin"]
    for file, stat in before.items():  # mode, size and the time of the last change, among others
        assert file.stat()[:7] == stat[:7] and file.stat().st_mtime == 10**9
        assert file.read_text() == "kept"


def test_the_picture_has_a_bar_per_rank_and_phase(tmp_path, monkeypatch, capsys):
    ranks = {n: dict.fromkeys([*judge_speed.PHASES, "no core", "step"], 1.0) for n in range(3)}
    speed.draw(ranks, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(speed, "find_spec", lambda name: None)
    assert speed.main(SimpleNamespace(picture="bars.png")) == 2
    assert capsys.readouterr().err == "ddp-doctor: --picture: install matplotlib first\n"


# ---------------------------------------------------------------- real runs


@pytest.fixture
def measure(reader, tmp_path):
    """Runs a command with --speed in an empty folder -> what it printed, what it measured."""

    def run(command, before=""):
        out = tmp_path / "speed.json"
        (tmp_path / "tmp").mkdir()
        line = f"{before} python '{ROOT}/doctor' --speed --json '{out}' {command}"
        result = reader.run(line, timeout=280, TMPDIR=str(tmp_path / "tmp"))
        assert not list((tmp_path / "tmp").glob("ddp-doctor*")), "a file is left"
        return result, json.loads(out.read_text()) if out.exists() else None

    return run


@pytest.mark.parametrize("command", ["python -c pass", "no-such-command"])
def test_a_command_without_ranks_is_refused_in_one_line(measure, command):
    result, said = measure(command)
    assert result.code == 2 and said is None and result.err.count("\n") == 1, result


COSTS = [("", key) for key in ("slow-data", "straggler", "own-code", "saving-share")]
COSTS += [("", "rank-0-works-alone"), (f"python '{ROOT}/tests/simulated_gpu.py' 2", "own-code")]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "key"), COSTS, ids=lambda text: text.rpartition("/")[2])
def test_an_injected_cost_is_named(measure, before, key):
    result, said = measure(f"{RUN} {key}", before)
    assert result.code == 0 and said["findings"], result
    assert said["gpu"] == bool(before) and said["ranks"]["0"]["forward"] > 15, result
    assert said["findings"][0]["key"] == key, result
    assert said["findings"][0]["at"].endswith(f"one_cost.py:{doctor_costs.line_of(key)}"), result
    assert said["steps"]["all"] == 120 and f"[{key}] " in result.out


@pytest.mark.slow
def test_weights_are_equal_and_files_are_those_of_the_first_run(measure, reader):
    alone, path = reader.folder / "alone.pt", reader.folder / "watched.pt"
    reader.run(f"{RUN} none {alone}")
    result, said = measure(f"{RUN} none {path}")
    assert result.code == 0 and said["efficiencies"], result
    for file in (path, path.with_suffix(".pt.txt"), path.with_suffix(".pt.shell")):
        assert b"the first run" in file.read_bytes() and b"twin" not in file.read_bytes()
    left, right = (torch.load(file)["weights"] for file in (alone, path))
    assert all(torch.equal(left[name], right[name]) for name in left | right)

"""The verb `speed`: what it names and what not, and weights that stay equal bit for bit."""

import json
import platform
import subprocess
import sys
from collections import defaultdict

import pytest
import torch
from conftest import DOCTOR, TORCHRUN
from ddp_doctor.run.events import Joined, Laps, Loaded, Looks, Moment, Reducer
from ddp_doctor.run.run import build
from ddp_doctor.speed import judge, report
from ddp_doctor.speed.costs import COSTS
from ddp_doctor.speed.pace import pace_of

SCRIPT = DOCTOR / "tests/one_cost.py"
# Milliseconds of a step.
USUAL = {"data": 1, "forward": 30, "backward": 50, "exposed": 2, "optimizer": 3, "own": 1}
STEPS = 40
NOW = Moment(0.0, 0, 0)
REDUCER = {"at": "t.py:9", "bytes": 10**7, "parameters": 4, "searches": False, "on_gpu": False}


def laps_of(n, milliseconds, no_core, **about):
    """A step of these milliseconds. A list is one average after the other."""
    seconds = {}
    calls = {}
    averages = []
    for phase, value in milliseconds.items():
        times = [one / 1000 for one in (value if isinstance(value, list) else [value])]
        if phase == "exposed":
            averages = times
        if phase.startswith("collective "):
            phase, _, call = phase.partition(" ")
            calls[call] = sum(times)
        seconds[phase] = sum(times)
    fields = {"processor": 0.05, "passes": 1, "models": 1, "accumulates": True}
    fields |= {"sent": 0, "samples": 8, "others": 0, "last": False, "kernel": 0.0, "faults": 20}
    laps = {"n": n, "seconds": seconds, "no_core": no_core / 1000}
    return Laps(NOW, **laps, calls=calls, averages=averages, **(fields | about))


def pace_with(
    ranks, tenth=None, reducer=REDUCER, no_core=None, loaded=(), others_without_core=0, **about
):
    """The pace of a run of 40 steps on as many ranks.

    ranks: for each the milliseconds of a phase, or of "collective FUNCTION LINE", that are not the
    usual ones. tenth: more, in each tenth step. The line of a phase has as many letters as it.
    """
    processes = []
    for number, unusual in enumerate(ranks):
        events = [Joined(NOW, "t.py:1", number, len(ranks))]
        looks = defaultdict(lambda: defaultdict(float))
        for n in range(1, STEPS + 1):
            milliseconds = USUAL | unusual
            if tenth and n % 10 == 0:
                milliseconds |= tenth[number]
            without_core = no_core[number] if no_core else 0
            laps = laps_of(n, milliseconds, without_core, **about)
            events.append(laps)
            for phase, seconds in laps.seconds.items():
                looks[phase][f"t.py:{len(phase)}"] += seconds
        if reducer:
            events.append(Reducer(NOW, **reducer))
        events += loaded
        waited = STEPS * others_without_core / 1000
        events.append(Looks(NOW, looks, 4 * STEPS, waited, threads=1, cores=2))
        processes.append(events)
    return pace_of(build(0, "ended", processes))


UNUSED = REDUCER | {"searches": True}
FEW = REDUCER | {"bytes": 5000}
BARRIER = "collective barrier t.py:70"
AGAIN = [Loaded(NOW, "t.py:3", workers=2, persistent=False, again=True)]
CASES = {
    # key: the ranks' milliseconds, the line, the cost, and what else is unusual
    "slow-data": ([{"data": 40}] * 2, 4, 40, {}),
    "straggler": ([{"exposed": 32}, {"forward": 60}], 7, 30, {}),
    "exposed": ([{"exposed": 60}] * 2, 7, 60, {}),
    "small-batch": ([{"exposed": 60}] * 2, 7, 60, {"reducer": FEW}),
    "own-code": ([{"own": 25}] * 2, 3, 25, {}),
    "memory-returned": ([{}] * 2, 8, 12, {"faults": 9000, "kernel": 0.012}),
    "saving-share": ([{"saving": 25}] * 2, 6, 25, {}),
    "evaluation-share": ([{}] * 2, 10, 80, {"tenth": [{"evaluation": 800}] * 2}),
    "rank-0-works-alone": ([{}] * 2, 10, 80, {"tenth": [{"evaluation": 800}, {BARRIER: 800}]}),
    "own-collectives-per-step": ([{BARRIER: 5}] * 2, 70, 5, {}),
    "averaged-twice": ([{"collective all_reduce t.py:70": 5}] * 2, 70, 5, {"sent": 10**7}),
    "each-pass-synced": ([{"exposed": [9, 9, 2]}] * 2, 7, 18, {"passes": 3}),
    "unused-search": ([{"search": 6}] * 2, 9, 6, {"reducer": UNUSED}),
    "epoch-pause": ([{}] * 2, 11, 80, {"tenth": [{"first batch": 801}] * 2, "loaded": AGAIN}),
}


@pytest.mark.parametrize("key", CASES)
def test_a_cost_is_named_with_its_line(key):
    ranks, line, milliseconds, more = CASES[key]
    found = judge.findings(pace_with(ranks, **more))
    assert [one.key for one in found] == [key]
    assert found[0].at == f"t.py:{line}"
    assert found[0].ms == pytest.approx(milliseconds, rel=0.03)


def test_each_finding_has_a_case_and_words():
    assert set(CASES) == set(COSTS)


@pytest.mark.parametrize("about", [{"faults": 900}, {"faults": 9000, "kernel": 0.0005}])
def test_a_few_page_faults_or_cheap_ones_are_not_named(about):
    assert not judge.findings(pace_with([{}] * 2, **({"kernel": 0.012} | about)))


def test_what_is_usual_is_not_named():
    assert not judge.findings(pace_with([{}, {"forward": 31}]))
    short = {phase: 0.01 * value for phase, value in USUAL.items()}
    assert not judge.findings(pace_with([short] * 2))
    assert not judge.findings(pace_with([{}], reducer=None))


def test_two_passes_that_both_average_are_named_and_two_models_are_not():
    """The waste is half of the average: whether it is more must not decide."""
    for first in (8, 10, 12):
        found = judge.findings(pace_with([{"exposed": [first, 10]}] * 2, passes=2))
        assert [(one.key, round(one.ms)) for one in found] == [("each-pass-synced", first)]
    for healthy in ({"models": 2}, {"others": 1}, {"accumulates": False}, {"passes": 3}):
        pace = pace_with([{"exposed": [10, 10]}] * 2, **({"passes": 2} | healthy))
        assert not judge.findings(pace), healthy


def test_time_without_a_core_is_nobodys_cost():
    pace = pace_with([{}, {"forward": 30}], no_core=(0, 40))
    assert not judge.findings(pace)
    assert report.measure(pace)["ranks"]["1"]["no core"] == 40


def test_an_average_whose_threads_had_no_core_is_not_named():
    assert judge.findings(pace_with([{"exposed": 60}] * 2, others_without_core=20))
    assert not judge.findings(pace_with([{"exposed": 60}] * 2, others_without_core=70))


def test_the_reason_of_a_pause_is_said():
    reasons = {
        "built again": [Loaded(NOW, "t.py:3", workers=2, persistent=False, again=False)],
        "persistent_workers=True": AGAIN,
        "wait for the first batch": [Loaded(NOW, "t.py:3", 2, persistent=True, again=True)],
    }
    tenth = [{"first batch": 801}] * 2
    for words, loaded in reasons.items():
        (found,) = judge.findings(pace_with([{}] * 2, tenth=tenth, loaded=loaded))
        assert words in found.seen
    tenth = [{"between": 801}] * 2
    (found,) = judge.findings(pace_with([{}] * 2, tenth=tenth, loaded=AGAIN))
    assert "own code" in found.seen
    assert report.measure(pace_with([{}] * 2, tenth=tenth))["pause"] == {
        "data": 0,
        "own": 801,
        "step": 801,
    }


def test_the_parts_of_a_step_add_up(capsys):
    """Rank 1 works 30 ms longer, and both wait 6 ms for the network."""
    figures = report.measure(pace_with([{"exposed": 36}, {"exposed": 6, "forward": 60}]))
    alone = report.measure(pace_with([{"forward": 25, "exposed": 0.5}]))
    parts = report.split(figures, alone)
    assert list(parts.values()) == pytest.approx([80, 5, 30, 6])
    assert figures["step"] == pytest.approx(121)
    # The average of four ranks takes 1.5 to 3 times as long, on two cores they take turns.
    low, high = figures["predicted"]["4"]
    assert low == pytest.approx(121 + 0.5 * 6 + 50)
    assert high == pytest.approx(121 + 2 * 6 + 50)
    report.show(figures, alone)
    assert "Efficiency 66%" in capsys.readouterr().out
    report.show(figures, None)
    assert report.ONE_RANK in capsys.readouterr().out


def test_another_batch_on_one_rank_is_taken_per_sample(capsys):
    figures = report.measure(pace_with([{}] * 2))
    alone = report.measure(pace_with([{"forward": 115}], samples=16))
    assert report.split(figures, alone)["one rank alone"] == pytest.approx(85)
    report.show(figures, alone)
    assert "16 samples" in capsys.readouterr().out


def test_too_few_steps_are_no_measurement(capsys):
    run = build(0, "ended", [[Joined(NOW, "t.py:1", 0, 1)]])
    pace = pace_of(run)
    assert report.measure(pace) is None
    report.show_too_little(run, pace)
    assert "Too little" in capsys.readouterr().out


def test_the_picture_has_a_bar_per_rank_and_phase(tmp_path):
    pytest.importorskip("matplotlib")
    report.draw(report.measure(pace_with([{}] * 3)), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- real runs


@pytest.fixture
def measure(user):
    """Runs `ddp-doctor speed` -> its CompletedProcess, and what --json has written."""

    def run(command, **options):
        done = user.doctor(f"speed --json speed.json {command}", timeout=280, **options)
        out = user.folder / "speed.json"
        return done, json.loads(out.read_text())["speed"] if out.exists() else None

    return run


def line_of(key):
    for number, text in enumerate(SCRIPT.read_text().splitlines(), start=1):
        if key in text.partition("  # ")[2].split():
            return number


def test_a_command_without_ranks_is_too_little(measure):
    done, said = measure("python -c pass")
    assert done.returncode == 2 and said is None and "Too little" in done.stdout, done


@pytest.mark.slow
@pytest.mark.parametrize("key", ["straggler", "two-passes-synced", "epoch-pause", "own-code"])
def test_a_cost_that_was_put_in_is_named(measure, key):
    name = "each-pass-synced" if key == "two-passes-synced" else key
    done, said = measure(f"{TORCHRUN} '{SCRIPT}' {key}")
    found = {one["key"]: one for one in said["findings"]}
    assert done.returncode == 0 and name in found, done
    assert found[name]["at"].endswith(f"one_cost.py:{line_of(key)}"), done
    assert said["steps"]["all"] == 120 and f"[{name}] " in done.stdout


KEEP = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "1000000000")
RETURN = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries ignore both")
@pytest.mark.parametrize("megabytes", [4, 16, 64])
def test_memory_that_is_returned_is_named_and_memory_that_is_kept_is_not(measure, megabytes):
    """The first setting makes glibc return every tensor at once, whatever the machine's default."""
    for settings, found in ((RETURN, True), (KEEP, False)):
        done, said = measure(f"{TORCHRUN} '{SCRIPT}' memory-{megabytes}", **settings)
        keys = [one["key"] for one in said["findings"]]
        assert ("memory-returned" in keys) == found, done


@pytest.mark.slow
def test_weights_are_equal_bit_for_bit(measure, user):
    alone = user.folder / "alone.pt"
    watched = user.folder / "watched.pt"
    user.run(*TORCHRUN.split(), SCRIPT, "none", alone)
    done, said = measure(f"{TORCHRUN} '{SCRIPT}' none '{watched}'")
    assert done.returncode == 0 and not said["findings"], done
    left = torch.load(alone)
    right = torch.load(watched)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_matplotlib_is_imported_for_a_picture_only():
    code = "import sys, ddp_doctor.__main__; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=DOCTOR, check=True)

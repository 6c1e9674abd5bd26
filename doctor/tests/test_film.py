"""The film of `speed`: true widths, waits with their rank and line, one file, clear refusals."""

import json
import re
import shlex
import struct
from xml.etree import ElementTree

import pytest
from conftest import DOCTOR, TORCHRUN
from ddp_doctor.film import film, picture
from ddp_doctor.run.events import Filmed, Joined, Laps, Looks, Moment
from ddp_doctor.run.launch import observe
from ddp_doctor.run.run import build
from ddp_doctor.speed import report
from ddp_doctor.speed.pace import pace_of

STAGE_4 = DOCTOR.parent / "04_ddp_torchrun/train.py"
NOW = Moment(0.0, 0, 0)
STEPS = 30
SCRIPT = "import time\n\nfor batch in loader:\n    time.sleep(0.05)  # as a comment says\n"
# The laps of a step, in order: (phase, milliseconds), and the call or the time without a core.
FAST = [("own", 1), ("forward", 20), ("loss", 1), ("backward", 30), ("exposed", 52)]
SLOW = [("own", 51), ("forward", 20), ("loss", 1), ("backward", 30), ("exposed", 2)]
LAST = [("optimizer", 3)]
COMMAND = ["torchrun", "--nproc-per-node", "2", "train.py"]
SVG = "{http://www.w3.org/2000/svg}"


def events_of(rank, steps, line):
    """What a rank writes down if its steps have these laps."""
    events = [Joined(NOW, "t.py:1", rank, 2)]
    filmed = []
    moment = 100.0
    for n, laps in enumerate(steps, start=1):
        begun = moment
        seconds = {}
        calls = {}
        row = []
        waited = 0.0
        for phase, milliseconds, *more in laps:
            call = more[0] if more and isinstance(more[0], str) else ""
            no_core = more[0] / 1000 if more and not call else 0.0
            moment += milliseconds / 1000
            row.append([phase, call, moment, no_core])
            waited += no_core
            seconds[phase] = seconds.get(phase, 0.0) + milliseconds / 1000 - no_core
            if call:
                calls[call] = milliseconds / 1000
        fields = {"processor": 0.05, "passes": 1, "models": 1, "accumulates": True}
        fields |= {"sent": 0, "samples": 8, "others": 0, "last": False, "averages": []}
        fields |= {"kernel": 0.0, "faults": 0}
        events.append(Laps(NOW, n, seconds, waited, calls, **fields))
        filmed.append(Filmed(NOW, n, begun, row))
    events += filmed[-20:]
    looks = {"own": {line: 5.0}, "forward": {"t.py:7": 1.0}}
    events.append(Looks(NOW, looks, 4 * STEPS, 0.0, threads=1, cores=2))
    return events


def run_of(*ranks, line="t.py:4"):
    """A run on these ranks, of each of which the laps of all steps are given."""
    processes = []
    for number, steps in enumerate(ranks):
        # A rank that is fast was seen in no line of its own code.
        seen = line if steps[-1][0][1] > 10 else "t.py:1"
        processes.append(events_of(number, steps, seen))
    return build(0, "ended", processes)


def film_of(run):
    pace = pace_of(run)
    return film.film_of(pace, report.measure(pace), COMMAND)


def always(*laps):
    return [[*laps, *LAST]] * STEPS


def lengths(made, rank, step):
    """[(what, milliseconds)] of the bars of a step."""
    found = []
    for bar in made.lanes[rank].bars:
        if bar.step == step:
            found.append((bar.what, round(1000 * (bar.end - bar.begin), 6)))
    return found


@pytest.fixture
def slow_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(SCRIPT)
    return run_of(always(*FAST), always(*SLOW))


def test_the_bars_are_the_laps_and_the_wait(slow_rank):
    made = film_of(slow_rank)
    assert len(made.steps) == 3 and min(made.steps) > STEPS - 20
    for step in made.steps:
        fast = [("own", 1), ("forward", 21), ("backward", 30), ("wait", 50)]
        assert lengths(made, 0, step) == [*fast, ("exposed", 2), ("optimizer", 3)]
        slow = [("own", 51), ("forward", 21), ("backward", 30)]
        assert lengths(made, 1, step) == [*slow, ("exposed", 2), ("optimizer", 3)]


def test_a_wait_is_named_with_its_cause_and_line(slow_rank):
    made = film_of(slow_rank)
    assert made.title == "2 ranks, 107.0 ms per step: rank 0 waits for rank 1"
    assert made.sentences == (
        "Rank 0 waited 50.0 ms for rank 1 (47% of the 107.0 ms of a step), "
        "which was in `time.sleep(0.05)`, line 4 of t.py: "
        "its own code took 50.0 ms longer (the average of these 3 steps).",
    )
    assert made.lanes[0].bars[3].label == "waits for rank 1"
    assert made.lanes[1].bars[0].label == "own, line 4"
    for words in (
        "torchrun --nproc-per-node 2 train.py",
        "2 cores",
        "PyTorch",
        "Of the steps 11 to 30",
    ):
        assert words in made.caption
    assert made.sentences[0] in made.caption


def test_ranks_that_wait_for_the_same_one_are_said_together():
    late = [("own", 3), *FAST[1:-1], ("exposed", 50)]
    made = film_of(run_of(always(*FAST), always(*SLOW), always(*late)))
    assert made.title.endswith("ranks 0 and 2 wait for rank 1")
    assert len(made.sentences) == 1
    assert made.sentences[0].startswith("Ranks 0 and 2 waited 48.0 to 50.0 ms for rank 1 (")


def test_without_a_line_the_phase_is_named():
    fast = [("own", 1), ("forward", 20), ("backward", 30), ("exposed", 32)]
    slow = [("own", 1), ("forward", 20), ("backward", 60), ("exposed", 2)]
    made = film_of(run_of(always(*fast), always(*slow)))
    expected = "(35% of the 86.0 ms of a step), for which its backward pass took 30.0 ms longer"
    assert made.sentences[0].startswith(f"Rank 0 waited 30.0 ms for rank 1 {expected}")


def test_several_causes_are_said_together():
    fast = [("own", 1), ("forward", 20), ("backward", 30), ("optimizer", 3), ("exposed", 32)]
    slow = [("own", 11), ("forward", 32), ("backward", 38), ("optimizer", 3), ("exposed", 2)]
    made = film_of(run_of(always(*fast), always(*slow)))
    cause = "delayed by several things, 12.0 ms by its forward pass and 10.0 ms by its own code"
    assert cause in made.sentences[0]


def test_time_without_a_core_is_drawn_and_is_the_cause():
    fast = [("own", 1), ("forward", 20), ("backward", 30), ("exposed", 22)]
    slow = [("own", 1), ("forward", 40, 20), ("backward", 30), ("exposed", 2)]
    made = film_of(run_of(always(*fast), always(*slow)))
    assert ("no core", 20) in lengths(made, 1, made.steps[0])
    assert ("forward", 20) in lengths(made, 1, made.steps[0])
    assert "which had no core for 20.0 ms longer" in made.sentences[0]


def test_who_leaves_a_wait_late_is_said_to_be_late():
    """In each second step rank 1 leaves the average late, and has as much work as rank 0."""
    work = [("own", 1), ("forward", 20), ("backward", 30)]
    fast = [[*work, ("exposed", 12), *LAST]] * STEPS
    slow = [[*work, ("exposed", 12), *LAST]] * (STEPS - 19)
    slow += [[*work, ("exposed", 22), *LAST]]
    slow += [[*work, ("exposed", 12), *LAST]] * 18
    made = film_of(run_of(fast, slow))
    assert "out of the exchange before this one 10.0 ms later" in made.sentences[0]


def test_calls_of_one_line_meet_and_others_are_not_compared():
    end = [("collective", 0.01), ("own", 1)]
    fast = [("own", 1), ("forward", 30), ("collective", 31, "barrier t.py:9"), *end]
    slow = [("own", 31), ("forward", 30), ("collective", 1, "barrier t.py:9"), *end]
    made = film_of(run_of(always(*fast), always(*slow)))
    step = made.steps[0]
    waited = dict(lengths(made, 0, step))["wait"]
    assert waited == pytest.approx(30, abs=0.001)
    assert made.lanes[0].bars[3].label == "barrier, line 9"
    other = [("own", 31), ("forward", 30), ("collective", 1, "all_reduce t.py:8"), ("own", 1)]
    made = film_of(run_of(always(*fast), always(*other)))
    assert all(bar.what != "wait" for lane in made.lanes for bar in lane.bars)


def test_whoever_comes_after_this_rank_has_left_was_not_waited_for():
    """Rank 0 sends and leaves, as in a broadcast. Rank 1 comes 30 ms later."""
    source = [("own", 1), ("collective", 1, "broadcast t.py:9"), ("forward", 70)]
    later = [("own", 31), ("collective", 1, "broadcast t.py:9"), ("forward", 40)]
    made = film_of(run_of(always(*source), always(*later)))
    assert all(bar.what != "wait" for lane in made.lanes for bar in lane.bars)
    assert "no rank waited" in made.sentences[0]


def test_small_waits_are_drawn_and_not_in_the_title():
    fast = [("own", 1), ("forward", 50), ("backward", 50), ("exposed", 5)]
    slow = [("own", 1), ("forward", 54), ("backward", 50), ("exposed", 1)]
    made = film_of(run_of(always(*fast), always(*slow)))
    assert made.title == "2 ranks, 109.0 ms per step"
    assert made.sentences[0].startswith("Rank 0 waited 4.0 ms for rank 1")


def test_the_steps_are_usual_ones(slow_rank):
    """Neither the last ones, which are twice as long, nor one that evaluates."""
    usual = [[*FAST, *LAST]] * 25
    unusual = [("evaluation", 5), *FAST, *LAST]
    long = [("own", 100), *FAST, *LAST]
    made = film_of(run_of([*usual, unusual, long, long, long, unusual]))
    assert max(made.steps) <= 25
    assert made.title == "1 rank, 107.0 ms per step"


def test_ranks_with_different_clocks_have_no_film():
    run = run_of(always(*FAST), always(*SLOW))
    events = run.ranks[1].events
    for number, event in enumerate(events):
        if isinstance(event, Filmed):
            laps = [[phase, call, end + 1000, no_core] for phase, call, end, no_core in event.laps]
            events[number] = Filmed(NOW, event.n, event.begun + 1000, laps)
    assert film_of(run) is None


def test_without_a_usual_step_no_film_is_written(tmp_path):
    run = run_of([[("evaluation", 5), *FAST, *LAST]] * STEPS)
    path = tmp_path / "run.html"
    assert film.write(pace_of(run), None, COMMAND, str(path)).startswith("No film was written")
    assert not path.exists()


# ------------------------------------------------------------------ the files


def test_the_page_is_one_file_and_its_words_are_escaped(slow_rank, tmp_path):
    command = ["torchrun", "train.py", "--name", "</script><b>@DATA@"]
    path = tmp_path / "run.html"
    pace = pace_of(slow_rank)
    said = film.write(pace, report.measure(pace), command, str(path))
    text = path.read_text()
    assert said.startswith(f"Film: {path}") and "Rank 0 waited 50.0 ms" in said
    assert "<b>" not in text and "&lt;b&gt;@DATA@" in text
    assert not re.search(r"""\b(src|href)=|@import|url\((?!#)""", text)
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {"http://www.w3.org/2000/svg"}
    data = json.loads(re.search(r'type="application/json">(.*)</script>', text)[1])
    for lane in data["lanes"]:
        for step in {bar[3] for bar in lane["bars"]}:
            sums = sum(end - begin for begin, end, _, n in lane["bars"] if n == step)
            assert sums == pytest.approx(107)


def test_the_widths_of_the_still_are_the_times(slow_rank, tmp_path):
    path = tmp_path / "run.svg"
    pace = pace_of(slow_rank)
    film.write(pace, report.measure(pace), COMMAND, str(path))
    picture = ElementTree.parse(path).getroot()
    made = film_of(slow_rank)
    scale = float(picture.get("data-width")) / (made.end - made.begin)
    boxes = {box.get("data-bar"): box for box in picture.iter(f"{SVG}rect") if box.get("data-bar")}
    for lane in made.lanes:
        for number, bar in enumerate(lane.bars):
            box = boxes[f"{lane.rank} {number}"]
            assert float(box.get("width")) == pytest.approx(scale * (bar.end - bar.begin), abs=0.01)
            left = float(picture.get("data-left")) + scale * (bar.begin - made.begin)
            assert float(box.get("x")) == pytest.approx(left, abs=0.01)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "100 ms" in texts and "rank 1" in texts and made.title in texts
    assert "waits for" in texts and "“time.sleep(0.05)”" in " ".join(texts)


def test_times_have_a_unit():
    assert picture.duration(0.0123) == "12.3 ms"
    assert picture.duration(0.0000123) == "0.012 ms"
    assert picture.duration(12.34) == "12.3 s"
    assert picture.duration(0.05, exact=True) == "50 ms"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("run.png", "ends with .html or .svg"),
        ("nowhere/run.html", "there is no folder nowhere"),
        ("folder.svg", "this is a folder"),
    ],
)
def test_a_bad_name_is_refused_before_the_run(user, name, reason):
    (user.folder / "folder.svg").mkdir()
    done = user.doctor(f"speed --film {name} touch started")
    assert done.returncode == 2 and not (user.folder / "started").exists()
    assert re.fullmatch(f"ddp-doctor: error: --film {name}: .*{reason}\n", done.stderr), done


def test_a_command_without_ranks_has_no_film(user):
    done = user.doctor("speed --film run.html python -c pass")
    assert done.returncode == 2 and "No film was written" in done.stdout
    assert not (user.folder / "run.html").exists()


# ------------------------------------------------------------------ real runs


def filmed(user, command, monkeypatch):
    """-> the film of a real run, and its pace."""
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = shlex.split(command)
    code, end, processes = observe(words, patience=60, limit=250, speed=True)
    run = build(code, end, processes)
    assert run.ended_well and len(run.ranks) == 2
    pace = pace_of(run)
    return film.film_of(pace, report.measure(pace), words), pace


def check_sums(made, pace):
    """The bars of a lane have no gaps, and add up to the time of the step as it was measured."""
    for lane, rank in zip(made.lanes, pace.ranks):
        for n in made.steps:
            bars = [bar for bar in lane.bars if bar.step == n]
            total = sum(bar.end - bar.begin for bar in bars)
            assert total == pytest.approx(rank.steps[n].time, rel=0.02)
            for bar, following in zip(bars, bars[1:]):
                assert bar.end == pytest.approx(following.begin, abs=1e-9)


def draw_noise(folder, images):
    """A data set in the format of MNIST, without digits."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for name in ("train", "t10k"):
        pixels = bytes(range(256)) * (images * 28 * 28 // 256 + 1)
        head = struct.pack(">iiii", 2051, images, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels[: images * 28 * 28])
        labels = struct.pack(">ii", 2049, images) + bytes(n % 10 for n in range(images))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


@pytest.mark.slow
@pytest.mark.skipif(not STAGE_4.exists(), reason="the doctor is installed alone")
def test_the_lanes_of_stage_4_add_up(user, monkeypatch):
    pytest.importorskip("torchvision")
    draw_noise(user.folder / "data", 960)
    flags = "--device cpu --epochs 2 --batch-size 48 --data data --record runs.jsonl"
    made, pace = filmed(user, f"{TORCHRUN} {STAGE_4} {flags} --checkpoint none.pt", monkeypatch)
    assert [lane.rank for lane in made.lanes] == [0, 1] and len(made.steps) == 3
    check_sums(made, pace)
    seen = {bar.what for lane in made.lanes for bar in lane.bars}
    assert {"data", "forward", "backward", "exposed", "optimizer"} <= seen


@pytest.mark.slow
def test_a_slow_rank_and_its_line_are_named(user, monkeypatch):
    script = DOCTOR / "tests/one_cost.py"
    made, pace = filmed(user, f"{TORCHRUN} '{script}' straggler", monkeypatch)
    check_sums(made, pace)
    number = 1 + [line.endswith("# straggler") for line in script.read_text().split("\n")].index(
        True
    )
    where = f"which was in `time.sleep(SLEEP)`, line {number} of one_cost.py"
    named = [text for text in made.sentences if where in text]
    assert named and named[0].startswith("Rank 0 waited") and "for rank 1" in named[0]
    assert made.title.endswith("rank 0 waits for rank 1")


@pytest.mark.slow
def test_item_in_the_loop_is_named_with_its_line(user, monkeypatch):
    script = DOCTOR / "tests/counts_by_item.py"
    made, pace = filmed(user, f"{TORCHRUN} '{script}'", monkeypatch)
    check_sums(made, pace)
    number = 1 + [line.endswith("# item") for line in script.read_text().split("\n")].index(True)
    where = f"`right += sum(hits[n].item() for n in range(SAMPLES))`, line {number} of"
    named = [text for text in made.sentences if f"which was in {where}" in text]
    assert named and named[0].startswith("Rank 1 waited") and "for rank 0" in named[0]

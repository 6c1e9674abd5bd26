"""tools/record.py: the committed recordings can be so, and damaged ones are refused.

No time is tested.
"""

import copy
import json
import os
import re
import signal

import pytest
from conftest import LINUX, ROOT, ranks_of, wait_for

from tools import record
from tools.recorders import all_reduce, check, failure, step

FOLDER = ROOT / "docs/player/recordings"
STEP = "step-ranks-2-channels-1-bucket-cap-mb-0.01"
RING, NAIVE = "all-reduce-ring-ranks-4", "all-reduce-naive-ranks-4"
SLOW, DIES = "failure-slow-rank-ranks-4", "failure-a-rank-dies-ranks-4"


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_the_committed_recordings_can_be_so_and_are_all_that_record_makes(called):
    result = called("tools/record.py", "--check")
    assert result.code == 0 and result.out.startswith("13 recordings"), result
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 150_000
    per_ranks = {"step": len(step.NETS), "all_reduce": 3, "failure": 3}
    found = [read(path.stem) for path in FOLDER.iterdir()]
    for kind, (_, numbers) in record.KINDS.items():
        ranks = [recording["choices"]["ranks"] for recording in found if recording["kind"] == kind]
        assert sorted(ranks) == sorted(per_ranks[kind] * list(numbers))


@pytest.mark.parametrize(("channels", "cap", "overlaps"), [(1, 25, 0), (1, 0.01, 1), (4, 0.2, 1)])
def test_a_step_shows_what_the_pages_say_of_it(channels, cap, overlaps):
    """One bucket is sent after the last gradient; of several the first before it: overlap."""
    for own in read(f"step-ranks-2-channels-{channels}-bucket-cap-mb-{cap}")["ranks"]:
        last_gradient = own["spans"][3]["from"]
        assert own["marks"][-1]["parameter"].startswith("block1.0.")
        assert len(own["buckets"]) == 1 or overlaps
        assert (own["buckets"][0]["joined"] < last_gradient) == overlaps
        assert own["buckets"][-1]["left"] >= last_gradient
        if channels == 1:
            assert sum(bucket["bytes"] for bucket in own["buckets"]) == 116_136


def test_what_the_page_says_of_bytes_and_failures():
    sent = {way: [0] * 4 for way in ("ring", "naive", "tree")}
    for way, of in sent.items():
        recorded = read(f"all-reduce-{way}-ranks-4")
        for message in recorded["messages"]:
            of[message["from"]] += message["bytes"] / recorded["elements"] / 4
    assert sent["ring"] == [1.5] * 4 and sum(sent["naive"]) == sum(sent["tree"]) == 6
    assert max(sent["naive"]) == sent["naive"][0] == 3 > max(sent["tree"]) > max(sent["ring"])
    texts = {}
    for case in ("a-rank-dies", "a-rank-leaves-early", "slow-rank"):
        ranks = read(f"failure-{case}-ranks-4")["ranks"]
        texts[case] = [" ".join(mark["text"] for mark in rank["marks"]) for rank in ranks]
    closed, others = re.compile("Connection (closed|reset) by peer"), (0, 2, 3)
    assert all(closed.search(texts["a-rank-dies"][rank]) for rank in others)
    ends = [texts["a-rank-leaves-early"][rank] for rank in others]
    assert any("Timed out waiting" in end for end in ends)
    assert all("Timed out waiting" in end or closed.search(end) for end in ends)
    assert "exit code 0" in texts["a-rank-leaves-early"][1] and texts["slow-rank"] == [""] * 4


# ---------------------------------------------------------------- real ranks


@pytest.mark.slow
def test_what_real_ranks_record_can_be_so():
    several, one = step.record_steps(2, [(1, 0.01), (1, 25)], count=2)
    assert [len(r["ranks"][0]["buckets"]) for r in (several, one)] == [3, 1]
    # three ranks, and elements that do not divide by three
    ring, naive, tree = all_reduce.record_all_reduces(3, elements=1000, count=1)
    assert [len(r["messages"]) for r in (ring, naive, tree)] == [12, 4, 4]
    dies = failure.record_failure(failure.DIES, 2)
    waiting, dead = (own["marks"] for own in dies["ranks"])
    assert "by peer" in waiting[0]["text"] and dead[1]["text"] == "exit code -9"
    for recording in (several, one, ring, naive, tree, dies):
        check.check(recording)


@LINUX
@pytest.mark.slow
def test_a_run_that_is_stopped_writes_nothing_and_leaves_no_process(reader):
    process = reader.start("python tools/record.py failure --folder found")
    wait_for(lambda: len(ranks_of(process)) == 4)
    os.kill(process.pid, signal.SIGTERM)
    assert reader.finish(process, timeout=60).code == 128 + signal.SIGTERM
    assert not list((reader.folder / "found").iterdir())


# ---------------------------------------------------------------- what is written


@pytest.fixture
def recorded(called, monkeypatch, tmp_path):
    """Call record.py, which finds these recordings instead of running ranks -> Result"""

    def call(flags, **recordings):
        kinds = {kind: (lambda _, kind=kind: recordings.get(kind, []), [2]) for kind in KINDS}
        monkeypatch.setattr(record, "KINDS", kinds)
        return called("tools/record.py", f"{flags} --folder {tmp_path}/found")

    return call


KINDS = list(record.KINDS)


def test_a_kind_is_recorded_anew_and_the_others_stay(recorded, tmp_path):
    ring, naive, slow, dies = (read(name) for name in (RING, NAIVE, SLOW, DIES))
    assert recorded("", failure=[dies, slow], all_reduce=[ring]).code == 0
    assert recorded("failure", failure=[slow]).code == 0
    assert {path.stem for path in (tmp_path / "found").iterdir()} == {RING, SLOW}
    assert (tmp_path / f"found/{RING}.json").read_bytes() == (FOLDER / f"{RING}.json").read_bytes()
    wrong = copy.deepcopy(naive)
    wrong["messages"].pop()
    result = recorded("all_reduce", all_reduce=[wrong])
    assert result.code == 1 and "Naive all-reduce: 4 ranks: messages" in result.err, result
    assert {path.stem for path in (tmp_path / "found").iterdir()} == {RING, SLOW}


# ---------------------------------------------------------------- damage


def put(*path_and_value):
    """-> damage: put a value, or what a function makes of the one there, where this path leads."""
    *path, key, value = path_and_value

    def damage(place):
        for key_before in path:
            place = place[key_before]
        place[key] = value(place[key]) if callable(value) else value

    return damage


def without_the_last(name):
    return lambda recording: recording[name].pop()


def go_on_too_early(recording):
    """A rank's first wait ends at once: before the slow rank has computed its gradients."""
    spans = recording["ranks"][0]["spans"]
    number = next(n for n, span in enumerate(spans) if span["what"] == "wait")
    spans[number]["to"] = spans[number + 1]["from"] = spans[number]["from"] + 1


DAMAGE = [
    (STEP, put("kind", "steps"), "$.kind: 'steps' is not one of"),
    (STEP, put("about", "note", "see /home/me"), "$.about.note: 'see /home/me' does not match"),
    (STEP, put("ranks", 1, "rank", 0), "ranks: are [0, 0]"),
    (STEP, put("end", lambda at: at + 1), "end: the last event is at"),
    (STEP, put("ranks", 0, "spans", 2, "from", lambda at: at + 3), "ranks[0]: a gap or overlap"),
    (STEP, put("ranks", 1, "marks", 0, "bucket", 2), "ranks[1].buckets: other parameters"),
    (STEP, put("ranks", 1, "buckets", 0, "joined", 0), "ranks[1].buckets[0]: joined is not"),
    (RING, put("messages", 0, "sent", 10**9), "messages[0]: received before it was sent"),
    (RING, put("messages", 0, "contents", [1, 1, 1, 1]), "messages[0]: rank"),
    (RING, put("final", 2, 1, 3, 0), "final: is not the sum of every rank once"),
    (RING, without_the_last("messages"), "messages: do not add up to the sum"),
    (SLOW, go_on_too_early, "ranks[0].spans: wait 1 ends before another begins"),
]


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGE, ids=[case[2] for case in DAMAGE])
def test_a_damaged_recording_is_refused(name, damage, says, called, tmp_path):
    recording = read(name)
    damage(recording)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(recording))
    result = called("tools/record.py", f"--check {path}")
    assert result.code == 2 and f"error: {path.name}: {says}" in result.err, result
    assert len(result.err.splitlines()[-1]) < 300


def test_a_file_that_is_no_recording_is_refused(called, tmp_path):
    (tmp_path / "half.json").write_bytes((FOLDER / f"{RING}.json").read_bytes()[:3000])
    result = called("tools/record.py", f"step --folder {tmp_path}")
    assert result.code == 2 and "half.json: " in result.err, result
    assert "there is no kind steps" in called("tools/record.py", "steps").err

"""benchmarks/record.py: what it records, and what is committed, can be so. No time is tested."""

import json
import os
import signal
from itertools import pairwise

import jsonschema
import pytest
from conftest import LINUX, ROOT, ranks_of, wait_for

from benchmarks import record
from benchmarks.recorders import all_reduce, failure, step

FOLDER = ROOT / "docs/player/recordings"
SCHEMA = json.loads((ROOT / "docs/player/recording.schema.json").read_text())


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


# ---------------------------------------------------------------- what a recording must be


def check(recording):
    """Its form is that of the schema; the rest is what no schema can say."""
    jsonschema.validate(recording, SCHEMA)
    ranks = recording["ranks"]
    assert [own["rank"] for own in ranks] == list(range(recording["choices"]["ranks"]))
    for own in ranks:
        spans = own["spans"]
        assert all(one["to"] == other["from"] for one, other in pairwise(spans)), "a gap"
        assert all(span["from"] < span["to"] for span in spans)
        moments = [spans[0]["from"], *(mark["at"] for mark in own["marks"]), spans[-1]["to"]]
        assert moments == sorted(moments), "marks in their order, and in the spans"
    assert min(own["spans"][0]["from"] for own in ranks) == 0
    assert max(own["spans"][-1]["to"] for own in ranks) == recording["end"]
    if recording["kind"] == "step":
        check_buckets(recording)
    elif recording["kind"] == "all_reduce":
        check_messages(recording)
    else:
        check_waits(recording)


def check_buckets(recording):
    """All ranks fill the same buckets with each gradient once; joined is the last rank's left."""
    filled = [[bucket["parameters"] for bucket in own["buckets"]] for own in recording["ranks"]]
    for own in recording["ranks"]:
        marked = sorted((mark["bucket"], mark["parameter"]) for mark in own["marks"])
        assert marked == sorted((n, name) for n, names in enumerate(filled[0]) for name in names)
    assert filled == filled[:1] * len(filled)
    for together in zip(*(own["buckets"] for own in recording["ranks"])):
        last = max(bucket["left"] for bucket in together)
        assert all(bucket["joined"] == last <= bucket["arrived"] for bucket in together)


def check_messages(recording):
    """Replay the messages: each carries what its sender had; in the end all ranks have the sum."""
    ranks, chunks = range(recording["choices"]["ranks"]), range(len(recording["chunks"]))
    state = [[[int(of == rank) for of in ranks] for _ in chunks] for rank in ranks]
    history = [[(0, own)] for own in state]  # of each rank: (from this moment, its chunks)
    for message in recording["messages"]:
        chunk, sent, to = message["chunk"], message["sent"], message["to"]
        since, own = history[to][-1]
        assert max(since, sent) <= message["received"], "received before it was sent"
        had = [held for since, held in history[message["from"]] if since <= sent][-1][chunk]
        assert message["contents"] == had
        new = list(own)
        new[chunk] = had
        if message["phase"].startswith("reduce"):
            new[chunk] = [a + b for a, b in zip(had, own[chunk])]
        history[to].append((message["received"], new))
    sums = [[[1 for _ in ranks] for _ in chunks] for _ in ranks]
    assert recording["final"] == sums == [own[-1][1] for own in history]


def check_waits(recording):
    """In every step that all ranks finish, no wait ends before the last rank's has begun."""
    waits = [
        [span for span in own["spans"] if span["what"] == "wait"] for own in recording["ranks"]
    ]
    for together in zip(*waits):
        assert max(wait["from"] for wait in together) <= min(wait["to"] for wait in together)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_a_committed_recording_can_be_so(path):
    recording = json.loads(path.read_text())
    check(recording)
    assert path.name == f"{recording['name']}.json"


def test_they_are_all_that_record_makes():
    kinds = [read(path.stem)["kind"] for path in FOLDER.iterdir()]
    expected = {"step": len(step.CAPS), "all_reduce": 2, "failure": len(failure.CASES)}
    assert {kind: kinds.count(kind) for kind in record.KINDS} == expected


@pytest.mark.parametrize(("cap", "overlaps"), [(25, 0), (0.01, 1)])
def test_a_step_shows_what_the_pages_say_of_it(cap, overlaps):
    """One bucket is sent after the last gradient; of several the first before it: overlap."""
    for own in read(f"step-ranks-2-channels-1-bucket-cap-mb-{cap}")["ranks"]:
        last_gradient = own["spans"][3]["from"]
        assert own["marks"][-1]["parameter"].startswith("block1.0.")
        assert len(own["buckets"]) == 1 or overlaps
        assert (own["buckets"][0]["joined"] < last_gradient) == overlaps
        assert own["buckets"][-1]["left"] >= last_gradient
        assert sum(bucket["bytes"] for bucket in own["buckets"]) == 116_136


def test_what_the_page_says_of_bytes():
    sent = {way: [0] * 4 for way in ("ring", "naive")}
    for way, of in sent.items():
        recorded = read(f"all-reduce-{way}-ranks-4")
        for message in recorded["messages"]:
            of[message["from"]] += message["bytes"] / recorded["elements"] / 4
    assert sent["ring"] == [1.5] * 4 and sum(sent["naive"]) == 6
    assert max(sent["naive"]) == sent["naive"][0] == 3


# ---------------------------------------------------------------- real ranks


@pytest.mark.slow
def test_what_real_ranks_record_can_be_so():
    several, one = step.record_steps(2, (0.01, 25), count=2)
    assert [len(r["ranks"][0]["buckets"]) for r in (several, one)] == [3, 1]
    # three ranks, and elements that do not divide by three
    ring, naive = all_reduce.record_all_reduces(3, elements=1000, count=1)
    assert [len(r["messages"]) for r in (ring, naive)] == [12, 4]
    dies = failure.record_failure(failure.DIES, 2)
    waiting, dead = (own["marks"] for own in dies["ranks"])
    assert "by peer" in waiting[0]["text"] and dead[1]["text"] == "exit code -9"
    for recording in (several, one, ring, naive, dies):
        check(recording)


@LINUX
@pytest.mark.slow
def test_a_run_that_is_stopped_writes_nothing_and_leaves_no_process(reader):
    process = reader.start("python -m benchmarks.record failure --folder found")
    wait_for(lambda: len(ranks_of(process)) == 4)
    os.kill(process.pid, signal.SIGTERM)
    assert reader.finish(process, timeout=60).code == 128 + signal.SIGTERM
    assert not list((reader.folder / "found").iterdir())

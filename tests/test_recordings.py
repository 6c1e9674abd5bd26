"""benchmarks/record.py: what it records, and what is committed, can be so. No time is tested."""

import json
from itertools import pairwise

import jsonschema
import pytest
from conftest import ROOT

from benchmarks.recorders import failure, step

FOLDER = ROOT / "docs/player/recordings"
SCHEMA = json.loads((ROOT / "docs/player/recording.schema.json").read_text())


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


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_a_committed_recording_can_be_so(path):
    recording = json.loads(path.read_text())
    check(recording)
    assert path.name == f"{recording['name']}.json"


@pytest.mark.parametrize(("cap", "overlaps"), [(25, 0), (0.01, 1)])
def test_a_step_shows_what_the_pages_say_of_it(cap, overlaps):
    """One bucket is sent after the last gradient; of several the first before it: overlap."""
    recording = FOLDER / f"step-ranks-2-bucket-cap-mb-{cap}.json"
    for own in json.loads(recording.read_text())["ranks"]:
        last_gradient = own["spans"][3]["from"]
        assert own["marks"][-1]["parameter"].startswith("0.")
        assert len(own["buckets"]) == 1 or overlaps
        assert (own["buckets"][0]["joined"] < last_gradient) == overlaps
        assert own["buckets"][-1]["left"] >= last_gradient
        assert sum(bucket["bytes"] for bucket in own["buckets"]) == 116_136


@pytest.mark.slow
def test_what_real_ranks_record_can_be_so():
    several, one = step.record_steps(2, (0.01, 25), count=2)
    assert [len(r["ranks"][0]["buckets"]) for r in (several, one)] == [3, 1]
    dies = failure.record_failure(failure.DIES, 2)
    waiting, dead = (own["marks"] for own in dies["ranks"])
    assert "by peer" in waiting[0]["text"] and dead[1]["text"] == "exit code -9"
    for recording in (several, one, dies):
        check(recording)

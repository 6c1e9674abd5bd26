"""tools/record.py: the committed recordings can be so, and damaged ones are refused.

No time is tested.
"""

import copy
import itertools
import json
import os
import signal

import pytest
from conftest import LINUX, ROOT, ranks_of, wait_for

from tools import record
from tools.recorders import all_reduce, check, failure, step

pytestmark = pytest.mark.slow

FOLDER = ROOT / "docs/player/recordings"
STEP = "step-ranks-2-channels-1-bucket-cap-mb-0.01"
RING, NAIVE = "all-reduce-ring-ranks-4", "all-reduce-naive-ranks-3"
SLOW, DIES, LEAVES = (
    f"failure-{case}-ranks-2" for case in ("slow-rank", "a-rank-dies", "a-rank-leaves-early")
)


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


STEPS = [read(path.stem) for path in sorted(FOLDER.glob("step-*.json"))]


def test_the_committed_recordings_can_be_so(called):
    result = called("tools/record.py", "--check")
    assert result.code == 0 and result.out.startswith(f"{len(read('index'))} recordings"), result


def test_there_are_all_that_record_makes():
    """A reader can choose any of these, and some are linked to."""
    index = read("index")
    kinds = [entry["kind"] for entry in index]
    assert kinds == sorted(kinds, key=list(record.KINDS).index)
    per_ranks = {"step": len(step.NETS), "all_reduce": 3, "failure": 3}
    for kind, (_, ranks) in record.KINDS.items():
        choices = [entry["choices"] for entry in index if entry["kind"] == kind]
        for number in ranks:
            assert sum(c["ranks"] == number for c in choices) == per_ranks[kind]


@pytest.mark.parametrize("recording", STEPS, ids=lambda recording: recording["name"])
def test_a_step_shows_what_the_pages_say_of_it(recording):
    """The first layer's gradients come last; a single bucket leaves after all, others before."""
    choices = recording["choices"]
    whole = choices["bucket_cap_mb"] == 25
    for own in recording["ranks"]:
        last_gradient = own["spans"][3]["from"]
        assert own["marks"][-1]["parameter"].startswith("block1.0.")
        assert (len(own["buckets"]) == 1) == whole
        if choices["channels"] == 1:
            assert sum(bucket["bytes"] for bucket in own["buckets"]) == 116_136
        for bucket in own["buckets"][:-1]:
            assert bucket["left"] < last_gradient
        assert own["buckets"][-1]["left"] >= last_gradient


# ---------------------------------------------------------------- real ranks


def test_a_recorded_step_can_be_so():
    several, one = step.record_steps(2, [(1, 0.01), (1, 25)], count=2)
    for recording, buckets in ((several, 3), (one, 1)):
        check.check(recording)
        test_a_step_shows_what_the_pages_say_of_it(recording)
        assert [len(own["buckets"]) for own in recording["ranks"]] == [buckets] * 2


def test_recorded_all_reduces_can_be_so():
    """Three ranks, and elements that do not divide by three."""
    for recording in all_reduce.record_all_reduces(3, elements=1000, count=1):
        check.check(recording)
        ring = recording["choices"]["way"] == "ring"
        assert len(recording["messages"]) == (12 if ring else 4)


def test_a_recorded_failure_can_be_so():
    recording = check.check(failure.record_failure(failure.DIES, 2))
    waiting, dead = (own["marks"] for own in recording["ranks"])
    assert "by peer" in waiting[0]["text"] and dead[1]["text"] == "exit code -9"


@LINUX
def test_a_run_that_is_stopped_writes_nothing_and_leaves_no_process(reader):
    process = reader.start("python tools/record.py failure --folder found")
    wait_for(lambda: len(ranks_of(process)) == 2)
    os.kill(process.pid, signal.SIGTERM)
    assert reader.finish(process, timeout=60).code == 128 + signal.SIGTERM
    assert not list((reader.folder / "found").iterdir())


# ---------------------------------------------------------------- what is written


@pytest.fixture
def found(reader):
    """A folder for recordings, which is not there yet."""
    return reader.folder / "found"


@pytest.fixture
def recorded(called, monkeypatch):
    """Call record.py, which finds these recordings in the place of ranks -> Result"""

    def call(flags, **recordings):
        kinds = {
            kind: (lambda n, kind=kind: recordings.get(kind, []), [2]) for kind in record.KINDS
        }
        monkeypatch.setattr(record, "KINDS", kinds)
        return called("tools/record.py", flags)

    return call


def test_a_kind_is_recorded_anew_and_the_others_stay(recorded, found):
    ring, naive, slow, dies = (read(name) for name in (RING, NAIVE, SLOW, DIES))
    first = recorded(f"--folder {found}", failure=[dies, slow], all_reduce=[ring])
    assert first.code == 0, first
    kept = (found / f"{RING}.json").read_bytes()
    assert kept == (FOLDER / f"{RING}.json").read_bytes()
    assert recorded(f"failure --folder {found}", failure=[slow]).code == 0
    names = {path.name for path in found.iterdir()}
    assert names == {f"{RING}.json", f"{SLOW}.json", "index.json"}
    assert (found / f"{RING}.json").read_bytes() == kept
    assert recorded(f"--check --folder {found}").code == 0
    assert recorded(f"all_reduce --folder {found}", all_reduce=[naive, ring]).code == 0
    index = json.loads((found / "index.json").read_text())
    assert [entry["file"][:-5] for entry in index] == [RING, NAIVE, SLOW]


def test_nothing_is_written_unless_all_pass_the_check(recorded, found):
    wrong = damaged(RING, lambda r: r["messages"].pop())
    result = recorded(f"--folder {found}", step=[read(STEP)], all_reduce=[wrong])
    assert result.code == 1 and "Ring all-reduce: 4 ranks: " in result.err, result
    assert list(found.iterdir()) == []


def test_bad_flags(called, tmp_path):
    result = called("tools/record.py", "steps")
    assert result.code == 2 and "there is no kind steps" in result.err, result
    (tmp_path / "file").touch()
    result = called("tools/record.py", f"--folder {tmp_path}/file")
    assert result.code == 2 and "File exists" in result.err, result
    (tmp_path / "half.json").write_text("{")
    result = called("tools/record.py", f"--folder {tmp_path}")
    assert result.code == 2 and "half.json: is not JSON" in result.err, result


# ---------------------------------------------------------------- damage


def damaged(name, damage):
    recording = copy.deepcopy(read(name))
    damage(recording)
    return recording


def put(*path_and_value):
    """-> damage: put a value where this path of keys leads."""
    *path, key, value = path_and_value

    def damage(place):
        for key_before in path:
            place = place[key_before]
        place[key] = value(place[key]) if callable(value) else value

    return damage


def without(*path):
    """-> damage: leave out what is at the end of a path."""

    def damage(place):
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return damage


def swap_first_messages(recording):
    messages = recording["messages"]
    messages[0], messages[1] = messages[1], messages[0]


def late(microseconds):
    return lambda at: at + microseconds


def start_at_1(recording):
    for own in recording["ranks"]:
        own["spans"][0]["from"] += 1


def mark_in_forward(recording):
    recording["ranks"][0]["marks"][0]["at"] = recording["ranks"][0]["spans"][1]["from"]


def shrink_a_parameter(recording):
    own = recording["ranks"][1]
    own["marks"][0]["bytes"] -= 4
    own["buckets"][0]["bytes"] -= 4


def merge_buckets(recording):
    own = recording["ranks"][1]
    last = own["buckets"].pop()
    own["buckets"][-1] |= {key: last[key] for key in ("left", "joined", "arrived")}
    for key in ("parameters", "bytes"):
        own["buckets"][-1][key] += last[key]
    for mark in own["marks"]:
        mark["bucket"] = min(mark["bucket"], len(own["buckets"]) - 1)


def repeat_last_message(recording):
    recording["messages"].append(recording["messages"][-1])


def cut_a_rank_short(recording):
    ranks = recording["ranks"]
    own = next(own for own in ranks if own["spans"][-1]["to"] < recording["end"])
    del own["spans"][2:]


def exit_of_rank_0(recording):
    end = recording["ranks"][0]["spans"][-1]["to"]
    recording["ranks"][0]["marks"].append({"at": end, "what": "exit", "text": "exit code 1"})


def die_in_step_1(recording):
    own = recording["ranks"][1]
    own["marks"][0]["at"] = own["spans"][0]["to"]


def leave_last(recording):
    own, late = recording["ranks"][1], recording["end"] - 1
    own["marks"][0]["at"] = own["spans"][-2]["to"] = own["spans"][-1]["from"] = late


def fail_before_waiting(recording):
    own = recording["ranks"][0]
    own["marks"][0]["at"] = own["spans"][0]["to"]


def go_on_too_early(recording):
    """A rank's first wait ends at once: before the slow rank has computed its gradients."""
    spans = recording["ranks"][0]["spans"]
    number = next(n for n, span in enumerate(spans) if span["what"] == "wait")
    spans[number]["to"] = spans[number + 1]["from"] = spans[number]["from"] + 1


DAMAGE = [
    # names, format, unit
    (STEP, put("kind", "steps"), "kind: 'steps' is not one of"),
    (STEP, without("kind"), "recording: 'kind' is a required property"),
    (STEP, put("format", 2), "format: 1 was expected"),
    (STEP, put("unit", "ms"), "unit: 'microseconds' was expected"),
    (STEP, put("name", "other"), "name: is not the file's"),
    (STEP, without("about", "machine"), "about: 'machine' is a required property"),
    (STEP, put("about", "note", "see /home/me"), "about.note: 'see /home/me' does not match"),
    (STEP, put("ranks", 1, "rank", 0), "ranks: are [0, 0]"),
    (STEP, put("choices", "ranks", 10**12), "ranks: are 2, not 1000000000000"),
    (STEP, put("end", late(1)), "end: the last event is at"),
    (STEP, start_at_1, "ranks: the first event is at"),
    (STEP, put("end", 2.0), "end: 2.0 is not of type 'integer'"),
    (STEP, put("messages", [{}]), "messages: Expected at most 0 items"),
    (STEP, put("ranks", {}), "ranks: {} is not of type 'array'"),
    # a step
    (STEP, put("ranks", 0, "spans", 1, "what", "forwards"), "ranks[0].spans[1].what: 'forwards'"),
    (STEP, put("ranks", 0, "spans", 1, "what", "data"), "ranks[0].spans: are ['data', 'data'"),
    (STEP, put("ranks", 0, "spans", 2, "from", late(3)), "ranks[0].spans[2].from: 3 µs of gap"),
    (STEP, put("ranks", 0, "spans", 2, "from", late(-3)), "spans[2].from: 3 µs of overlap"),
    (STEP, put("ranks", 0, "spans", 4, "to", 0), "ranks[0].spans[4]: ends before it begins"),
    (STEP, without("ranks", 0, "marks", -1), "ranks[0].spans[3]: exposed before, or after, "),
    (STEP, put("ranks", 0, "marks", 0, "at", late(99_999)), "ranks[0].marks: are not in order"),
    (STEP, mark_in_forward, "ranks[0].marks: a gradient outside backward"),
    (STEP, put("ranks", 0, "marks", 0, "bytes", 44), "ranks[0].buckets[0].bytes: its gradients"),
    (STEP, put("ranks", 0, "marks", 0, "bucket", 2), "ranks[0].buckets[0]: linear."),
    (STEP, without("ranks", 1, "buckets", 0, "parameters", 0), "ranks[1].buckets: ['linear."),
    (STEP, put("ranks", 1, "marks", 0, "parameter", "block1.0.bias"), "more than once"),
    (STEP, without("ranks", 0, "buckets", 2), "ranks[0].buckets: ["),
    (STEP, put("ranks", 0, "buckets", 1, "bucket", 7), "ranks[0].buckets[1].bucket: is 7, not 1"),
    (STEP, put("ranks", 1, "buckets", 0, "left", 0), "buckets[0].left: before its last gradient"),
    (STEP, put("ranks", 1, "buckets", 0, "joined", late(1)), "joined: the last rank's left at"),
    (STEP, put("ranks", 1, "buckets", 0, "arrived", late(99_999)), "arrived: after backward's end"),
    (STEP, put("ranks", 1, "buckets", 2, "parameters", sorted), "buckets: other parameters"),
    (STEP, merge_buckets, "ranks[1].buckets: other parameters"),
    (STEP, shrink_a_parameter, "ranks[1].buckets: other parameters, or bytes, than rank 0"),
    (STEP, put("ranks", 1, "buckets", 0, "arrived", 0), "arrived: before all had joined"),
    # an all-reduce
    (RING, put("messages", 3, "received", 0), "messages: are not in the order of received"),
    (RING, put("messages", 0, "sent", lambda at: at + 10**6), "messages[0].received: before it"),
    (RING, put("messages", 4, "bytes", lambda size: size - 1), "messages[4].bytes: chunk"),
    (RING, put("messages", 0, "contents", [1, 1, 1, 1]), "messages[0].contents: rank"),
    (RING, put("messages", 0, "contents", [1, 0]), "messages[0].contents: of 2 ranks, not 4"),
    (RING, put("messages", 0, "phase", "broadcast"), "messages[0].phase: ring has"),
    (RING, put("messages", 0, "phase", "all-gather"), "messages["),
    (RING, put("messages", 0, "to", lambda to: (to + 1) % 4), "no way of a ring from rank"),
    (RING, put("messages", 0, "to", 4), "messages[0]: from rank"),
    (RING, put("messages", 0, "chunk", 4), "messages[0].chunk: there is no chunk 4"),
    (RING, without("messages", -1), "final["),
    (RING, repeat_last_message, "bytes in all, not 2(N - 1) vectors"),
    (RING, cut_a_rank_short, ": outside the spans of rank"),
    (RING, swap_first_messages, "messages: are not in the order of received"),
    (RING, put("chunks", 1, 0, 0), "chunks: a gap or an overlap"),
    (RING, put("elements", 7), "chunks: end at"),
    (RING, put("final", 2, 1, 3, 0), "final[2]: is not the sum of every rank once"),
    (RING, without("final", 3), "final: has 3 ranks"),
    (RING, put("ranks", 1, "spans", 0, "what", "compute"), "ranks[1].spans[0].what: 'compute'"),
    (RING, put("choices", "way", "tree"), "chunks: are 4, not 1"),
    (NAIVE, put("choices", "way", "ring"), "chunks: are 1, not 3"),
    (NAIVE, put("messages", 0, "from", lambda rank: 3 - rank), "messages["),
    (NAIVE, without("messages"), "recording: 'messages' is a required property"),
    # failures
    (SLOW, put("choices", "case", "a rank dies"), "ranks[1]: {'slow'} in a recording of"),
    (SLOW, put("ranks", 0, "spans", 0, "what", "slow"), "ranks: [0, 1] with 'slow', not one"),
    (SLOW, exit_of_rank_0, "ranks[0].marks: nobody dies, leaves or fails"),
    (DIES, put("ranks", 0, "marks", 0, "text", "in /pytorch/gloo"), "ranks[0].marks[0].text: "),
    (DIES, put("ranks", 0, "marks", 0, "text", "two\nlines"), "ranks[0].marks[0].text: "),
    (DIES, put("ranks", 1, "marks", 1, "text", "exit code 0"), "do not end in exit code -9"),
    (DIES, put("ranks", 0, "marks", 1, "text", "exit code 0"), "exit code 0, not exit code 1"),
    (DIES, die_in_step_1, "ranks[1].marks[0]: it is not gone from then on"),
    (DIES, fail_before_waiting, "ranks[0].marks: outside the span of the error"),
    (DIES, put("ranks", 1, "spans", -1, "what", "compute"), "ranks[1].spans: not gone"),
    (DIES, put("ranks", 1, "marks", 0, "what", "leaves"), "ranks[1]: {'leaves'} in a recording"),
    (SLOW, go_on_too_early, "ranks[0].spans: wait 1 ends before another begins"),
    (LEAVES, leave_last, "ranks[0].spans: an error before its cause"),
    (LEAVES, put("ranks", 0, "spans", -2, "what", "compute"), "ranks[0].spans: end in"),
    (LEAVES, put("ranks", 0, "marks", 0, "what", "dies"), "ranks[0]: {'dies'} in a recording"),
    (LEAVES, without("ranks", 0, "marks", 0), "ranks[0].marks: are ['exit'], not error and exit"),
]


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGE, ids=[case[2] for case in DAMAGE])
def test_a_damaged_recording_is_refused(name, damage, says, called, tmp_path):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(damaged(name, damage)))
    refused(called("tools/record.py", f"--check {path}"), f"{path.name}: ", says)


def refused(result, *says):
    """One line on stderr that names the file and the place, and exit code 2."""
    assert result.code == 2 and result.out == "" and result.err.count("\n") == 1, result
    assert all(words in result.err for words in says) and len(result.err) < 300, result


def test_each_rank_of_a_ring_sends_as_much_as_the_others():
    """Here two ranks have swapped a message, so the sum over all ranks is right."""
    recording = read(RING)
    recording["messages"][0]["from"] = (recording["messages"][0]["from"] + 1) % 4
    with pytest.raises(check.Damaged, match="bytes from rank"):
        check.check_bytes(recording)


def places(value, path=()):
    """The path of keys to everything in a recording."""
    keys = range(len(value)) if isinstance(value, list) else value
    for key in keys if isinstance(value, list | dict) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


@pytest.mark.parametrize("name", [STEP, NAIVE, SLOW, DIES])
def test_no_damage_ends_in_a_traceback(name):
    """Something else in every place, or nothing: it is refused, or can be so (a time, a text)."""
    others = itertools.cycle([None, -1, 0, 2.0, 10**12, "", [], {}, True, [[]], "x"])
    paths = list(places(read(name)))
    damages = [put(*path, other) for path, other in zip(paths, others)]
    damages += [without(*path) for path in paths]
    refusals = 0
    for damage in damages:
        try:
            check.check(damaged(name, damage))
        except check.Damaged as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 0.8 * len(damages)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"hello", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        ((FOLDER / f"{RING}.json").read_bytes()[:3000], "is not JSON"),
        (b'{"kind": "step", "end": NaN}', "is not JSON"),
        (b"[]", "recording: [] is not of type 'object'"),
        (b"{}", "recording: 'kind' is a required property"),
        ((FOLDER / f"{RING}.json").read_bytes() + 40_000 * b" ", "file: "),
    ],
    ids=["empty", "text", "not UTF-8", "truncated", "NaN", "list", "nothing", "too large"],
)
def test_a_file_that_is_no_recording_is_refused(content, says, called, tmp_path):
    path = tmp_path / f"{RING}.json"
    path.write_bytes(content)
    refused(called("tools/record.py", f"--check {path}"), f"{path.name}: ", says)


def test_a_file_that_is_not_there_is_refused(called):
    refused(called("tools/record.py", "--check none.json"), "none.json: No such file")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda index: index.pop(), f"{NAIVE}.json is missing"),
        (lambda index: index.append(index[0]), "[2]: no recording is so, or it is there twice"),
        (put(0, "title", "Other"), "[0]: no recording is so"),
        (put(0, "file", "other.json"), "[0]: no recording is so"),
        (lambda index: index.clear(), f"{NAIVE}.json is missing"),
    ],
)
def test_a_damaged_index_is_refused(damage, says, recorded, found):
    recorded(f"--folder {found}", all_reduce=[read(RING), read(NAIVE)])
    index = json.loads((found / "index.json").read_text())
    damage(index)
    (found / "index.json").write_text(json.dumps(index))
    refused(recorded(f"--check --folder {found}"), "index.json: ", says)


def test_a_folder_without_an_index_is_refused(called, found):
    refused(called("tools/record.py", f"--check --folder {found}"), "index.json: No such file")


@pytest.mark.parametrize(("channels", "cap", "overlaps"), [(1, 25, 0), (1, 0.01, 1), (4, 0.2, 1)])
def test_overlap_is_what_the_page_of_the_player_says(channels, cap, overlaps):
    """Is the first bucket's all-reduce on its way before the last gradient, on both ranks?"""
    name = f"step-ranks-2-channels-{channels}-bucket-cap-mb-{cap}.json"
    for own in json.loads((check.FOLDER / name).read_text())["ranks"]:
        last_gradient = own["spans"][3]["from"]
        assert (own["buckets"][0]["joined"] < last_gradient) == overlaps

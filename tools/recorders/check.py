"""Can a recording of tools/record.py be so? python tools/record.py --check

Its shape is docs/player/recording.schema.json. Checked here is what no schema can say: spans follow
each other without a gap, a bucket is all-reduced from the moment the last rank has joined, messages
add up to the sum, and no wait for the other ranks ends before the last of them has come.
"""

import json
from itertools import pairwise
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

PLAYER = Path(__file__).resolve().parents[2] / "docs" / "player"
FOLDER = PLAYER / "recordings"
SCHEMA = json.loads((PLAYER / "recording.schema.json").read_text(encoding="utf-8"))


class Damaged(Exception):
    """What is wrong with a recording, and where, in one line."""


def check_files(folder: Path) -> list[dict]:
    """-> the recordings in a folder. Raises Damaged."""
    return [check_file(path) for path in sorted(folder.glob("*.json"))]


def check_file(path: Path) -> dict:
    """-> the recording in a file. Raises Damaged, with the file's name."""
    try:
        recording = check(json.loads(path.read_text(encoding="utf-8")))
        expect(f"{recording['name']}.json" == path.name, "name", "is not the file's")
    except (OSError, ValueError, Damaged) as error:  # ValueError: truncated, or not UTF-8
        raise Damaged(f"{path.name}: {error}") from None
    return recording


def check(recording: dict) -> dict:
    """-> the recording. Raises Damaged unless it can be so."""
    error = best_match(Draft202012Validator(SCHEMA).iter_errors(recording))
    if error:  # the whole message may quote half of the recording
        raise Damaged(f"{error.json_path}: {error.message[-150:]}")
    numbers = [own["rank"] for own in recording["ranks"]]
    expect(numbers == list(range(recording["choices"]["ranks"])), "ranks", f"are {numbers}")
    check_spans(recording)
    if recording["kind"] == "step":
        check_buckets(recording["ranks"])
    elif recording["kind"] == "all_reduce":
        check_messages(recording)
    else:
        check_waits(recording["ranks"])
    return recording


def expect(held: bool, where: str, what: str) -> None:
    if not held:
        raise Damaged(f"{where}: {what}")


def check_spans(recording: dict) -> None:
    """Each rank's spans follow each other without a gap, its marks lie in them, all in 0 to end."""
    for rank, own in enumerate(recording["ranks"]):
        spans, where = own["spans"], f"ranks[{rank}]"
        for before, after in pairwise(spans):
            expect(before["to"] == after["from"], where, f"a gap or overlap at {after['from']} µs")
        expect(all(span["from"] < span["to"] for span in spans), where, "a span has no length")
        moments = [spans[0]["from"], *(mark["at"] for mark in own["marks"]), spans[-1]["to"]]
        expect(moments == sorted(moments), where, "marks are not in order, or outside the spans")
    expect(min(own["spans"][0]["from"] for own in recording["ranks"]) == 0, "ranks", "start late")
    last = max(own["spans"][-1]["to"] for own in recording["ranks"])
    expect(last == recording["end"], "end", f"the last event is at {last}")


def check_buckets(ranks: list[dict]) -> None:
    """All ranks fill the same buckets with each gradient once; joined is the last rank's left."""
    filled = [[bucket["parameters"] for bucket in own["buckets"]] for own in ranks]
    for rank, own in enumerate(ranks):
        where = f"ranks[{rank}].buckets"
        expect(filled[rank] == filled[0], where, "other parameters than rank 0")
        marked = sorted((mark["bucket"], mark["parameter"]) for mark in own["marks"])
        wanted = sorted((n, name) for n, names in enumerate(filled[rank]) for name in names)
        expect(marked == wanted, where, "other parameters than the marks")
    for number, together in enumerate(zip(*(own["buckets"] for own in ranks))):
        last = max(bucket["left"] for bucket in together)
        for rank, bucket in enumerate(together):
            where = f"ranks[{rank}].buckets[{number}]"
            expect(bucket["joined"] == last, where, f"joined is not {last}, the last rank's left")
            expect(last <= bucket["arrived"], where, "arrived before all ranks had joined")


def check_messages(recording: dict) -> None:
    """Replay the messages: each carries what its sender had; in the end all ranks have the sum."""
    ranks, chunks = range(recording["choices"]["ranks"]), range(len(recording["chunks"]))
    state = [[[int(of == rank) for of in ranks] for _ in chunks] for rank in ranks]
    history = [[(0, own)] for own in state]  # of each rank: (from this moment, its chunks)
    for number, message in enumerate(recording["messages"]):
        where, chunk, sent = f"messages[{number}]", message["chunk"], message["sent"]
        source, to = message["from"], message["to"]
        expect(source in ranks and to in ranks and chunk in chunks, where, "no such rank or chunk")
        since, own = history[to][-1]
        expect(max(since, sent) <= message["received"], where, "received before it was sent")
        had = [chunks for since, chunks in history[source] if since <= sent][-1][chunk]
        expect(message["contents"] == had, where, f"rank {source} had {had}")
        new = list(own)
        new[chunk] = had
        if message["phase"].startswith("reduce"):
            new[chunk] = [a + b for a, b in zip(had, own[chunk])]
        history[to].append((message["received"], new))
    sums = [[[1 for _ in ranks] for _ in chunks] for _ in ranks]
    expect(recording["final"] == sums, "final", "is not the sum of every rank once")
    expect([own[-1][1] for own in history] == sums, "messages", "do not add up to the sum")


def check_waits(ranks: list[dict]) -> None:
    """In every step that all ranks finish, no wait ends before the last rank's has begun."""
    waits = [[span for span in own["spans"] if span["what"] == "wait"] for own in ranks]
    for step, together in enumerate(zip(*waits), start=1):
        last = max(wait["from"] for wait in together)
        for rank, wait in enumerate(together):
            where = f"ranks[{rank}].spans"
            expect(last <= wait["to"], where, f"wait {step} ends before another begins, at {last}")

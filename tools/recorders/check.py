"""Can a recording of tools/record.py be so? From the JSON alone: python tools/record.py --check"""

import json
import sys
from itertools import pairwise
from pathlib import Path

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import best_match

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "player" / "recordings"
MOST_BYTES, MOST_BYTES_TOGETHER = 40_000, 300_000
PHASES = ["data", "forward", "backward", "exposed", "optimizer"]


class Damaged(Exception):
    """What is wrong with a recording, and where, in one line."""


def main(paths: list[Path], folder: Path = FOLDER) -> None:
    """Check these files, or all of a folder with its index. Exits with 2 at the first damaged."""
    try:
        recordings = [check_file(path) for path in paths] or check_files(folder)
        if not paths:
            check_index(recordings, folder)
    except Damaged as error:
        print(f"record: error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{len(recordings)} recordings, nothing is wrong with them")


def check_files(folder: Path) -> list[dict]:
    """-> the recordings in a folder, without the index. Raises Damaged."""
    return [check_file(path) for path in sorted(folder.glob("*.json")) if path.name != "index.json"]


def check_file(path: Path) -> dict:
    """-> the recording in a file. Raises Damaged, with the file's name."""
    recording = read(path)
    try:
        check(recording)
        expect(f"{recording['name']}.json" == path.name, "name", "is not the file's")
        size = path.stat().st_size
        expect(size <= MOST_BYTES, "file", f"{size:,} bytes, more than {MOST_BYTES:,}")
    except Damaged as error:
        raise Damaged(f"{path.name}: {error}") from None
    return recording


def check_index(recordings: list[dict], folder: Path) -> None:
    """Does the index list the recordings of its folder, each once? Raises Damaged."""
    index = read(folder / "index.json")
    keys = ("kind", "title", "choices")
    wanted = [{"file": f"{r['name']}.json"} | {key: r[key] for key in keys} for r in recordings]
    for number, entry in enumerate(index if isinstance(index, list) else [index]):
        if entry not in wanted:
            raise Damaged(f"index.json: [{number}]: no recording is so, or it is there twice")
        wanted.remove(entry)
    if wanted or not recordings:
        missing = wanted[0]["file"] if wanted else "every recording"
        raise Damaged(f"index.json: {missing} is missing")
    size = sum(path.stat().st_size for path in folder.glob("*.json"))
    if size > MOST_BYTES_TOGETHER:
        raise Damaged(f"{folder.name}: {size:,} bytes, more than {MOST_BYTES_TOGETHER:,}")


def read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=int)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None
    except ValueError as error:  # truncated, or not UTF-8, or a number that is none
        raise Damaged(f"{path.name}: is not JSON: {error}") from None


def check(recording: dict) -> dict:
    """-> the recording. Raises Damaged unless it can be so."""
    error = best_match(Validator(SCHEMA).iter_errors(recording))
    if error:
        short = len(error.message) < 120  # a long one quotes half of the recording
        rule = f"{error.validator}: {error.validator_value}"[:120]
        raise Damaged(f"{place(error)}: {error.message if short else rule}")
    ranks = recording["choices"]["ranks"]
    numbers = [own["rank"] for own in recording["ranks"]]
    expect(len(numbers) == ranks, "ranks", f"are {len(numbers)}, not {ranks}")
    expect(numbers == list(range(ranks)), "ranks", f"are {numbers}, not 0 to {ranks - 1}")
    check_times(recording)
    CHECKS[recording["kind"]](recording)
    return recording


def expect(held: bool, where: str, what: str) -> None:
    if not held:
        raise Damaged(f"{where}: {what}")


def place(error) -> str:
    """Where a schema found it, as ranks[0].spans[2].what."""
    where = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in error.absolute_path)
    return where.removeprefix(".") or "recording"


# ---------------------------------------------------------------- shape: names, types


def an_object(**properties) -> dict:
    """An object with these properties and no others; those whose name ends in _ may be missing."""
    return {
        "type": "object",
        "required": [name for name in properties if not name.endswith("_")],
        "properties": {name.removesuffix("_"): value for name, value in properties.items()},
        "additionalProperties": False,
    }


def a_list(items: dict, least: int = 0) -> dict:
    return {"type": "array", "items": items, "minItems": least}


# JSON Schema takes 2.0 for an integer.
whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
Validator = validators.extend(Draft202012Validator, type_checker=whole)

TIME = COUNT = {"type": "integer", "minimum": 0}
MORE_THAN_0 = {"type": "integer", "minimum": 1}
# On one line, and without a place on somebody's disk.
TEXT = {"type": "string", "pattern": r"^(?!.*(^|[\s\[(])[/~][\w.])[^\n]+$"}
NAME = {"type": "string", "pattern": r"^[\w.-]+$"}
WAY = {"enum": ["ring", "naive", "tree"]}
CASE = {"enum": ["slow rank", "a rank dies", "a rank leaves early"]}
CONTENTS = a_list(COUNT, 2)
ABOUT = an_object(
    torch=TEXT, backend=TEXT, machine=TEXT, date={"pattern": r"^\d{4}-\d\d-\d\d$"}, command=TEXT,
    note=TEXT,
)  # fmt: skip
GRADIENT = an_object(
    at=TIME, what={"const": "gradient"}, parameter=NAME, bytes=MORE_THAN_0, bucket=COUNT
)
BUCKET = an_object(
    bucket=COUNT, parameters=a_list(NAME, 1), bytes=MORE_THAN_0, left=TIME, joined=TIME,
    arrived=TIME,
)  # fmt: skip
MESSAGE = {
    "from": COUNT, "to": COUNT, "bytes": MORE_THAN_0, "chunk": COUNT,
    "phase": {"enum": ["reduce-scatter", "all-gather", "reduce", "broadcast"]},
    "sent": TIME, "received": TIME, "contents": CONTENTS,
}  # fmt: skip


def of_kind(kind: str, choices: dict, spans: list[str], mark: dict, rank=(), **more) -> dict:
    """The shape of a recording of a kind: what its ranks do, its marks, and what only it has."""
    span = {"what": {"enum": spans}, "from": TIME, "to": TIME, "text_": TEXT}
    own = {"rank": COUNT, "spans": a_list(an_object(**span), 1), "marks": a_list(mark)}
    return an_object(
        format={"const": 1},
        name=NAME,
        kind={"const": kind},
        title=TEXT,
        choices=an_object(ranks={"type": "integer", "minimum": 2}, **choices),
        about=ABOUT,
        unit={"const": "microseconds"},
        end=TIME,
        ranks=a_list(an_object(**own, **dict(rank)), 2),
        messages=a_list(an_object(**MESSAGE) if kind == "all_reduce" else False),
        **more,
    )


NUMBER = {"type": "number", "exclusiveMinimum": 0}
SHAPES = {
    "step": of_kind(
        "step",
        {"channels": MORE_THAN_0, "bucket_cap_mb": NUMBER},
        PHASES,
        GRADIENT,
        {"buckets": a_list(BUCKET, 1)},
    ),
    "all_reduce": of_kind(
        "all_reduce",
        {"way": WAY},
        ["wait", "send", "receive", "add"],
        False,
        elements=MORE_THAN_0,
        chunks=a_list({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}, 1),
        final=a_list(a_list(CONTENTS, 1), 2),
    ),
    "failure": of_kind(
        "failure",
        {"case": CASE},
        ["compute", "wait", "slow", "error", "gone"],
        an_object(at=TIME, what={"enum": ["leaves", "dies", "error", "exit"]}, text=TEXT),
    ),
}
# First the kind: a recording of none has no shape to be compared with.
SCHEMA = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"enum": list(SHAPES)}},
    "allOf": [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": shape}
        for kind, shape in SHAPES.items()
    ],
}


# ---------------------------------------------------------------- times


def check_times(recording: dict) -> None:
    """Spans without a gap or an overlap, marks in order, from 0 to the end."""
    for rank, own in enumerate(recording["ranks"]):
        where = f"ranks[{rank}]"
        for number, span in enumerate(own["spans"]):
            expect(span["from"] < span["to"], f"{where}.spans[{number}]", "ends before it begins")
        for number, (before, span) in enumerate(pairwise(own["spans"]), start=1):
            apart = span["from"] - before["to"]
            what = f"{abs(apart)} µs of {'gap' if apart > 0 else 'overlap'} with the one before"
            expect(apart == 0, f"{where}.spans[{number}].from", what)
        moments = [own["spans"][0]["from"], *(mark["at"] for mark in own["marks"])]
        moments.append(own["spans"][-1]["to"])
        in_order(moments, f"{where}.marks", "are not in order, or outside the spans")
    firsts = [own["spans"][0]["from"] for own in recording["ranks"]]
    lasts = [own["spans"][-1]["to"] for own in recording["ranks"]]
    expect(min(firsts) == 0, "ranks", f"the first event is at {min(firsts)}, not at 0")
    expect(max(lasts) == recording["end"], "end", f"the last event is at {max(lasts)}")


def in_order(moments: list[int], where: str, what: str) -> None:
    expect(moments == sorted(moments), where, f"{what}: {moments}"[:150])


# ---------------------------------------------------------------- one step of DDP


def check_step(recording: dict) -> None:
    """Every parameter is in one bucket, which leaves after its gradients and arrives after all."""
    ranks = recording["ranks"]
    for rank, own in enumerate(ranks):
        where = f"ranks[{rank}]"
        phases = [span["what"] for span in own["spans"]]
        expect(phases == PHASES, f"{where}.spans", f"are {phases}")
        _, _, backward, exposed, _ = own["spans"]
        moments = [backward["from"], *(mark["at"] for mark in own["marks"]), exposed["from"]]
        in_order(moments, f"{where}.marks", "a gradient outside backward")
        expect(moments[-2] == exposed["from"], f"{where}.spans[3]", "exposed before, or after, "
               "the last gradient")  # fmt: skip
        check_parameters(own, where)
        for n, bucket in enumerate(own["buckets"]):
            check_bucket(n, bucket, own, f"{where}.buckets[{n}]")
    check_joined([own["buckets"] for own in ranks])


def check_parameters(own: dict, where: str) -> None:
    """The gradients' parameters and the buckets' are the same, each once."""
    marked = [mark["parameter"] for mark in own["marks"]]
    filled = [name for bucket in own["buckets"] for name in bucket["parameters"]]
    for names, part in ((marked, "marks"), (filled, "buckets")):
        twice = {name for name in names if names.count(name) > 1}
        expect(not twice, f"{where}.{part}", f"{twice} more than once")
    differ = sorted(set(marked) ^ set(filled))
    expect(not differ, f"{where}.buckets", f"{differ} not both in a bucket and in marks")


def check_bucket(n: int, bucket: dict, own: dict, where: str) -> None:
    """A bucket of a rank: number, gradients, bytes, and its way."""
    expect(bucket["bucket"] == n, f"{where}.bucket", f"is {bucket['bucket']}, not {n}")
    gradients = [mark for mark in own["marks"] if mark["parameter"] in bucket["parameters"]]
    for mark in gradients:
        expect(mark["bucket"] == n, where, f"{mark['parameter']} is marked in {mark['bucket']}")
    size = sum(mark["bytes"] for mark in gradients)
    expect(bucket["bytes"] == size, f"{where}.bytes", f"its gradients have {size}")
    ready = max(mark["at"] for mark in gradients)
    expect(ready <= bucket["left"], f"{where}.left", f"before its last gradient, at {ready}")
    expect(bucket["joined"] <= bucket["arrived"], f"{where}.arrived", "before all had joined")
    expect(bucket["arrived"] <= own["spans"][3]["to"], f"{where}.arrived", "after backward's end")


def check_joined(ranks: list[list[dict]]) -> None:
    """All ranks have the same buckets, which have joined when the last rank's has left."""
    filled = [[(bucket["parameters"], bucket["bytes"]) for bucket in own] for own in ranks]
    for rank, own in enumerate(filled):
        expect(
            own == filled[0], f"ranks[{rank}].buckets", "other parameters, or bytes, than rank 0"
        )
    for n, together in enumerate(zip(*ranks)):
        last = max(bucket["left"] for bucket in together)
        for rank, bucket in enumerate(together):
            where = f"ranks[{rank}].buckets[{n}].joined"
            expect(bucket["joined"] == last, where, f"the last rank's left at {last}")


# ---------------------------------------------------------------- an all-reduce


def check_all_reduce(recording: dict) -> None:
    """Play the messages: each has what its sender had by then, and at the end all have all."""
    ranks, way = recording["choices"]["ranks"], recording["choices"]["way"]
    chunks, messages = recording["chunks"], recording["messages"]
    ends = [0, *(stop for _, stop in chunks)]
    starts = [start for start, _ in chunks]
    expect(starts == ends[:-1] and starts == sorted(set(starts)), "chunks", "a gap or an overlap")
    expect(ends[-1] == recording["elements"], "chunks", f"end at {ends[-1]}")
    number = ranks if way == "ring" else 1
    expect(len(chunks) == number, "chunks", f"are {len(chunks)}, not {number}")
    state = [[[int(r == rank) for r in range(ranks)] for _ in chunks] for rank in range(ranks)]
    history = [[(0, own)] for own in state]  # of each rank: (from this moment, its chunks)
    received = [message["received"] for message in messages]
    in_order(received, "messages", "are not in the order of received")
    for n, message in enumerate(messages):
        where = f"messages[{n}]"
        check_message(message, recording, where)
        chunk, source, to = message["chunk"], message["from"], message["to"]
        had = [own for since, own in history[source] if since <= message["sent"]][-1][chunk]
        expect(message["contents"] == had, f"{where}.contents", f"rank {source} had {had}")
        new = list(history[to][-1][1])
        new[chunk] = had
        if message["phase"] in ("reduce-scatter", "reduce"):
            new[chunk] = [a + b for a, b in zip(had, history[to][-1][1][chunk])]
        history[to].append((message["received"], new))
    all_ones = [[1] * ranks for _ in chunks]
    for rank, own in enumerate(history):
        where = f"final[{rank}]"
        expect(len(recording["final"]) == ranks, "final", f"has {len(recording['final'])} ranks")
        expect(recording["final"][rank] == all_ones, where, "is not the sum of every rank once")
        expect(own[-1][1] == all_ones, where, f"from the messages follows {own[-1][1]}"[:150])
    check_bytes(recording)


def check_message(message: dict, recording: dict, where: str) -> None:
    """One message by itself: its times, its ranks, its bytes, and its phase."""
    ranks, way = recording["choices"]["ranks"], recording["choices"]["way"]
    source, to, chunk = message["from"], message["to"], message["chunk"]
    expect(max(source, to) < ranks and source != to, where, f"from rank {source} to rank {to}")
    routes = {"ring": to == (source + 1) % ranks, "naive": 0 in (source, to)}
    routes["tree"] = abs(source - to).bit_count() == 1
    expect(routes[way], where, f"no way of a {way} from rank {source} to rank {to}")
    expect(chunk < len(recording["chunks"]), f"{where}.chunk", f"there is no chunk {chunk}")
    start, stop = recording["chunks"][chunk]
    size = 4 * (stop - start)
    expect(message["bytes"] == size, f"{where}.bytes", f"chunk {chunk} has {size}")
    phases = ("reduce-scatter", "all-gather") if way == "ring" else ("reduce", "broadcast")
    expect(message["phase"] in phases, f"{where}.phase", f"{way} has {phases}")
    length = len(message["contents"])
    expect(length == ranks, f"{where}.contents", f"of {length} ranks, not {ranks}")
    expect(message["sent"] <= message["received"], f"{where}.received", "before it was sent")
    for end, moment in ((source, message["sent"]), (to, message["received"])):
        spans = recording["ranks"][end]["spans"]
        inside = spans[0]["from"] <= moment <= spans[-1]["to"]
        expect(inside, where, f"outside the spans of rank {end}")


def check_bytes(recording: dict) -> None:
    """2(N - 1) vectors are sent in all; in a ring every rank sends and receives 2(N - 1)/N."""
    ranks, size = recording["choices"]["ranks"], 4 * recording["elements"]
    total = sum(message["bytes"] for message in recording["messages"])
    wanted = 2 * (ranks - 1) * size
    expect(total == wanted, "messages", f"{total} bytes in all, not 2(N - 1) vectors = {wanted}")
    if recording["choices"]["way"] == "ring" and recording["elements"] % ranks == 0:
        for end in ("from", "to"):
            for rank in range(ranks):
                own = sum(m["bytes"] for m in recording["messages"] if m[end] == rank)
                expect(own * ranks == wanted, "messages", f"{own} bytes {end} rank {rank}")


# ---------------------------------------------------------------- failures


def check_failure(recording: dict) -> None:
    """One rank is slow, dies or leaves; the others wait for it, and end as such ranks do."""
    case, ranks = recording["choices"]["case"], recording["ranks"]
    signs = {"slow rank": "slow", "a rank dies": "dies", "a rank leaves early": "leaves"}
    wrong = []
    for rank, own in enumerate(ranks):
        seen = {event["what"] for event in own["spans"] + own["marks"]}
        wrong += [rank] if signs[case] in seen else []
        strange = seen & {*signs.values()} - {signs[case]}
        expect(not strange, f"ranks[{rank}]", f"{strange} in a recording of: {case}")
    expect(len(wrong) == 1, "ranks", f"{wrong} with {signs[case]!r}, not one")
    for rank, own in enumerate(ranks):
        where = f"ranks[{rank}]"
        if case == "slow rank":
            expect(not own["marks"], f"{where}.marks", "nobody dies, leaves or fails")
        elif rank in wrong:
            check_wrong_rank(own, case, where)
        else:
            check_waiting_rank(own, ranks[wrong[0]], signs[case], where)
    check_waits(ranks)


def check_waits(ranks: list[dict]) -> None:
    """In every step that all ranks finish, no wait ends before the last rank's has begun."""
    waits = [[span for span in own["spans"] if span["what"] == "wait"] for own in ranks]
    for step, together in enumerate(zip(*waits), start=1):
        last = max(wait["from"] for wait in together)
        for rank, wait in enumerate(together):
            where = f"ranks[{rank}].spans"
            expect(last <= wait["to"], where, f"wait {step} ends before another begins, at {last}")


def check_wrong_rank(own: dict, case: str, where: str) -> None:
    """A rank that dies or leaves is gone from then on."""
    marks, spans = own["marks"], own["spans"]
    code = "exit code -9" if case == "a rank dies" else "exit code 0"
    expect(len(marks) == 2 and marks[1]["text"] == code, f"{where}.marks", f"do not end in {code}")
    before = [span["what"] for span in spans[:-1]]
    expect(spans[-1]["what"] == "gone" and "gone" not in before, f"{where}.spans", "not gone")
    held = len(spans) > 1 and spans[-2]["from"] <= marks[0]["at"] <= spans[-1]["from"]
    expect(held, f"{where}.marks[0]", "it is not gone from then on")


def check_waiting_rank(own: dict, wrong: dict, sign: str, where: str) -> None:
    """A rank that waits for one that is gone: wait, error, gone."""
    lasts = [span["what"] for span in own["spans"][-3:]]
    expect(lasts in (["compute", "wait", "error"], ["wait", "error", "gone"]),
           f"{where}.spans", f"end in {lasts}")  # fmt: skip
    marks = [mark["what"] for mark in own["marks"]]
    expect(marks == ["error", "exit"], f"{where}.marks", f"are {marks}, not error and exit")
    failed = next(span for span in own["spans"] if span["what"] == "error")
    gone = next(mark["at"] for mark in wrong["marks"] if mark["what"] == sign)
    expect(gone <= failed["from"], f"{where}.spans", "an error before its cause")
    error, end = own["marks"]
    held = failed["from"] <= error["at"] <= end["at"] == failed["to"]
    expect(held, f"{where}.marks", "outside the span of the error")
    expect(end["text"] == "exit code 1", f"{where}.marks[1]", f"{end['text']}, not exit code 1")


CHECKS = {"step": check_step, "all_reduce": check_all_reduce, "failure": check_failure}

"""Record data-parallel runs for the player in docs/player: real ranks, on CPU cores with gloo.

    python tools/record.py                # all: some two minutes
    python tools/record.py step           # of one kind: step, all_reduce or failure
    python tools/record.py --check        # examine the recordings that are there
    python tools/record.py --check FILE   # these

A step of DDP is recorded by a hook on every parameter and DDP's communication hook; an all-reduce
of 05_multinode/from_scratch.py by a stand-in for torch.distributed that notes every message; a
failure by notes that each rank writes as it goes, so that they are there when it is killed. The
ranks share the clock of their machine. Nothing is written unless all recordings pass the check.
"""

import argparse
import ctypes
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from datetime import date, timedelta
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common, timeline
from tools import check_recordings

from_scratch = importlib.import_module("05_multinode.from_scratch")
rehearsal = importlib.import_module("05_multinode.rehearsal.common")

RANKS_OF_STEPS, NETS = (2, 3, 4), [(1, 25), (1, 0.01), (4, 25), (4, 0.2)]  # channels, MiB
RANKS_OF_ALL_REDUCES, WAYS = (2, 3, 4, 5, 6, 8), tuple(from_scratch.WAYS)
SLOW, DIES, LEAVES = "slow rank", "a rank dies", "a rank leaves early"
RANKS_OF_FAILURES = (2, 4)
IMAGES = 12  # per rank: few, so that the all-reduce is a visible part of a step
ELEMENTS = 1_200_000  # of a vector, 4.8 MB: divides by 2, 3, 4, 5, 6 and 8
WRONG_RANK, BATCHES, SLOWER, TIMEOUT = 1, 4, 0.3, 2  # the last two in seconds
PATIENCE = 90  # seconds for a failure, from the start of its ranks to the end of the last


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; with --check files")
    add("--check", action="store_true", help="examine recordings, record nothing")
    add("--folder", type=Path, default=check_recordings.FOLDER, help="where the recordings are")
    args = parser.parse_args()
    if args.check:
        check_recordings.main([Path(name) for name in args.names], args.folder)
        return
    for name in args.names:
        if name not in KINDS:
            parser.error(f"there is no kind {name}; there are {', '.join(KINDS)}")
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()
    except OSError as error:
        parser.error(f"--folder {args.folder}: {error.strerror}")
    rehearsal.exit_on_signals()
    recordings = []
    for kind in args.names or KINDS:
        record, numbers = KINDS[kind]
        for ranks in numbers:
            for found in record(ranks):
                try:
                    recordings.append(check_recordings.check(found))
                except check_recordings.Damaged as error:
                    sys.exit(f"record: {found['title']}: {error}")
                print(found["title"], flush=True)
    write(recordings, args.folder)


def write(recordings: list[dict], folder: Path) -> None:
    """Write recordings and the index; what the folder has of these kinds and is not new goes."""
    path = folder / "index.json"
    index = json.loads(path.read_text()) if path.exists() else []
    kinds = {recording["kind"] for recording in recordings}
    old = [entry for entry in index if entry["kind"] in kinds]
    index = [entry for entry in index if entry["kind"] not in kinds]
    for recording in recordings:
        name = f"{recording['name']}.json"
        write_compact(folder / name, recording)
        keys = ("kind", "title", "choices")
        index.append({"file": name} | {key: recording[key] for key in keys})
    index.sort(key=order_of_menus)
    write_compact(path, index)
    for name in {entry["file"] for entry in old} - {entry["file"] for entry in index}:
        (folder / name).unlink(missing_ok=True)


def order_of_menus(entry: dict) -> tuple:
    """Kinds, then ways or cases, then numbers of ranks."""
    choices = entry["choices"]
    which = choices.get("way") or choices.get("case")
    return (list(KINDS).index(entry["kind"]), ORDER.index(which) if which else 0, choices["ranks"])


def write_compact(path: Path, value: object) -> None:
    text = json.dumps(value, separators=(",", ":")) + "\n"
    common.write_whole(path, lambda temp: temp.write_text(text))


def recording(kind: str, title: str, choices: dict, note: str, ranks: list, **more) -> dict:
    """-> a recording, whose times count from its first event.

    ranks: of each rank the spans, the marks and the like. more: further fields, such as messages.
    """
    values = [kind, *(str(v) if isinstance(v, str) else f"{k} {v}" for k, v in choices.items())]
    about = {
        "torch": torch.__version__.partition("+")[0],
        "backend": "gloo",
        "machine": f"{common.cores()} cores, {common.device_name()}",
        "date": date.today().isoformat(),
        "command": f"python tools/record.py {kind}",
        "note": note,
    }
    first = min(own["spans"][0]["from"] for own in ranks)
    last = max(own["spans"][-1]["to"] for own in ranks)
    messages = [
        message | {key: message[key] - first for key in ("sent", "received")}
        for message in more.pop("messages", [])
    ]
    return {
        "format": 1,
        "name": re.sub(r"[ _]", "-", "-".join(values)),
        "kind": kind,
        "title": title,
        "choices": choices,
        "about": about,
        "unit": "microseconds",
        "end": last - first,
        **more,
        "ranks": [{"rank": rank} | since(first, own) for rank, own in enumerate(ranks)],
        "messages": messages,
    }


def since(first: int, value: object) -> object:
    """Subtract the first moment from every time of a rank's spans, marks and buckets."""
    if isinstance(value, list):
        return [since(first, item) for item in value]
    if isinstance(value, dict):
        return {k: v - first if k in TIMES else since(first, v) for k, v in value.items()}
    return value


def each(function, cases: list[tuple]) -> list:
    """On a rank: starting a rank takes seconds, so it does several cases."""
    return [function(*case) for case in cases]


TIMES = ("at", "from", "to", "left", "joined", "arrived")


def now() -> int:
    """Microseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


def spans(turns: list[tuple]) -> list[dict]:
    """[(moment, what the rank does from then on, a sentence or ""), ..., (end, ...)] -> its spans.

    Turns to the same are one span, and spans that last less than a microsecond are left out.
    """
    found = []
    for (start, what, text), (stop, *_) in zip(turns, turns[1:]):
        if stop > start:
            if found and (found[-1]["what"], found[-1].get("text", "")) == (what, text):
                found[-1]["to"] = stop
            else:
                span = {"what": what, "from": start, "to": stop}
                found.append(span | {"text": text} if text else span)
    return found


# ---------------------------------------------------------------- one step of DDP


def record_steps(ranks: int, nets=NETS, count: int = 15) -> list[dict]:
    """Record `count` steps of each net -> of each the step whose time is the median.

    nets: times the ConvNet's channels, and bucket_cap_mb.
    """
    cases = [(*net, count) for net in nets]
    taken = zip(*common.on_ranks(ranks, each, take_steps, cases))
    return [step_of(ranks, *net, list(zip(*own))) for net, own in zip(nets, taken)]


def step_of(ranks: int, channels: int, cap: float, steps: list[tuple[dict]]) -> dict:
    """What the ranks noted in every step -> the recording of the one in the middle."""
    steps.sort(key=lambda step: max(s["laps"][-1] for s in step) - min(s["laps"][0] for s in step))
    step = steps[len(steps) // 2]
    joined = [max(lefts) for lefts in zip(*([b["left"] for b in s["buckets"]] for s in step))]
    times = "the ConvNet" if channels == 1 else f"{channels} times the ConvNet's channels"
    return recording(
        "step",
        f"One DDP step: {ranks} ranks, {times}, bucket_cap_mb={cap}",
        {"ranks": ranks, "channels": channels, "bucket_cap_mb": cap},
        f"{IMAGES} images per rank. {crowded(ranks)}",
        [step_of_rank(own, joined) for own in step],
    )


def crowded(ranks: int) -> str:
    """What holds only on CPU cores."""
    cores = common.cores()
    if ranks > cores:
        return (
            f"{ranks} ranks share {cores} cores and take turns on them: the order of events is that"
            " of a rank per device, the times are not."
        )
    return (
        "On CPU cores the threads that communicate compete with computing, and slow it down; on"
        " GPUs they hardly do."
    )


def step_of_rank(own: dict, joined: list[int]) -> dict:
    """What a rank noted in a step -> its spans, marks and buckets."""
    bucket_of = {name: n for n, b in enumerate(own["buckets"]) for name in b["parameters"]}
    marks = []
    for at, name, size in own["gradients"]:
        mark = {"at": at, "what": "gradient", "parameter": name, "bytes": size}
        marks.append(mark | {"bucket": bucket_of[name]})
    start, data, forward, backward, end = own["laps"]
    turns = [(start, "data", ""), (data, "forward", ""), (forward, "backward", "")]
    turns += [(marks[-1]["at"], "exposed", ""), (backward, "optimizer", ""), (end, "", "")]
    size_of = {mark["parameter"]: mark["bytes"] for mark in marks}
    buckets = []
    for number, (bucket, last) in enumerate(zip(own["buckets"], joined)):
        size = sum(size_of[name] for name in bucket["parameters"])
        buckets.append({"bucket": number, "bytes": size} | bucket | {"joined": last})
    return {"spans": spans(turns), "marks": marks, "buckets": buckets}


def take_steps(channels: int, cap: float, count: int) -> list[dict]:
    """On a rank -> what it noted in each of `count` steps, after three that are left out.

    {"laps": [start, end of data, forward, backward, optimizer], "gradients": [(moment, parameter,
    bytes)], "buckets": [{"parameters", "left", "arrived"}]}
    """
    model, steps = timeline.make_net(channels), []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = common.scheduled_sgd(model, 0.01, 3 + count)
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap, broadcast_buffers=False)

    def note_gradient(name, parameter):
        steps[-1]["gradients"].append((now(), name, parameter.nbytes))

    def note_bucket(_, bucket):  # averages the gradients, as DDP does without a hook
        note = {"parameters": [names[id(parameter)] for parameter in bucket.parameters()]}
        steps[-1]["buckets"].append(note)
        gradients = bucket.buffer().div_(dist.get_world_size())
        note["left"] = now()
        return dist.all_reduce(gradients, async_op=True).get_future().then(partial(arrived, note))

    def arrived(note, future):
        note["arrived"] = now()
        return future.value()[0]

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(note_gradient, name))
    ddp_model.register_comm_hook(None, note_bucket)
    common.evaluate_once()
    dist.barrier()
    start = now()
    for images, labels in common.batches(3 + count, IMAGES, seed=dist.get_rank()):
        steps.append({"laps": [start], "gradients": [], "buckets": []})
        laps = steps[-1]["laps"]
        x, y = common.stage3.to_device(images, labels, common.CPU)
        laps.append(now())
        loss = F.cross_entropy(ddp_model(x), y)
        laps.append(now())
        optimizer.zero_grad()
        loss.backward()
        laps.append(now())
        optimizer.step()
        start = now()
        laps.append(start)
    return steps[3:]


# ---------------------------------------------------------------- an all-reduce, message by message


def record_all_reduces(ranks: int, ways=WAYS, elements: int = ELEMENTS, count=5) -> list[dict]:
    """Record each way `count` times -> of each the all-reduce whose time is the median."""
    cases = [(way, elements, count) for way in ways]
    taken = zip(*common.on_ranks(ranks, each, all_reduce, cases))
    return [all_reduce_of(way, elements, list(zip(*own))) for way, own in zip(ways, taken)]


def all_reduce_of(way: str, elements: int, tries: list[tuple[dict]]) -> dict:
    """What the ranks noted in every try -> the recording of the one in the middle."""
    tries.sort(key=lambda t: max(own["end"] for own in t) - min(own["turns"][0][0] for own in t))
    owns = tries[len(tries) // 2]
    ranks = len(owns)
    cut = from_scratch.chunks(elements, ranks if way == "ring" else 1)
    messages = match(owns, [chunk.start for chunk in cut], way)
    return recording(
        "all_reduce",
        f"{way.capitalize()} all-reduce: {ranks} ranks",
        {"way": way, "ranks": ranks},
        f"All messages pass through one machine's memory, not a network. {crowded(ranks)}",
        [
            {"spans": spans_of_turns(rank, own, messages), "marks": []}
            for rank, own in enumerate(owns)
        ],
        elements=elements,
        chunks=[[chunk.start, chunk.stop] for chunk in cut],
        messages=[
            {key: value for key, value in message.items() if key != "ready"}
            for message in sorted(messages.values(), key=lambda message: message["received"])
        ],
        final=[own["final"] for own in owns],
    )


def match(owns: tuple[dict], starts: list[int], way: str) -> dict[tuple, dict]:
    """-> {(from, to, n): message}: the nth that one rank sent is the nth that the other received.

    "ready" is the moment when the receiver called its receive.
    """
    phases = ("reduce-scatter", "all-gather") if way == "ring" else ("reduce", "broadcast")
    messages = {}
    for to, own in enumerate(owns):
        for (source, n), (size, ready, received, contents) in own["received"].items():
            sent_size, start, sent = owns[source]["sent"][to, n]
            if sent_size != size:
                sys.exit(f"record: rank {source} sent {sent_size} bytes, rank {to} got {size}")
            message = {"from": source, "to": to, "bytes": size, "chunk": starts.index(start)}
            # A sum over all ranks is not added to anything any more, but kept.
            message |= {"phase": phases[all(contents)], "sent": sent, "received": received}
            messages[source, to, n] = message | {"contents": contents, "ready": ready}
    return messages


def spans_of_turns(rank: int, own: dict, messages: dict[tuple, dict]) -> list[dict]:
    """A rank's turns -> spans. No byte moves until both have called: until then one waits."""
    turns = []
    ends = [turn[0] for turn in own["turns"][1:]] + [own["end"]]
    for (at, what, *message), end in zip(own["turns"], ends):
        if message and what != "post":
            peer, n = message
            sends = what == "send"
            both = messages[(rank, peer, n) if sends else (peer, rank, n)]
            begins = both["ready" if sends else "sent"]
            if at < begins:
                turns.append((at, "wait", f"for rank {peer}"))
                at = min(begins, end)
        turns.append((at, "send" if what == "post" else what, ""))
    return spans([*turns, (own["end"], "", "")])


def all_reduce(way: str, elements: int, count: int) -> list[dict]:
    """On a rank -> what it noted in each of `count` all-reduces, after one that is left out."""
    notes = []
    for _ in range(1 + count):
        vector = torch.full((elements,), 16 ** dist.get_rank(), dtype=torch.int32)
        recorder = Recorder(vector)
        dist.barrier()
        with patch.object(from_scratch, "dist", recorder):
            from_scratch.WAYS[way](vector)
        end = now()
        final = []
        for chunk in from_scratch.chunks(elements, dist.get_world_size() if way == "ring" else 1):
            final.append(contents_of(set(vector[chunk].unique().tolist())))
        notes.append({name: getattr(recorder, name) for name in ("turns", "sent", "received")})
        notes[-1] |= {"end": end, "final": final}
    return notes[1:]


def contents_of(values: set[int]) -> list[int]:
    """How often each rank's vector is in a sum, all of whose elements are equal: its digits."""
    if len(values) != 1:
        sys.exit(f"record: a chunk has different elements: {sorted(values)[:5]}")
    (value,) = values
    return [value >> 4 * rank & 15 for rank in range(dist.get_world_size())]


def first_and_last(tensor: torch.Tensor) -> set[int]:
    """Two elements, read in microseconds: more would delay the next message."""
    ends = (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes - tensor.element_size())
    return {ctypes.c_int32.from_address(end).value for end in ends}


class Recorder:
    """torch.distributed for from_scratch.py: sends and receives as it does, and notes it."""

    def __init__(self, vector: torch.Tensor):
        self.start = vector.data_ptr()
        self.turns = []  # (moment, "send" or "receive", peer, n) or (moment, "add")
        self.sent = {}  # (to, n): (bytes, first element, moment)
        self.received = {}  # (from, n): (bytes, moment of the call, moment of arrival, contents)
        self.adds = False  # what came last has to be added

    def __getattr__(self, name):
        return getattr(dist, name)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.post_send(tensor, dst, "send").wait()

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        self.post_receive(tensor, src, "receive").wait()
        self.turn_to_adding()

    def isend(self, tensor: torch.Tensor, dst: int) -> "Work":
        return self.post_send(tensor, dst, "post")

    def irecv(self, tensor: torch.Tensor, src: int) -> "Work":
        return self.post_receive(tensor, src, "post")

    def post_send(self, tensor: torch.Tensor, dst: int, what: str) -> "Work":
        n = sum(to == dst for to, _ in self.sent)
        first = (tensor.data_ptr() - self.start) // tensor.element_size()
        self.sent[dst, n] = (tensor.nbytes, first, self.turn(what, dst, n))
        work = dist.isend(tensor, dst)

        def wait_for_sending():
            self.turn("send", dst, n)
            work.wait()
            self.turn_to_adding()

        return Work(wait_for_sending)

    def post_receive(self, tensor: torch.Tensor, src: int, what: str) -> "Work":
        n = sum(source == src for source, _ in self.received)
        self.adds = False
        called = self.turn(what, src, n)
        self.received[src, n] = None
        work = dist.irecv(tensor, src)

        def wait_for_receiving():
            self.turn("receive", src, n)
            work.wait()
            received, contents = now(), contents_of(first_and_last(tensor))
            self.received[src, n] = (tensor.nbytes, called, received, contents)
            self.adds = not all(contents)

        return Work(wait_for_receiving)

    def turn_to_adding(self) -> None:
        if self.adds:
            self.turn("add")

    def turn(self, *what) -> int:
        self.turns.append((now(), *what))
        return self.turns[-1][0]


class Work:
    """What isend and irecv return."""

    def __init__(self, wait):
        self.wait = wait


# ---------------------------------------------------------------- failures


def record_failures(ranks: int) -> list[dict]:
    return [record_failure(case, ranks) for case in (SLOW, DIES, LEAVES)]


def record_failure(case: str, ranks: int) -> dict:
    """Start ranks of which one is slow, dies or leaves, and watch how each of them ends."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        arguments = (ranks, store.port, folder, case)
        processes = [
            spawn.Process(target=run_rank, args=(rank, *arguments), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            exits = watch(processes, store)
        finally:
            for process in processes:
                if process.pid:
                    process.kill()
                    process.join()
        notes = [read_notes(Path(folder, f"rank-{rank}.jsonl")) for rank in range(ranks)]
    if not all(notes):
        sys.exit(f"record: a rank ended before it had noted anything ({case}, {ranks} ranks)")
    end = max(at for at, _ in exits)
    note = {
        SLOW: f"In every step rank {WRONG_RANK} comes {1000 * SLOWER:.0f} ms later. ",
        DIES: f"Rank {WRONG_RANK} gets SIGKILL during a step. ",
        LEAVES: f"Rank {WRONG_RANK} has {BATCHES - 1} batches, the others {BATCHES}; the timeout "
        f"is {TIMEOUT} s. ",
    }[case]
    note += "There is no launcher: torchrun and mp.spawn would end the other ranks. "
    return recording(
        "failure",
        f"{case.capitalize()}: {ranks} ranks",
        {"case": case, "ranks": ranks},
        note + crowded(ranks),
        [with_exit(own, *ended, end) for own, ended in zip(notes, exits)],
    )


def watch(processes: list, store: dist.TCPStore) -> list[tuple[int, int]]:
    """Wait until all ranks have ended -> when each did, and its exit code.

    The rank that leaves early stays alive until the others have ended.
    """
    ended, deadline = {}, time.monotonic() + PATIENCE
    while len(ended) < len(processes):
        alive = {p.sentinel: rank for rank, p in enumerate(processes) if rank not in ended}
        for sentinel in wait(list(alive), max(0, deadline - time.monotonic())):
            rank = alive[sentinel]
            moment = now()
            processes[rank].join()
            ended[rank] = (moment, processes[rank].exitcode)
        if time.monotonic() > deadline:
            sys.exit(f"record: ranks {sorted(alive.values())} have not ended in {PATIENCE} s")
        if set(range(len(processes))) - set(ended) <= {WRONG_RANK}:
            store.set("the others have ended", "")
    return [ended[rank] for rank in range(len(processes))]


def read_notes(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_exit(notes: list[dict], at: int, code: int, end: int) -> dict:
    """A rank's notes and how its process ended -> its spans and marks."""
    turns = [(note["at"], note["turn"], note["text"]) for note in notes if "turn" in note]
    marks = [note for note in notes if "what" in note]
    if turns[-1][1] != "gone":
        turns.append((at, "gone", ""))
    marks.append({"at": at, "what": "exit", "text": f"exit code {code}"})
    return {"spans": spans([*turns, (end, "", "")]), "marks": marks}


def run_rank(rank: int, ranks: int, port: int, folder: str, case: str) -> None:
    """A rank, which notes what it does in a file, line by line: it may be killed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the messages are noted
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    with open(Path(folder, f"rank-{rank}.jsonl"), "a", buffering=1) as file:

        def note(**what):
            print(json.dumps({"at": now()} | what), file=file)

        with common.stage3.process_group(common.CPU, 60, store=store, rank=rank, world_size=ranks):
            try:
                train(note, case)
            except RuntimeError as error:
                note(turn="error", text="the exception ends the process")
                note(what="error", text=first_line(error))
                raise
            if rank == WRONG_RANK and case == LEAVES:
                store.wait(["the others have ended"], timedelta(seconds=PATIENCE))


def first_line(error: Exception) -> str:
    """A message without the place in gloo's source that it begins with."""
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", str(error).splitlines()[0])


def train(note, case: str) -> None:
    """Take steps of DDP, of which the first three are not noted; on one rank something is wrong."""
    wrong = dist.get_rank() == WRONG_RANK
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    model = timeline.make_net(4)
    optimizer = common.scheduled_sgd(model, 0.01, 3 + BATCHES)
    ddp_model = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
    computing = {}

    def wait_begins(_):
        if computing:
            note(turn="wait", text=f"backward of {computing['step']}")

    next(model.parameters()).register_post_accumulate_grad_hook(wait_begins)
    for step in range(-2, 1 + BATCHES):
        noted = note if step > 0 else lambda **_: None
        if step == 1:
            dist.barrier()
        if wrong and case == LEAVES and step == BATCHES:
            noted(what="leaves", text=f"no batch for step {step}: it leaves the loop")
            noted(turn="gone", text="alive, but outside the training")
            return
        if wrong and case == SLOW and step > 0:
            noted(turn="slow", text=f"step {step}: its batch comes late")
            time.sleep(SLOWER)
        noted(turn="compute", text=f"step {step}")
        x, y = common.batch(5 * IMAGES)
        loss = F.cross_entropy(ddp_model(x), y)
        if wrong and case == DIES and step == BATCHES - 1:
            noted(what="dies", text="SIGKILL")
            noted(turn="gone", text="")
            os.kill(os.getpid(), signal.SIGKILL)
        computing.update({"step": f"step {step}"} if step > 0 else {})
        optimizer.zero_grad()
        loss.backward()
        noted(turn="compute", text=f"step {step}")
        optimizer.step()


KINDS = {  # kind: the function that records it, and for how many ranks
    "step": (record_steps, RANKS_OF_STEPS),
    "all_reduce": (record_all_reduces, RANKS_OF_ALL_REDUCES),
    "failure": (record_failures, RANKS_OF_FAILURES),
}
ORDER = (*WAYS, SLOW, DIES, LEAVES)

if __name__ == "__main__":
    main()

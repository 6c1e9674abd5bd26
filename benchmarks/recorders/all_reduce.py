"""Record an all-reduce of 05_multinode/from_scratch.py, by a stand-in for its torch.distributed.

Rank r's vector is 16**r everywhere, so the digits of a number say which ranks are in it.
"""

import importlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks import common
from benchmarks.recorders.parts import assemble, crowded, now, spans

from_scratch = importlib.import_module("05_multinode.from_scratch")

RANKS, WAYS = 4, ("ring", "naive")
ELEMENTS = 1_200_000  # of a vector, 4.8 MB: divides by 4


def record_all_reduces(ranks=RANKS, elements=ELEMENTS, count=5) -> list[dict]:
    """Record each way `count` times -> of each the all-reduce whose time is the median."""
    taken = {way: common.on_ranks(ranks, all_reduce, way, elements, count) for way in WAYS}
    return [all_reduce_of(way, elements, list(zip(*owns))) for way, owns in taken.items()]


def all_reduce_of(way: str, elements: int, tries: list[tuple[dict]]) -> dict:
    """What the ranks noted in every try -> the recording of the one in the middle."""
    tries.sort(key=lambda t: max(own["end"] for own in t) - min(own["turns"][0][0] for own in t))
    owns = tries[len(tries) // 2]
    ranks = len(owns)
    cut = from_scratch.chunks(elements, ranks if way == "ring" else 1)
    messages = match(owns, [chunk.start for chunk in cut], way)
    return assemble(
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
            start, sent = owns[source]["sent"][to, n]
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


class Recorder:
    """torch.distributed for from_scratch.py: sends and receives as it does, and notes it."""

    def __init__(self, vector: torch.Tensor):
        self.start = vector.data_ptr()
        self.turns = []  # (moment, "send" or "receive", peer, n) or (moment, "add")
        self.sent = {}  # (to, n): (first element, moment)
        self.received = {}  # (from, n): (bytes, moment of the call, moment of arrival, contents)
        self.adds = False  # what came last has to be added

    def __getattr__(self, name):
        return getattr(dist, name)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.post_send(tensor, dst, "send").wait()

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        self.post_receive(tensor, src, "receive").wait()
        self.turn_to_adding()

    def isend(self, tensor: torch.Tensor, dst: int) -> SimpleNamespace:
        return self.post_send(tensor, dst, "post")

    def irecv(self, tensor: torch.Tensor, src: int) -> SimpleNamespace:
        return self.post_receive(tensor, src, "post")

    def post_send(self, tensor: torch.Tensor, dst: int, what: str) -> SimpleNamespace:
        n = sum(to == dst for to, _ in self.sent)
        first = (tensor.data_ptr() - self.start) // tensor.element_size()
        self.sent[dst, n] = (first, self.turn(what, dst, n))
        work = dist.isend(tensor, dst)

        def wait_for_sending():
            self.turn("send", dst, n)
            work.wait()
            self.turn_to_adding()

        return SimpleNamespace(wait=wait_for_sending)

    def post_receive(self, tensor: torch.Tensor, src: int, what: str) -> SimpleNamespace:
        n = sum(source == src for source, _ in self.received)
        self.adds = False
        called = self.turn(what, src, n)
        self.received[src, n] = None
        work = dist.irecv(tensor, src)

        def wait_for_receiving():
            self.turn("receive", src, n)
            work.wait()
            received = now()
            contents = contents_of({tensor[0].item(), tensor[-1].item()})  # all would take long
            self.received[src, n] = (tensor.nbytes, called, received, contents)
            self.adds = not all(contents)

        return SimpleNamespace(wait=wait_for_receiving)

    def turn_to_adding(self) -> None:
        if self.adds:
            self.turn("add")

    def turn(self, *what) -> int:
        self.turns.append((now(), *what))
        return self.turns[-1][0]

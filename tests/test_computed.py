"""The all-reduces that the player computes: message by message those of 05_multinode."""

import importlib
import re

import pytest
import torch
from browser import NEEDS_BROWSER
from conftest import ROOT

pytest.importorskip("selenium.webdriver")
pytestmark = [pytest.mark.slow, NEEDS_BROWSER]
from_scratch = importlib.import_module("05_multinode.from_scratch")
RANKS = range(2, 9)


@pytest.fixture(scope="module")
def recordings(chromium):
    """What computed.js computes -> {(way, ranks): recording}"""
    chromium.get("about:blank")
    parts = [(ROOT / f"docs/player/{name}.js").read_text() for name in ("words", "computed")]
    code = re.sub("^export ", "", "\n".join(parts), flags=re.MULTILINE)
    found = chromium.execute_script(f"{code}\nreturn computedAllReduces();")
    return {(one["choices"]["way"], one["choices"]["ranks"]): one for one in found.values()}


class Network:
    """Stands in for torch.distributed on one rank, and writes down what this rank sends."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size, self.sent = rank, world_size, []

    def get_rank(self):
        return self.rank

    def get_world_size(self):
        return self.world_size

    def send(self, tensor, dst):
        self.sent.append((dst, 4 * tensor.numel()))

    def isend(self, tensor, peer):
        self.send(tensor, peer)
        return self

    def recv(self, tensor, src):
        tensor.zero_()

    def irecv(self, tensor, peer):
        self.recv(tensor, peer)
        return self

    def wait(self):
        pass


@pytest.mark.parametrize("way", ["ring", "tree", "naive"])
def test_each_rank_sends_what_the_script_sends(recordings, monkeypatch, way):
    assert set(from_scratch.WAYS) == {"ring", "tree", "naive"}
    for world_size in RANKS:
        recording = recordings[way, world_size]
        for rank in range(world_size):
            network = Network(rank, world_size)
            monkeypatch.setattr(from_scratch, "dist", network)
            elements = from_scratch.WAYS[way](torch.zeros(recording["elements"]))
            own = [one for one in recording["messages"] if one["from"] == rank]
            assert [(one["to"], one["bytes"]) for one in own] == network.sent
            assert sum(one["bytes"] for one in own) == 4 * elements


def test_the_ring_has_the_rounds_and_the_chunks_of_schedule(recordings):
    for world_size in RANKS:
        recording = recordings["ring", world_size]
        cut = from_scratch.chunks(recording["elements"], world_size)
        assert recording["chunks"] == [[part.start, part.stop] for part in cut]
        for rank in range(world_size):
            steps = from_scratch.schedule(rank, world_size)
            assert len(recording["rounds"]) == len(steps)
            for step, messages in zip(steps, recording["rounds"]):
                sent = next(one for one in messages if one["from"] == rank)
                received = next(one for one in messages if one["to"] == rank)
                assert (sent["phase"], sent["chunk"]) == (step.phase, step.send)
                assert received["chunk"] == step.receive


@pytest.mark.parametrize("way", ["ring", "tree", "naive"])
def test_every_rank_ends_with_the_sum_and_none_is_in_two_messages_at_once(recordings, way):
    for world_size in RANKS:
        recording = recordings[way, world_size]
        pieces = len(recording["chunks"])
        held = []
        for rank in range(world_size):
            own = [int(of == rank) for of in range(world_size)]
            held.append([list(own) for _ in range(pieces)])
        for messages in recording["rounds"]:
            # What is sent in a round was held before it.
            for one in messages:
                assert one["contents"] == held[one["from"]][one["chunk"]]
            for place in ("from", "to"):
                ranks = [one[place] for one in messages]
                assert len(ranks) == len(set(ranks))
            for one in messages:
                before = held[one["to"]][one["chunk"]]
                if not one["phase"].startswith("reduce"):
                    before = [0] * world_size
                after = [old + new for old, new in zip(before, one["contents"])]
                held[one["to"]][one["chunk"]] = after
        assert held == [[[1] * world_size] * pieces] * world_size

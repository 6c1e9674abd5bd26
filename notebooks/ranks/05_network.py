"""A simulated network that counts what each rank sends, and in how many steps.

The ranks are threads, so there can be any number of them. The functions of
05_multinode/from_scratch.py run on this network unchanged. Nothing here is timed.
"""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib import import_module
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from_scratch = import_module("05_multinode.from_scratch")
TIMEOUT = 60  # seconds that a rank waits for a message


class Counts(NamedTuple):
    sums: list[Tensor]  # what each rank ends with, [L]
    sent: list[Fraction]  # what each rank has sent, in vectors
    steps: int  # sequential steps: messages in the longest chain, each waiting for the one before


def count(algorithm: str | Callable, ranks: int, length: int = 720_720) -> Counts:
    """All-reduce vectors and count. Rank 0 has a vector of ones, rank 1 of twos, and so on.

    length: of a vector. The default is divisible by 2, 3, ... 16, so all chunks are equal.
    algorithm: a name in from_scratch.WAYS, or a function like those in it. The function gets a
    vector [length] and leaves the sum there. It calls from_scratch.dist or from_scratch.exchange.
    Raises what a rank raises, or TimeoutError if the ranks wait for each other.
    """
    network = Network(ranks)
    vectors = [torch.full((length,), rank + 1, dtype=torch.int16) for rank in range(ranks)]

    def run_rank(rank: int) -> None:
        network.own.rank = rank
        from_scratch.WAYS.get(algorithm, algorithm)(vectors[rank])

    with patch.object(from_scratch, "dist", network), ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(run_rank, rank) for rank in range(ranks)]
    errors = [future.exception() for future in futures if future.exception()]
    if errors:  # A rank that has only waited for another one is rarely the root cause.
        raise min(errors, key=lambda error: isinstance(error, TimeoutError))
    return Counts(vectors, [Fraction(sent, length) for sent in network.sent], max(network.steps))


def check(algorithm: str | Callable, ranks: int = 8) -> bool:
    """Is the sum right, is no rank busier than in the ring, and are there fewer steps?"""
    counts = count(algorithm, ranks)
    ring = count("ring", ranks)
    right = all((x == ranks * (ranks + 1) / 2).all() for x in counts.sums)
    print(getattr(algorithm, "__name__", algorithm), end=": ")
    print(f"sum {'right' if right else 'WRONG'}, the busiest rank sends", end=" ")
    print(f"{float(max(counts.sent)):.2f} vectors, {counts.steps} sequential steps")
    return right and max(counts.sent) <= max(ring.sent) and counts.steps < ring.steps


class Network:
    """The functions of torch.distributed that the algorithms call."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.own = threading.local()
        self.queues = defaultdict(queue.SimpleQueue)  # one for each (from, to)
        self.sent = [0] * ranks  # elements
        self.steps = [0] * ranks  # the longest chain of messages that has ended at this rank

    def get_rank(self) -> int:
        return self.own.rank

    def get_world_size(self) -> int:
        return self.ranks

    def send(self, tensor: Tensor, dst: int) -> None:
        rank = self.own.rank
        self.sent[rank] += tensor.numel()
        self.queues[rank, dst].put((tensor.clone(), self.steps[rank] + 1))

    def recv(self, tensor: Tensor, src: int) -> None:
        rank = self.own.rank
        try:
            message, chain = self.queues[src, rank].get(timeout=TIMEOUT)
        except queue.Empty:
            raise TimeoutError(f"rank {rank} waits for a message of rank {src}") from None
        tensor.copy_(message)
        self.steps[rank] = max(self.steps[rank], chain)

    def isend(self, tensor: Tensor, dst: int) -> "Work":
        self.send(tensor, dst)
        return Work(lambda: None)

    def irecv(self, tensor: Tensor, src: int) -> "Work":
        return Work(lambda: self.recv(tensor, src))


class Work(NamedTuple):
    wait: Callable[[], None]

"""Ranks on threads, and a post office between them that counts: how much, and how long a chain.

from_scratch.py's ways run on it as they are, without processes and on as many ranks as one likes.
Nothing here is timed.
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
PATIENCE = 60  # seconds that a rank waits for a message


class Counted(NamedTuple):
    sums: list[Tensor]  # what each rank ends with, [L]
    sent: list[Fraction]  # what each rank has sent, in vectors
    in_a_row: int  # messages in the longest chain of which each had to wait for the one before


def play(way: str | Callable, ranks: int, length: int = 720_720) -> Counted:
    """All-reduce vectors of a one, a two, a three, ... over so many ranks, and count.

    length: of a vector; the default divides by 2, 3, ... 16, so chunks are equal and counts exact.
    way: a name of from_scratch.WAYS, or a function like those in it: it gets a vector [length] and
    leaves the sum there, and calls from_scratch.dist, or from_scratch.exchange. Raises TimeoutError
    if the ranks wait for each other, and whatever a rank raises.
    """
    post = Post(ranks)
    vectors = [torch.full((length,), rank + 1, dtype=torch.int16) for rank in range(ranks)]

    def live(rank: int) -> None:
        post.own.rank = rank
        from_scratch.WAYS.get(way, way)(vectors[rank])

    with patch.object(from_scratch, "dist", post), ThreadPoolExecutor(ranks) as pool:
        lives = [pool.submit(live, rank) for rank in range(ranks)]
    errors = [life.exception() for life in lives if life.exception()]
    if errors:  # a rank that has only waited for another is rarely the root cause
        raise min(errors, key=lambda error: isinstance(error, TimeoutError))
    return Counted(vectors, [Fraction(sent, length) for sent in post.sent], max(post.heard))


class Post:
    """What the ways need of torch.distributed."""

    def __init__(self, ranks: int):
        self.ranks, self.own = ranks, threading.local()
        self.boxes = defaultdict(queue.SimpleQueue)  # one for each (from, to)
        self.sent = [0] * ranks  # elements
        self.heard = [0] * ranks  # the longest chain that has ended at this rank

    def get_rank(self) -> int:
        return self.own.rank

    def get_world_size(self) -> int:
        return self.ranks

    def send(self, tensor: Tensor, dst: int) -> None:
        rank = self.own.rank
        self.sent[rank] += tensor.numel()
        self.boxes[rank, dst].put((tensor.clone(), self.heard[rank] + 1))

    def recv(self, tensor: Tensor, src: int) -> None:
        rank = self.own.rank
        try:
            message, chain = self.boxes[src, rank].get(timeout=PATIENCE)
        except queue.Empty:
            raise TimeoutError(f"rank {rank} waits for a message of rank {src}") from None
        tensor.copy_(message)
        self.heard[rank] = max(self.heard[rank], chain)

    def isend(self, tensor: Tensor, dst: int) -> "Work":
        self.send(tensor, dst)
        return Work(lambda: None)

    def irecv(self, tensor: Tensor, src: int) -> "Work":
        return Work(lambda: self.recv(tensor, src))


class Work(NamedTuple):
    wait: Callable[[], None]

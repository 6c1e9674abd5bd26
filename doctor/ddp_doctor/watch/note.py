"""The file of this process, to which the watchers write, and what the process is doing."""

import dataclasses
import os
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

from ..run.events import (
    Backward,
    Collective,
    Destroyed,
    Ended,
    EpochBegan,
    EpochEnded,
    Event,
    Failed,
    Forward,
    Later,
    Moment,
    Raised,
    Returned,
    Unseen,
    to_line,
)

MOST = 5000  # events of one kind: the file stays small, however long the run is
MOST_WAITS = 40_000  # events of the kinds below, together
WAITS = (Forward, Backward, Collective, Returned)  # they tell what a rank waits for
# When a wait for the device costs nothing.
PAUSES = (EpochBegan, EpochEnded, Raised, Destroyed, Ended)


class Process:
    """What this process has written, and what it is doing."""

    def __init__(self):
        self.file = None
        self.written = Counter()
        self.later = []  # (kind, number, field, tensor) of values that are still on a GPU
        self.waits = 0  # events of WAITS
        self.kept = 0  # bytes of the file that stay
        self.open = []  # lines of calls that wait, begun after MOST_WAITS such events
        self.step = 0
        self.passes = 0
        self.fed = -1  # the step for which a DataLoader last gave samples with known indices
        self.seeded = 0  # steps that had begun when a random generator last got a seed
        self.waits_in = []  # the calls in which it may wait for other ranks, the outer ones first
        self.passed = 0  # calls that waited for other ranks and returned
        self.forked = False  # a worker of a DataLoader: it does not write
        self.rank_file = None  # of a worker: the file of the rank that made it
        self.spawned = False  # by mp.spawn
        self.over = False

    def is_rank(self):
        """Not torchrun itself, not a worker, not a process that a rank has started."""
        if self.forked or self.over:
            return False
        started = self.file is not None or self.spawned or "RANK" in os.environ
        return started or torch.distributed.is_initialized()


PROCESS = Process()
EVERY_STATE = []  # of the watchers, each with a reset()


def after_fork():
    rank_file = PROCESS.file
    PROCESS.__init__()
    PROCESS.forked = True
    PROCESS.rank_file = rank_file
    for state in EVERY_STATE:
        state.reset()


def now():
    return Moment(time.monotonic(), PROCESS.step, PROCESS.passes)


def write(event: Event):
    """Append an event by one system call, so that it survives if the process is killed."""
    kind = type(event)
    if PROCESS.later and kind in PAUSES:
        quietly(tell_later)
    PROCESS.written[kind] += 1
    if kind in WAITS:
        PROCESS.waits += 1
        if PROCESS.waits > MOST_WAITS:
            write_over(event)
            return
        if PROCESS.waits == MOST_WAITS:
            append(to_line(Unseen(now(), "waits", f"only the first {MOST_WAITS} are written")))
    elif PROCESS.written[kind] > MOST:
        return
    elif PROCESS.written[kind] == MOST:
        event = Unseen(now(), kind.__name__, f"only the first {MOST} are written")
    append(to_line(settled(event, to_be_told=True)))


def append(line):
    if PROCESS.file is None:
        name = f"{socket.gethostname()}-{os.getpid()}.jsonl"
        path = Path(os.environ["DDP_DOCTOR_FOLDER"], name)
        PROCESS.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if PROCESS.open:
        os.ftruncate(PROCESS.file, PROCESS.kept)
    os.write(PROCESS.file, line)
    if PROCESS.waits >= MOST_WAITS:
        PROCESS.kept = os.lseek(PROCESS.file, 0, os.SEEK_END)
        os.write(PROCESS.file, b"".join(PROCESS.open))


def write_over(event):
    """The end of the file says where the process is now. In a long run it is written over."""
    line = to_line(settled(event, to_be_told=False))
    if not isinstance(event, Returned):
        PROCESS.open.append(line)
        tail = PROCESS.open
    elif PROCESS.open:
        begun = PROCESS.open.pop()
        tail = [*PROCESS.open, begun, line]
    else:
        append(line)  # the call began when events were still kept
        return
    os.ftruncate(PROCESS.file, PROCESS.kept)
    os.write(PROCESS.file, b"".join(tail))


def settled(event, to_be_told):
    """The event without tensors on a GPU. They are read later: no step waits for them."""
    plain = {}
    for name, value in vars(event).items():
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            continue  # to_line() reads a tensor of the CPU
        plain[name] = [] if value.dim() else None
        if to_be_told:
            kind = type(event)
            PROCESS.later.append((kind.__name__, PROCESS.written[kind], name, value))
    return dataclasses.replace(event, **plain) if plain else event


def tell_later():
    """Read what has waited on a GPU. events.read() puts it into the events that it belongs to."""
    waiting_values = PROCESS.later
    PROCESS.later = []
    for kind, number, field, value in waiting_values:
        write(Later(now(), kind, number, field, value.tolist()))


def write_from_worker(event: Event):
    """A worker of a DataLoader has no file of its own: it writes to that of its rank."""
    if PROCESS.rank_file is not None:
        os.write(PROCESS.rank_file, to_line(event))


def quietly(observe, *args, **kwargs):
    """A watcher that fails must not stop the script."""
    try:
        return observe(*args, **kwargs)
    except Exception as error:
        if not PROCESS.forked and not PROCESS.over:
            with suppress(Exception):  # the disk may be full
                name = getattr(observe, "__name__", "a watcher")
                module = getattr(observe, "__module__", "").rpartition(".")[2]
                write(Failed(now(), module, name, repr(error)[:200]))


class waiting:
    """Around a call that may wait for other ranks. An exception leaves it without Returned.

    This is a class because a generator as a context manager costs more in each step.
    """

    def __init__(self, op):
        self.op = op

    def __enter__(self):
        PROCESS.waits_in.append(self.op)

    def __exit__(self, kind, error, traceback):
        PROCESS.waits_in.pop()
        if kind is None:
            PROCESS.passed += 1
            quietly(note_returned, self.op)


def note_returned(op):
    outer = PROCESS.waits_in[-1] if PROCESS.waits_in else None
    write(Returned(now(), op, outer))

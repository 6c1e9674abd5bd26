"""What a watched process writes down, and how it does so without disturbing the script.

NAME.jsonl gets one line per event, by one system call, so it survives a killed process. NAME.now
says where the process is at this moment. It is a piece of memory that the launcher can read.
"""

import functools
import json
import mmap
import os
import socket
import sys
import sysconfig
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from traceback import walk_stack

HERE = os.path.dirname(os.path.abspath(__file__))
PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
TORCH = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", HERE))  # maybe a checkout
LIBRARY = ("<", HERE, TORCH, *{sysconfig.get_path(name) for name in PATHS})
NOW_BYTES = 2048
MOST = 3000  # events of one kind: the files stay small however long the run is
EVERY = 50  # steps whose fingerprints may wait on a GPU until they are read


class State:
    """What a module remembers between two events. A forked child starts with a new one."""

    every = []

    def __init__(self):
        State.every.append(self)
        self.reset()


class Output(State):
    """The files of this process, and what it has written to them."""

    def reset(self):
        self.file = self.now = self.rank_file = None  # the last one: of a worker's rank
        self.queue, self.written, self.on_device = [], Counter(), False
        self.said = set()  # what is written only once
        self.waits = None  # the call in which the process waits for other ranks
        self.works = {}  # the name of the call that made an asynchronous work, by its id
        self.port = None  # that a forked process has chosen
        self.phase = 0  # from one training pass to the next: what is evaluated belongs together
        self.forked = self.ended = False
        self.steps = self.passed = 0  # optimizer steps and collectives from the start


OUT = Output()


def forked():
    """In a child made by fork(): a worker of a DataLoader, until it joins a group."""
    rank_file = OUT.file
    for state in State.every:
        state.reset()
    OUT.forked, OUT.rank_file = True, rank_file


def is_rank():
    if OUT.forked or OUT.ended or OUT.file is not None:
        return not (OUT.forked or OUT.ended)
    import multiprocessing

    from torch import distributed

    child = multiprocessing.current_process().name.startswith(("SpawnProcess", "ForkProcess"))
    return child or "RANK" in os.environ or distributed.is_initialized()


def write(kind, **what):
    """Note an event. Numbers that are still on a GPU stay there until flush()."""
    OUT.written[kind] += 1
    if OUT.written[kind] <= MOST:
        when = {"time": time.monotonic(), "passed": OUT.passed, "phase": OUT.phase}
        OUT.queue.append({"kind": kind, **when, **what})
    if not OUT.on_device:
        flush()


def write_once(kind, key, **what):
    if (kind, key) not in OUT.said:
        OUT.said.add((kind, key))
        write(kind, **what)


def write_from_worker(kind, **what):
    if OUT.rank_file is not None:
        os.write(OUT.rank_file, json.dumps({"kind": kind, **what}).encode() + b"\n")


def flush():
    lines = [json.dumps(event, default=plain).encode() + b"\n" for event in OUT.queue]
    OUT.queue, OUT.on_device = [], False
    if OUT.file is None:
        name = Path(os.environ["DDP_DOCTOR_FOLDER"], f"{socket.gethostname()}-{os.getpid()}")
        OUT.file = os.open(f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(f"{name}.now", "w+b") as file:
            file.truncate(NOW_BYTES)
            OUT.now = mmap.mmap(file.fileno(), NOW_BYTES)
    os.write(OUT.file, b"".join(lines))


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)


def show_now(op=None, **what):
    """Where this process is: in a communication, or (op is None) in its own computation."""
    if OUT.now is None:
        flush()
    now = {"op": op, "time": time.monotonic(), "steps": OUT.steps, "passed": OUT.passed, **what}
    OUT.now[:] = json.dumps(now, default=str).encode()[:NOW_BYTES].ljust(NOW_BYTES)


@functools.cache
def is_script(filename):
    """Is it one of the reader's files, not the standard library's or a package's?"""
    library = filename.startswith(LIBRARY) or "-packages" in filename
    return not library and not filename.endswith(("/torchrun", "/accelerate"))


@functools.cache
def shown(filename):
    path = os.path.relpath(filename)
    return filename if path.startswith("../..") else path


def frames():
    """The frames of the reader's files that led here, the innermost first."""
    led = walk_stack(sys._getframe(1))
    return (frame for frame, _ in led if is_script(frame.f_code.co_filename))


def place(frame):
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def site():
    return next(map(place, frames()), "?")


def quietly(observe, *args, **kwargs):
    """A watcher that fails must not stop the script: it is named among what was not seen."""
    try:
        return observe(*args, **kwargs)
    except Exception as error:
        name = getattr(observe, "__name__", "watcher") + str([a for a in args if type(a) is str])
        if not OUT.forked:
            write_once("unseen", name, watcher=name, error=repr(error)[:200])


def before(note):
    """Around a function of which the arguments matter."""

    def around(original, *args, **kwargs):
        quietly(note, *args, **kwargs)
        return original(*args, **kwargs)

    return around


def noted(kind):
    """Around a function of which it matters that it is called."""
    return before(lambda *args, **kwargs: write(kind, at=site()))


def after(note):
    """Around a function of which the result matters: note(result, *arguments)."""

    def around(original, *args, **kwargs):
        result = original(*args, **kwargs)
        quietly(note, result, *args, **kwargs)
        return result

    return around


@contextmanager
def waiting(op, **what):
    """Around what may wait for other ranks. What is called inside is part of it."""
    if OUT.waits:
        yield
        return
    lines = quietly(lambda: [place(frame) for frame in islice(frames(), 4)]) or ["?"]
    OUT.waits, what = op, {"op": op, "at": lines[0], "lines": lines, **what}
    quietly(show_now, **what)
    try:
        yield
        OUT.passed += not op.endswith(".wait")  # the call itself has counted
        quietly(show_now, since=lines[0])
    except BaseException as error:
        quietly(show_now, error=f"{type(error).__name__}: {error}"[:200], **what)
        raise
    finally:
        OUT.waits = None


def fingerprint(tensor, rows=1):
    """A number per row, on the tensor's device: equal for equal bits, another after an exchange."""
    import torch

    bits = tensor.detach().reshape(-1)
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = bits.view(sizes[bits.element_size()]).view(rows, -1)
    if bits.shape[1] > 1_000_000:  # sums of columns first: one pass, no memory
        whole = bits.shape[1] // 1024 * 1024
        columns = bits[:, :whole].reshape(rows, -1, 1024).sum(1, dtype=torch.int64)
        bits = torch.cat([columns, bits[:, whole:].long()], 1)
    OUT.on_device |= bits.device.type != "cpu"
    return (bits * torch.arange(1, 2 * bits.shape[1], 2, device=bits.device)).sum(1)


def fingerprints(tensors):
    """A number per tensor, all in one tensor. -1 stands for one that cannot be compared."""
    import torch

    tensors = list(tensors)
    dense = [t for t in tensors if comparable(t)]
    if not dense or len({t.device for t in dense}) > 1:
        return [-1] * len(tensors)
    none = torch.tensor([-1], device=dense[0].device)
    return torch.cat([fingerprint(t) if comparable(t) else none for t in tensors])


def projections(parameters):
    """A number for each of the first gradients: that of a sum is the sum of their numbers."""
    import torch

    numbers = []
    for gradient in [p.grad for p in parameters[:20]]:
        row = gradient if comparable(gradient) else torch.zeros(1)
        row = row.detach().reshape(-1)[:1000].double()
        weights = torch.arange(1.0, len(row) + 1, dtype=row.dtype, device=row.device)
        OUT.on_device |= row.device.type != "cpu"
        numbers.append(row @ weights)
    return numbers


def comparable(tensor):
    """Is it whole, in this process, and not a part of one as a DTensor is?"""
    import torch

    whole = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return whole and tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0


def draws():
    """The states of the generators that training draws from. They are kept on the host."""
    import random

    import torch

    states = {"torch": torch.get_rng_state().numpy(), "random": b"%d" % hash(random.getstate()[1])}
    if torch.cuda.is_initialized():  # never in a forked worker
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()[1].tobytes()
    return {name: zlib.crc32(bytes(state)) for name, state in states.items()}

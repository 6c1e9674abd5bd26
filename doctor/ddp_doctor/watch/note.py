"""What all watchers share: the file of this process, lines of the reader's code, fingerprints."""

import ctypes
import dataclasses
import functools
import os
import random
import socket
import sys
import sysconfig
import time
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_stack

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

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package
TORCH = os.path.dirname(torch.__file__)
LIBRARY = ("<", HERE, TORCH, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
LARGEST = 1_000_000  # bytes: a larger file is no script, and no settings
MOST = 5000  # events of one kind: the file stays small, however long the run is
MOST_WAITS = 40_000  # events of the kinds below, together
WAITS = (Forward, Backward, Collective, Returned)  # they tell what a rank waits for
PAUSES = (
    EpochBegan,
    EpochEnded,
    Raised,
    Destroyed,
    Ended,
)  # when a wait for the device costs nothing

# Views of a tensor's bits, by the size of its elements in bytes.
WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    """The event with plain values. A tensor on a GPU is read later: no step waits for it."""
    plain = {}
    for name, value in vars(event).items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.device.type == "cpu":
            plain[name] = value.tolist()
            continue
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


@contextmanager
def waiting(op):
    """Around a call that may wait for other ranks. An exception leaves it without Returned."""
    PROCESS.waits_in.append(op)
    try:
        yield
    except BaseException:
        PROCESS.waits_in.pop()
        raise
    PROCESS.waits_in.pop()
    PROCESS.passed += 1
    quietly(note_returned, op)


def note_returned(op):
    outer = PROCESS.waits_in[-1] if PROCESS.waits_in else None
    write(Returned(now(), op, outer))


# ------------------------------------------------------------------ replace a function


def is_recorded():
    """Would what a watcher computes become a part of a compiled or captured graph?"""
    if torch.compiler.is_compiling():
        return True
    # In a process that has not used a GPU the second question would start one.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def replace(owner, name, around):
    """owner.name becomes around(original, *args, **kwargs), in ranks and outside of compilers."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args, **kwargs):
        if is_recorded() or not PROCESS.is_rank():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(owner, name, watched)
    return watched


def before(observe):
    """For replace(): observe(*args) is called first, and the original in any case."""

    def around(original, *args, **kwargs):
        quietly(observe, *args, **kwargs)
        return original(*args, **kwargs)

    return around


def after(observe):
    """For replace(): observe(result, *args) is called after the original."""

    def around(original, *args, **kwargs):
        result = original(*args, **kwargs)
        quietly(observe, result, *args, **kwargs)
        return result

    return around


# ------------------------------------------------------------------ lines of the reader's code


@functools.cache
def is_script(filename):
    """Is this one of the reader's files, and not the standard library's or a package's?"""
    if filename.startswith(LIBRARY) or "-packages" in filename:
        return False
    return not filename.endswith(("/torchrun", "/accelerate"))


@functools.cache
def shown(filename):
    path = os.path.relpath(filename)
    return filename if path.startswith("../..") else path


def script_frames():
    """The frames of the reader's files that led here, the innermost first."""
    for frame, _ in walk_stack(sys._getframe(1)):
        if is_script(frame.f_code.co_filename):
            yield frame


def line_of(frame):
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def function_of(frame):
    code = frame.f_code
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def here():
    for frame in script_frames():
        return line_of(frame)
    return "?"


# ------------------------------------------------------------------ tensors as numbers


def is_plain(tensor):
    """Is this tensor whole, and not a part of one, as a DTensor is?"""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if tensor.is_meta or tensor.is_complex():
        return False
    return tensor.layout == torch.strided and tensor.numel() > 0


def fingerprint(tensor):
    """Equal for equal bits, and another after an exchange of two. It stays on the device."""
    row = tensor.detach().reshape(-1)
    bits = row.view(WHOLE_NUMBERS[row.element_size()])
    if len(bits) > 1_000_000:  # sums of columns first: one pass over it, and no memory
        whole = len(bits) // 1024 * 1024
        columns = bits[:whole].view(-1, 1024).sum(0, dtype=torch.int64)
        bits = torch.cat([columns, bits[whole:].long()])
    weights = torch.arange(1, 2 * len(bits), 2, device=bits.device)
    return (bits * weights).sum()


def script_files():
    """The files of the script's own modules that have been imported by now."""
    names = []
    for module in [*sys.modules.values()]:
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and is_script(name):
            names.append(name)
    return names


def text_of(path):
    """The text of a file. It is empty if there is none, or if it is too large for a script."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size > LARGEST:
        return ""
    return file.read_text(errors="replace")


def random_states():
    """A number for the state of each random generator on the host: equal for equal states."""
    states = {"torch": checksum(torch.get_rng_state()), "random": hash(random.getstate()[1])}
    if "numpy" in sys.modules:
        states["numpy"] = zlib.crc32(sys.modules["numpy"].random.get_state()[1].tobytes())
    return states


def checksum(state):
    """Of a generator's state, a tensor of bytes on the CPU. Without NumPy it has no numpy()."""
    return zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel()))


def fingerprints(tensors):
    """A number per tensor, together in one tensor. -1 stands for one that cannot be compared."""
    tensors = list(tensors)
    devices = {tensor.device for tensor in tensors if is_plain(tensor)}
    if len(devices) != 1:
        return [-1] * len(tensors)
    # Not torch.tensor(-1, device=...): that copies a number from the host, and waits.
    none = torch.full((), -1, device=devices.pop())
    return torch.stack([fingerprint(one) if is_plain(one) else none for one in tensors])


def weighted_sums(gradients):
    """A number of each gradient: that of the mean of gradients is the mean of their numbers."""
    gradients = list(gradients)
    devices = {gradient.device for gradient in gradients if is_plain(gradient)}
    if len(devices) != 1:
        return [0.0] * len(gradients)
    none = torch.zeros((), dtype=torch.double, device=devices.pop())
    return torch.stack([weighted_sum(one) if is_plain(one) else none for one in gradients])


def weighted_sum(gradient):
    row = gradient.detach().reshape(-1)[:1000].double()
    weights = torch.arange(1.0, len(row) + 1, dtype=row.dtype, device=row.device)
    return row @ weights

"""The twin: the command once more, in a copy of its folder, with blocks of steps of several kinds.

"with" and "without" communication, and "alone": each rank in turn, while the others wait. Landlock
(Linux 5.13) lets its processes write below COPY only. What the script writes elsewhere goes to a
folder there.
"""

import builtins
import ctypes
import io
import os
from contextlib import contextmanager, suppress

from .record import State

WARM = 8  # steps before the first block; a collective in nearly all of them is one per step
ROUNDS = 8  # blocks of each kind: then there are enough
ALIKE = "all_reduce reduce broadcast barrier broadcast_object_list".split()  # need no other rank
COPY = os.environ.get("DDP_DOCTOR_COPY")  # its folder "copy" has links to the script's files


class Twin(State):
    """The block that is being made."""

    def reset(self):
        self.size = int(os.environ.get("DDP_DOCTOR_TWIN", 0))  # steps of a block; 0: no twin
        self.threads = int(os.environ.get("DDP_DOCTOR_THREADS", 0))  # of a rank, to try; 0: none
        self.kinds = ["with", "without", "alone"] + ["threads"] * bool(self.threads)
        self.kind, self.seen = "with", {}


TWIN = Twin()


@contextmanager
def muted(ddp):
    """A forward pass of DDP; in some blocks as under no_sync(), also for the buffers."""
    before = ddp.require_backward_grad_sync
    if TWIN.kind not in ("with", "threads"):
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
    yield
    ddp.require_backward_grad_sync = before


def left_out(name, at, n, in_step):
    """Is this collective one of every step, in a block without communication?"""
    if TWIN.size and in_step and n < WARM:
        TWIN.seen[name, at] = TWIN.seen.get((name, at), 0) + 1
    every = TWIN.seen.get((name, at), 0) >= WARM - 2 and name in ALIKE
    if in_step and every and TWIN.kind not in ("with", "threads"):
        return True
    end_turn()  # no other rank waits for its turn while this one waits here
    return False


def between(n, flush):
    """After step n: the next block. After enough of them the command ends here."""
    import torch

    block, place = divmod(n - WARM, TWIN.size)
    if n < WARM or place:
        return
    end_turn()
    if n == WARM:
        TWIN.usual = torch.get_num_threads()
    if block == ROUNDS * len(TWIN.kinds):
        flush()
        wait(1)
        os._exit(0)
    TWIN.kind = TWIN.kinds[block % len(TWIN.kinds)]
    if TWIN.threads:
        torch.set_num_threads(TWIN.threads if TWIN.kind == "threads" else TWIN.usual)
    if TWIN.kind == "alone":
        wait(torch.distributed.get_rank())


def end_turn():
    """The next rank's turn. What is left of a block that was broken off does not count."""
    from torch import distributed as dist

    if TWIN.kind == "alone":
        TWIN.kind = "over"
        wait(dist.get_world_size() - dist.get_rank())


def wait(times):
    from torch import distributed as dist

    for _ in range(times):
        dist.barrier.__wrapped__()  # the original: it is no part of a step


# ---------------------------------------------------------------- nothing is written elsewhere


def fence(*folders):
    """This process, and those it starts, can write below these folders only.

    Raises OSError without Landlock. Its numbers are those of linux/landlock.h.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(*args):
        result = libc.syscall(*args)
        if result < 0:
            raise OSError(ctypes.get_errno(), "this system has no Landlock")
        return result

    version = call(444, None, 0, 1)
    rights = 1 << 1 | 0x1FF0 | (version > 1) << 13 | (version > 2) << 14  # all that changes files
    rules = call(444, ctypes.byref(ctypes.c_uint64(rights)), 8, 0)
    for folder in folders:
        place = os.open(folder, os.O_PATH)
        rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
        call(445, rules, 1, rule, 0)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    call(446, rules, 0)


def inside(path, writes=True):
    """A path, or the one below COPY that stands for it."""
    if not COPY or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    real = os.path.realpath(os.fsdecode(path))
    if real.startswith((COPY, os.environ["DDP_DOCTOR_FOLDER"], "/dev/", "/proc/")):
        return path
    inner = os.path.join(COPY, "outside", real.lstrip("/"))
    if writes:
        os.makedirs(os.path.dirname(inner), exist_ok=True)
    return inner if writes or os.path.exists(inner) else path


def redirect():
    """In each Python process of the twin, so that a script which saves elsewhere goes on."""

    def opened(original):
        def instead(file, mode="r", *args, **kwargs):
            writes = mode & os.O_CREAT if isinstance(mode, int) else set(mode) & set("wxa")
            return original(inside(file, writes), mode, *args, **kwargs)

        return instead

    def changed(original):
        def instead(*args, **kwargs):
            with suppress(FileNotFoundError):  # of the script's folder
                return original(*map(inside, args), **kwargs)

        return instead

    builtins.open = io.open = opened(io.open)
    os.open = opened(os.open)
    for name in "rename replace remove unlink mkdir rmdir chmod utime truncate".split():
        setattr(os, name, changed(getattr(os, name)))

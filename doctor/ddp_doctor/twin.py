"""The twin: the command once more, in a copy of its folder, with blocks of steps of several kinds.

"with" and "without" communication, and "alone": each rank in turn, while the others wait. Landlock
(Linux 5.13) lets its processes write below the copy only. What is refused is left out.
"""

import builtins
import ctypes
import io
import os
from collections import defaultdict
from contextlib import contextmanager, suppress

from .record import State

# The processors of this machine that we may use; a Mac does not say which.
CORES = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0))
WARM = 8  # steps before the first block; a collective in nearly all of them is one per step
ROUNDS = 8  # blocks of each kind: then there are enough
ALIKE = "all_reduce reduce broadcast barrier broadcast_object_list".split()  # need no other rank
COPY = os.environ.get("DDP_DOCTOR_COPY")  # the folder in which the twin may write
# What os does to files, and what of it no fence stops: it is done below COPY only.
CHANGES = "rename replace remove unlink mkdir rmdir link symlink".split()
MARKS = "chmod fchmod chown fchown lchown utime truncate setxattr removexattr".split()


class Twin(State):
    """The block that is being made."""

    def reset(self):
        self.size = int(os.environ.get("DDP_DOCTOR_TWIN", 0))  # steps of a block; 0: no twin
        self.kinds = ["with", "without", "alone"]  # and "threads", with fewer of them
        self.kind, self.seen = "with", defaultdict(set)


TWIN = Twin()
REFUSED = (OSError, RuntimeError) if TWIN.size else ()  # what torch.save raises at the fence


@contextmanager
def muted(ddp):
    """A forward pass of DDP; in some blocks as under no_sync(), also for the buffers."""
    before = ddp.require_backward_grad_sync
    if TWIN.kind not in ("with", "threads"):
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
    yield
    ddp.require_backward_grad_sync = before


def left_out(call, n, in_loop):
    """Is this collective one of every step, in a block without communication?"""
    if TWIN.size and in_loop and n < WARM:
        TWIN.seen[call].add(n)
    every = len(TWIN.seen[call]) >= WARM - 2 and call.split()[1] in ALIKE
    if in_loop and every and TWIN.kind not in ("with", "threads"):
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
        share = max(1, CORES // torch.distributed.get_world_size())
        TWIN.threads = {"threads": share, "with": torch.get_num_threads()}
        TWIN.kinds += ["threads"] * (TWIN.threads["with"] > share)
    if block == ROUNDS * len(TWIN.kinds):
        flush()
        wait(1)
        os._exit(0)
    TWIN.kind = TWIN.kinds[block % len(TWIN.kinds)]
    torch.set_num_threads(TWIN.threads.get(TWIN.kind, TWIN.threads["with"]))
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


def go_on():
    """In each Python process of the twin: a write that the fence refuses does nothing."""

    def opened(original):
        def instead(file, mode="r", *args, **kwargs):
            try:
                return original(file, mode, *args, **kwargs)
            except OSError:
                flags = isinstance(mode, int)
                if not (mode & (os.O_WRONLY | os.O_RDWR) if flags else set(mode) & set("wxa+")):
                    raise
                mode = os.O_RDWR if flags else mode.replace("x", "w")
                return original(os.devnull, mode, *args, **kwargs)

        return instead

    def changed(original):
        def instead(*args, **kwargs):
            with suppress(PermissionError, FileNotFoundError):
                return original(*args, **kwargs)

        return instead

    def marked(original):
        def instead(path, *args, **kwargs):
            real = os.path.realpath("/" if isinstance(path, int) else path)
            if real.startswith(COPY):
                return original(path, *args, **kwargs)

        return instead

    builtins.open = io.open = opened(io.open)
    for around, names in {opened: ["open"], changed: CHANGES, marked: MARKS}.items():
        for name in names:
            setattr(os, name, around(getattr(os, name)))

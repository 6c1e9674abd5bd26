"""Watches what leaves the script by files, queues between processes, and the group's store."""

import multiprocessing.queues
import os
import sys
from traceback import walk_stack

import torch
from torch.utils._pytree import tree_leaves

from ..run.events import Awaited, Read, Sent, Wrote
from . import note, patch
from .lines import HERE, callers, here, is_script
from .note import EVERY_STATE, PROCESS, now, quietly, write
from .patch import before, listen, replace

WRITING = set("wxa+")
NAMELESS = getattr(os, "O_TMPFILE", 0)  # only Linux has it
HEARD = ("open", "os.rename", "fcntl.flock", "fcntl.lockf")
# These open files or use queues by themselves, although a line of the script has led to it.
LIBRARIES = ("tempfile.py", "importlib", "inspect.py", "linecache.py", "traceback.py", "utils/data")
PASSES_ON = (__file__, note.__file__, patch.__file__)  # between this watcher and the script
MOST = 3000  # files that are noted: a data set may have a file per sample


class Files:
    """What this process has opened."""

    def reset(self):
        self.known = set()


FILES = Files()
FILES.reset()
EVERY_STATE.append(FILES)


def install():
    replace(torch, "save", before(note_save))
    replace(multiprocessing.queues.Queue, "put", before(note_sent))
    replace(multiprocessing.queues.SimpleQueue, "put", before(note_sent))
    replace(torch.distributed.Store, "set", before(note_sent))
    replace(torch.distributed.Store, "wait", before(note_key))
    replace(torch.distributed.Store, "get", before(note_key))
    listen(hear, *HEARD)


def note_save(obj, f, *args, **kwargs):
    """torch.save opens its file without Python's open()."""
    weights = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(obj))
    if isinstance(f, (str, os.PathLike)):
        path = os.path.abspath(f)
        write_down(path, weights=weights)


def write_down(path, weights=False, appends=False, renamed=False):
    lines = callers(most=8)
    write(Wrote(now(), here(), path, weights, appends, renamed, PROCESS.passed, lines))


def note_sent(*args, **kwargs):
    if not by_library():
        write(Sent(now(), here()))


def note_key(*args, **kwargs):
    """PyTorch itself waits for keys of the store, too, and that tells nothing of files."""
    for frame, _ in walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if name.startswith(HERE):
            continue
        if is_script(name):
            write(Awaited(now(), PROCESS.passed))
        return


def hear(event, args):
    """An audit hook: files that are opened, that get another name, or that are locked."""
    if PROCESS.file is None:
        return
    try:
        if not PROCESS.is_rank():
            return
        if event.startswith("fcntl"):
            quietly(note_lock)
        elif event == "os.rename":
            quietly(note_rename, args[1])
        elif isinstance(args[0], (str, bytes)):
            quietly(note_open, args[0], args[1] or "", args[2] or 0)
    except Exception:  # the interpreter is shutting down
        pass


def note_lock():
    write(Awaited(now(), PROCESS.passed))


def note_rename(path):
    path = os.path.abspath(os.fsdecode(path))
    if is_script(path) and not by_library():
        write_down(path, renamed=True)


def note_open(path, mode, flags):
    """open() says how by a mode, and os.open() by flags."""
    path = os.path.abspath(os.fsdecode(path))
    writes = bool(WRITING & set(mode)) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    folder = os.environ["DDP_DOCTOR_FOLDER"]
    if NAMELESS and flags & NAMELESS == NAMELESS:
        return  # The file has no name, and the path is that of its folder.
    ours = path.startswith((folder, HERE, "/dev", "/proc", "/sys"))
    key = (path, writes, PROCESS.passed)
    if ours or key in FILES.known or len(FILES.known) > MOST:
        return
    if not is_script(path) or by_library():
        return
    FILES.known.add(key)
    if writes:
        appends = "a" in mode or bool(flags & os.O_APPEND)
        write_down(path, appends=appends)
    else:
        found = os.path.exists(path)
        write(Read(now(), here(), path, PROCESS.passed, found, callers(most=8)))


def by_library():
    """Does a library between this watcher and the script's line do it for itself?"""
    for frame, _ in walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if is_script(name):
            return False
        if name.startswith(HERE) and name not in PASSES_ON:
            return True  # another watcher reads the script's code
        if any(library in name for library in LIBRARIES):
            return True
    return False

"""With --short the reader's files stay as they are: what a file held before the run is kept.

Right before the script writes over a file that was there before the run, renames it, or removes
it, the file gets a second name next to it. run/kept.py puts it back after the run, and names what
the short run has written instead NAME.short. Files that are empty, or that are only appended to or
changed in place, are left alone.
"""

import functools
import json
import os
import stat
import threading
from pathlib import Path

import torch

from ..run.kept import kept_name
from .lines import HERE, is_script
from .note import PROCESS
from .patch import listen, replace

BUSY = threading.local()  # this thread is keeping a file: its own calls are none of the script's
EVENTS = ("open", "os.rename", "os.remove", "shutil.rmtree")
NO_FOLDER = (None, -1)  # a path that is relative to an open folder is a part of shutil.rmtree()


def install():
    replace(torch, "save", functools.partial(around_writer, 1, "f"))
    listen(hear, *EVENTS)


def around_writer(place, name, original, *args, **kwargs):
    """A function that opens its file without Python's open()."""
    keep_before_writing(kwargs.get(name, args[place] if len(args) > place else None))
    return original(*args, **kwargs)


def hear(event, args):
    """An audit hook: it is called right before the file is touched."""
    if event not in EVENTS or getattr(BUSY, "now", False) or not PROCESS.is_rank():
        return
    if event == "open":
        path, _, flags = args
        if flags and flags & os.O_TRUNC:
            keep_before_writing(path)
    elif event == "os.rename":
        keep(args[0])
        keep(args[1])
    elif len(args) < 2 or args[1] in NO_FOLDER:
        keep(args[0])


def keep_before_writing(path):
    """To write would change the file under both of its names, so it loses the first one.

    Python opens a whole folder "for writing" if a temporary file without a name lies in it.
    """
    if not is_path(path) or getattr(BUSY, "now", False):
        return
    BUSY.now = True
    try:
        file = os.path.realpath(os.fsdecode(path))
        if is_old(file):
            name = kept_name(file, file)
            keep_file(file, name)
            if os.path.isfile(file) and os.path.samefile(file, name):
                os.unlink(file)
    finally:
        BUSY.now = False


def keep(path):
    """Give each file of this path a second name, if it was there before the run."""
    if not is_path(path) or getattr(BUSY, "now", False):
        return
    BUSY.now = True
    try:
        path = os.path.abspath(os.fsdecode(path))
        for file in files_of(path):
            if is_old(file):
                keep_file(file, kept_name(file, path))
    finally:
        BUSY.now = False


def is_path(path):
    return isinstance(path, (str, bytes, os.PathLike))


def files_of(path):
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    found = []
    for folder, _, names in os.walk(path):
        found += [os.path.join(folder, name) for name in names]
    return found


def is_old(file):
    ours = file.startswith((os.environ["DDP_DOCTOR_FOLDER"], HERE, "/dev/", "/proc/", "/sys/"))
    if ours or "__pycache__" in file or not is_script(file):
        return False
    try:
        known = os.lstat(file)
    except OSError:
        return False
    is_file = stat.S_ISREG(known.st_mode) or stat.S_ISLNK(known.st_mode)
    started = float(os.environ["DDP_DOCTOR_STARTED"])
    return is_file and known.st_size > 0 and known.st_mtime < started


def keep_file(file, name):
    """Ranks may do it at the same time: only the first one can make the second name."""
    os.makedirs(os.path.dirname(name), exist_ok=True)
    try:
        os.link(file, name)
    except FileExistsError:
        return
    except OSError as error:
        refusal = f"ddp-doctor: --short stops here, since {file} would be lost: {error.strerror}"
        raise RuntimeError(refusal) from None
    note_kept(file, name)


def note_kept(file, name):
    folder = Path(os.environ["DDP_DOCTOR_FOLDER"])
    line = json.dumps([file, name]) + "\n"
    with open(folder / f"kept-{os.getpid()}.txt", "a") as stream:
        stream.write(line)

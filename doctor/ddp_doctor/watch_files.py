"""Where results may go, in each rank: files, prints, queues, ports that the script chooses.

See watch.py for what all watchers promise.
"""

import os
import sys
from itertools import takewhile
from traceback import walk_stack

from . import record
from .record import OUT, before, is_script, site, write

LIBRARIES = ("tempfile.py", "importlib", "inspect.py", "linecache.py", "traceback.py", "utils/data")
SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")  # files in which a port may stand


def note_save(obj, f, *args, **kwargs):
    import torch

    whole = obj if isinstance(obj, dict) else {}
    values = [v for d in (whole, *whole.values()) if isinstance(d, dict) for v in d.values()]
    weights = any(isinstance(value, torch.Tensor) for value in values)
    if isinstance(f, (str, os.PathLike)):  # it is opened without Python's open()
        note_open(f, "w", saved=weights)


def note_sent(*args, **kwargs):
    """Results may leave by a file, by a queue of the script (not a DataLoader's), by a store."""
    if not opened_by_library():
        record.write_once("sent", OUT.phase)


def note_printed(*args, **kwargs):
    if kwargs.get("file") in (None, sys.stdout) and args:
        note_print(args)


def note_logged(logger, line):
    if is_script(line.pathname):
        note_print([line.getMessage()])


def note_print(args):
    if OUT.written["print"] < 300:
        write("print", text=" ".join(map(str, args))[:120], at=site(), steps=OUT.steps)


def hear(event, args):
    """Audit hook: files that are opened or renamed, and the port that the script itself chooses."""
    if event not in ("open", "os.rename", "os.putenv") or OUT.ended:
        return
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            OUT.port = {"port": os.fsdecode(args[1]), "at": site()}
            if not OUT.forked:  # otherwise it is written when the process joins a group
                write("port", **OUT.port)
        elif OUT.forked:
            return
        elif OUT.file is not None and event == "os.rename":
            note_open(args[1], "w")
        elif event == "open" and isinstance(args[0], (str, bytes)):
            settings = os.fsdecode(args[0]).endswith(SETTINGS)  # read by a parent of ranks, maybe
            if OUT.file is not None or settings:
                note_open(args[0], args[1] or "", args[2] or 0)
    except Exception:  # the interpreter is shutting down
        pass


def note_open(path, mode, flags=0, saved=False):
    path = os.path.abspath(os.fsdecode(path))
    writes = bool(set(mode) & set("wxa+")) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    ours = path.startswith((os.environ["DDP_DOCTOR_FOLDER"], record.HERE, "/dev", "/proc", "/sys"))
    known = (path, writes, OUT.passed) in OUT.said or len(OUT.said) > 3000
    if ours or known or not is_script(path) or opened_by_library():
        return
    OUT.said.add((path, writes, OUT.passed))
    appends = "a" in mode or bool(flags & os.O_APPEND)
    write("open", path=path, at=site(), writes=writes, appends=appends, saved=saved)
    if writes:
        note_sent()


def opened_by_library():
    names = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(2)))
    between = takewhile(lambda name: not is_script(name), names)
    return any(library in name for name in between for library in LIBRARIES)


WATCHED = {
    "torch save": before(note_save),
    "builtins print": before(note_printed),
    "logging:Logger handle": before(note_logged),
    "multiprocessing.queues:Queue put": before(note_sent),
    "multiprocessing.queues:SimpleQueue put": before(note_sent),
    "torch.distributed:Store set": before(note_sent),
}

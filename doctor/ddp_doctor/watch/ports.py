"""Watches at which port the ranks meet: is it free, or a number that stands in the script?

The port may be chosen by another process than the one that joins: by the parent that starts the
ranks. A parent is no rank and has no file, so it leaves what it knows in the environment.
"""

import os
import re
import sys

from ..run.events import FixedPort
from .lines import is_script, line_of, script_files, script_frames, text_of
from .note import now, quietly, write

CHOSEN = "DDP_DOCTOR_PORT"  # "12355 train.py:20": what was put into MASTER_PORT, and where
SETTINGS = "DDP_DOCTOR_SETTINGS"  # files of settings that were read
ENDINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")


def install():
    sys.addaudithook(hear)


def hear(event, args):
    """An audit hook, of ranks and of those who start them."""
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            quietly(note_environment, os.fsdecode(args[1]))
        elif event == "open" and isinstance(args[0], str) and args[0].endswith(ENDINGS):
            quietly(note_settings, args[0])
    except Exception:  # the interpreter is shutting down
        pass


def note_environment(port):
    """Only the script's own choice counts, and not that of the launcher."""
    for frame in script_frames():
        os.environ[CHOSEN] = f"{port} {line_of(frame)}"
        return


def note_settings(path):
    path = os.path.abspath(path)
    known = os.environ.get(SETTINGS, "").split(os.pathsep)
    if is_script(path) and path not in known and len(known) < 20:
        os.environ[SETTINGS] = os.pathsep.join([*known, path])


def note_port(args, kwargs):
    """Before init_process_group(*args, **kwargs): is the port a number in one of the files?"""
    port, at = port_of([*args, *kwargs.values()])
    if port is None:
        return
    for path in candidates(at):
        if is_in(port, path):
            write(FixedPort(now(), at, int(port), os.path.basename(path)))
            return


def port_of(values):
    """-> the port and the line that chose it, or None and None."""
    for value in values:
        found = re.match(r"tcp://.*:([1-9]\d*)", value) if isinstance(value, str) else None
        if found:
            for frame in script_frames():
                return found[1], line_of(frame)
    port, _, at = os.environ.get(CHOSEN, "").partition(" ")
    if port.isdigit() and port != "0" and port == os.environ.get("MASTER_PORT"):
        return port, at
    return None, None


def candidates(at):
    """The file of the line, all modules of the script, and the settings that were read."""
    paths = [at.rpartition(":")[0]]
    paths += script_files()
    paths += os.environ.get(SETTINGS, "").split(os.pathsep)
    return dict.fromkeys(paths)


def is_in(port, path):
    return re.search(rf"(?<!\d){port}(?!\d)", text_of(path)) is not None

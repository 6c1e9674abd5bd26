"""Before `import torch` nothing is watched but the exception that ends the script.

A package that is not installed often ends a script so. No module that needs torch may be
imported here.
"""

import os
import socket
import sys
import sysconfig
import time
from pathlib import Path
from traceback import walk_tb

from ..run.events import Moment, Raised, to_line

LIBRARY = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def install():
    show = sys.excepthook

    def hook(kind, error, traceback):
        is_rank = "RANK" in os.environ and "DDP_DOCTOR_RANK" not in os.environ
        watched = "ddp_doctor.watch.install" in sys.modules  # since torch was imported
        if is_rank and not watched and isinstance(error, Exception):
            note_raised(error)
        show(kind, error, traceback)

    sys.excepthook = hook


def note_raised(error):
    at = "?"
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith(LIBRARY) and "-packages" not in name:
            path = os.path.relpath(name)
            at = f"{name if path.startswith('../..') else path}:{line}"
    now = Moment(time.monotonic(), step=0, passes=0)
    event = Raised(now, at, f"{type(error).__name__}: {error}"[:300])
    file = Path(os.environ["DDP_DOCTOR_FOLDER"], f"{socket.gethostname()}-{os.getpid()}.jsonl")
    try:
        file.write_bytes(to_line(event))
    except OSError:
        pass  # the script ends by its own exception

"""Installs all watchers, and watches the process itself: its exception and its end."""

import argparse
import atexit
import functools
import os
import sys
from importlib import import_module
from multiprocessing.process import BaseProcess
from traceback import walk_tb

import torch

from ..run.events import Ended, Raised, Refused
from . import collectives, data, keep, models, ports, printing, saving, short, state, steps
from .lines import is_script, shown
from .note import PROCESS, after_fork, now, quietly, write
from .patch import before, replace


def install():
    """Called once, right after torch has been imported."""
    if not torch.distributed.is_available() or started_by_a_rank():
        return
    if "DDP_DOCTOR_SHORT" in os.environ:
        quietly(short.install)
        quietly(keep.install)
    if "DDP_DOCTOR_SPEED" in os.environ:
        from . import laps  # Without it the ranks of `check` start faster.

        # Time is measured without the other watchers, which take some of it.
        quietly(collectives.watch_group)
        quietly(laps.install)
    else:
        watchers = (collectives, steps, data, printing, saving)
        for watcher in (*watchers, ports, models, state):
            quietly(watcher.install)
    replace(argparse.ArgumentParser, "error", before(note_refused))
    watch_exceptions()
    atexit.register(goodbye)
    os.register_at_fork(after_in_child=after_fork)


def started_by_a_rank():
    """A process that a rank starts inherits RANK. It is a compiler or a worker, and no rank."""
    rank = os.environ.get("RANK")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    mine = f"{rank} {os.environ.get('MASTER_PORT')} {attempt}"
    inherited = os.environ.get("DDP_DOCTOR_RANK")
    if rank is not None:
        os.environ["DDP_DOCTOR_RANK"] = mine
    return rank is not None and inherited == mine


def watch_exceptions():
    show = sys.excepthook

    def hook(kind, error, traceback):
        quietly(note_raised, error)
        show(kind, error, traceback)

    sys.excepthook = hook
    spawn = import_module("torch.multiprocessing.spawn")  # the module, not the function
    wrap = spawn._wrap

    @functools.wraps(wrap)
    def watched_wrap(function, *args, **kwargs):
        """mp.spawn catches what its function raises, and the excepthook never sees it."""
        PROCESS.spawned = True

        def watched(*inner):
            try:
                return function(*inner)
            except Exception as error:
                quietly(note_raised, error)
                raise

        wrap(watched, *args, **kwargs)
        goodbye()

    spawn._wrap = watched_wrap
    run = BaseProcess.run

    @functools.wraps(run)
    def watched_run(process):
        """multiprocessing catches what a process raises, and a forked one runs no atexit."""
        try:
            run(process)
        except Exception as error:
            quietly(note_raised, error)
            raise
        finally:
            goodbye()

    BaseProcess.run = watched_run


def note_raised(error):
    if not PROCESS.is_rank():
        return
    at = "?"
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if is_script(name):
            at = f"{shown(name)}:{line}"
    write(Raised(now(), at, f"{type(error).__name__}: {error}"[:300]))


def note_refused(parser, message):
    write(Refused(now(), str(message)[:300]))


def goodbye():
    if PROCESS.file is not None and PROCESS.is_rank():
        quietly(state.note_end)
        quietly(steps.note_end)
        if "DDP_DOCTOR_SPEED" in os.environ:
            from . import laps

            quietly(laps.note_end)
        quietly(note_ended)
        PROCESS.over = True


def note_ended():
    write(Ended(now()))

"""Runs the command with the watchers in its Python processes, and ends what it has started."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .record import HERE

START = os.path.join(HERE, "start")  # on PYTHONPATH, so that Python imports sitecustomize.py
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Run:
    """What a run of the command left: how it ended, and the events of each process."""

    code: int | None  # None: it was stopped
    end: str = ""  # "", "hang", "limit", "interrupt"
    nows: dict = field(default_factory=dict)  # where each process was, by pid
    processes: list = field(default_factory=list)  # [(events, now), ...]


def observe(command, patience, limit, cwd=None, watcher="watch", more=(), fence=None) -> Run:
    """Run the command with the watchers until it ends, hangs or takes longer than the limit.

    more: environment variables. fence: called in the child, with the folder for its events.
    """
    folder = tempfile.mkdtemp(prefix="ddp-doctor-")
    try:
        path = os.pathsep.join(filter(None, [START, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "DDP_DOCTOR_FOLDER": folder}
        env |= {"DDP_DOCTOR_WATCHER": watcher, **dict(more)}
        begin = fence and functools.partial(fence, folder)
        silent = subprocess.DEVNULL if fence else None
        streams = {"stdout": silent, "stderr": silent, "preexec_fn": begin}
        # Without an activated environment, torchrun is not on PATH but next to this Python.
        neighbour = shutil.which(command[0], path=os.path.dirname(sys.executable))
        program = [neighbour or command[0], *command[1:]]
        child = subprocess.Popen(program, env=env, cwd=cwd, **streams)
        run = wait(child, folder, patience, limit)
        run.processes = read(folder, run.nows)
        return run
    finally:
        end(started(folder))
        shutil.rmtree(folder, ignore_errors=True)


def wait(process, folder, patience, limit):
    start = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.2)
            nows = states(folder)
            if hangs(nows, patience):
                return Run(None, "hang", nows)
            if time.monotonic() - start > limit:
                return Run(None, "limit", nows)
        return Run(process.returncode)
    except KeyboardInterrupt:
        for number in SIGNALS:  # a second one would lose the report
            signal.signal(number, signal.SIG_IGN)
        return Run(None, "interrupt", states(folder))
    finally:
        if process.poll() is None:
            end([process.pid, *started(folder)])
            process.wait()


def states(folder):
    """{pid: where it is now} of the processes that have begun and are still there."""
    nows = {pid_of(path): loaded(path.read_bytes()) for path in Path(folder).glob("*.now")}
    return {pid: now for pid, now in nows.items() if now and alive(pid)}


def loaded(text):
    with suppress(ValueError):  # it was just being written
        return json.loads(text.rstrip(b" \0"))
    return {}


def alive(pid):
    return stat(pid)[0] != "Z" if os.path.isdir("/proc/self") else True


def stat(pid):
    """The fields of /proc/PID/stat from the state on; of a process that is gone: a zombie's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return ["Z", *["0"] * 50]


def hangs(nows, patience):
    """All ranks that are still there wait in a communication, and none computes."""
    waiting = [now for now in nows.values() if now.get("op") and "error" not in now]
    if not nows or len(waiting) < len(nows):
        return False
    joining = any(now["op"] == "init_process_group" for now in waiting)  # others may download
    if time.monotonic() - max(now["time"] for now in waiting) < (10 if joining else 1) * patience:
        return False
    before = sum(map(processor_time, nows))
    time.sleep(1)
    return sum(map(processor_time, nows)) - before < 20  # hundredths of a second


def processor_time(pid):
    return sum(map(int, stat(pid)[11:13]))


def started(folder):
    """The processes that have our folder in their environment, whoever is their parent."""
    mark, found = f"DDP_DOCTOR_FOLDER={folder}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or gone
            if mark in path.read_bytes() and alive(int(path.parent.name)):
                found.add(int(path.parent.name))
    if sys.platform != "linux":
        found = {pid_of(path) for path in Path(folder).glob("*.now")}
    return found - {os.getpid()}


def pid_of(path):
    return int(path.stem.rsplit("-", 1)[1])


def end(pids):
    """First the polite signal: a launcher ends its ranks, and waits for them."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        start = time.monotonic()
        while any(map(alive, pids)) and time.monotonic() - start < patience:
            time.sleep(0.1)


def read(folder, nows):
    processes = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        events = map(loaded, path.read_bytes().splitlines())  # the last may be cut off
        now = nows.get(pid_of(path)) or loaded(path.with_suffix(".now").read_bytes())
        processes.append(([event for event in events if event], now))
    return processes

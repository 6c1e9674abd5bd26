"""Runs the command with the watchers in its Python processes, and ends what it has started."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from .events import Backward, Collective, Ended, Forward, Joining, Raised, Returned, from_line, read

PACKAGE = Path(__file__).parents[1]
START = str(PACKAGE / "start")  # on PYTHONPATH, so that Python imports its sitecustomize.py
WAITS = (Joining, Collective, Forward, Backward)  # may wait for other ranks, until Returned
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def catch_signals():
    """Each of them raises KeyboardInterrupt from now on: what was started is ended in any case."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)


def observe(command, patience, limit, speed=False):
    """Run the command -> its exit code, how it ended, the events of each process.

    It ended by itself ("ended"), or was stopped: all ranks waited for longer than the patience
    ("hang"), it took longer than the limit ("limit"), or a signal came ("interrupt"). Then the
    exit code is None.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-doctor-"))
    try:
        process = subprocess.Popen([program(command[0]), *command[1:]], env=watched(folder, speed))
        end = wait(process, folder, patience, limit)
        processes = [read(file) for file in sorted(folder.glob("*.jsonl"))]
        code = process.returncode if end == "ended" else None
        return code, end, processes
    finally:
        stop(started(folder))
        shutil.rmtree(folder, ignore_errors=True)


def program(name):
    """Without an activated environment, torchrun is not on PATH but next to this Python."""
    neighbour = shutil.which(name, path=os.path.dirname(sys.executable))
    return neighbour or name


def watched(folder, speed):
    """The environment in which a Python process imports the watchers."""
    env = os.environ | {"DDP_DOCTOR_FOLDER": str(folder)}
    if speed:
        env["DDP_DOCTOR_SPEED"] = "1"
    path = os.environ.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{START}{os.pathsep}{path}" if path else START
    return env


def wait(process, folder, patience, limit):
    """-> "ended", "hang", "limit" or "interrupt"."""
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < limit:
            time.sleep(0.2)
            if process.poll() is not None:
                return "ended"
            if hangs(folder, patience):
                return "hang"
        return "limit"
    except KeyboardInterrupt:
        # To end all processes takes seconds. A second signal would lose the report.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return "interrupt"
    finally:
        if process.poll() is None:
            stop({process.pid} | started(folder))
            process.wait()


# ------------------------------------------------------------------ does it hang?


def hangs(folder, patience):
    """All ranks that are still there wait for others, and none computes."""
    files = [file for file in folder.glob("*.jsonl") if is_alive(pid_of(file))]
    tails = [tail_of(file) for file in files]
    if not tails or not all(map(is_waiting, tails)):
        return False
    since = max(tail[-1].when.time for tail in tails)
    # A rank that waits to join may wait for one that downloads.
    joining = any(isinstance(tail[-1], Joining) for tail in tails)
    if time.monotonic() - since < patience * (10 if joining else 1):
        return False
    before = sum(processor_time(pid_of(file)) for file in files)
    time.sleep(1)
    after = sum(processor_time(pid_of(file)) for file in files)
    same = all(tail_of(file)[-1:] == tail[-1:] for file, tail in zip(files, tails))
    return same and after - before < 20  # hundredths of a second


def pid_of(file):
    return int(file.stem.rpartition("-")[2])


def tail_of(file):
    """The last events of a process. Only the end of its file is read."""
    with open(file, "rb") as stream:
        stream.seek(max(0, file.stat().st_size - 100_000))
        lines = stream.read().split(b"\n")
    events = []
    for line in lines[-20:-1]:
        with suppress(ValueError):  # the beginning of the first line may be cut off
            events.append(from_line(line))
    return events


def is_waiting(tail):
    """Is the process in a call that may wait for others, as its last events show it?"""
    for event in reversed(tail):
        if isinstance(event, Returned):
            return event.inside is not None
        if isinstance(event, (Raised, Ended)):
            return False
        if isinstance(event, WAITS):
            return True
    return False


# ------------------------------------------------------------------ processes


def status(pid):
    """The fields of /proc/PID/stat from the state on; of a process that is gone: a zombie's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return ["Z"] + ["0"] * 50


def is_alive(pid):
    if not os.path.isdir("/proc/self"):  # not on Linux
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    return status(pid)[0] != "Z"


def processor_time(pid):
    fields = status(pid)
    return int(fields[11]) + int(fields[12])


def started(folder):
    """The processes that have our folder in their environment, whoever is their parent."""
    if not os.path.isdir("/proc/self"):
        return {pid_of(file) for file in folder.glob("*.jsonl")}
    mark = f"DDP_DOCTOR_FOLDER={folder}".encode()
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it is another user's, or it is gone
            if mark in file.read_bytes():
                found.add(int(file.parent.name))
    return found - {os.getpid()}


def stop(pids):
    """First the polite signal: a launcher ends its ranks, and waits for them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        living = [pid for pid in pids if is_alive(pid)]
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + 5
        while any(map(is_alive, living)) and time.monotonic() < deadline:
            time.sleep(0.1)

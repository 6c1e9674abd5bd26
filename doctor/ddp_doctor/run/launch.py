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

from .events import (
    ENOUGH,
    Backward,
    Collective,
    Ended,
    Enough,
    Forward,
    Joining,
    Raised,
    Returned,
    from_line,
    read,
)
from .kept import put_back

PACKAGE = Path(__file__).parents[1]
START = str(PACKAGE / "start")  # on PYTHONPATH, so that Python imports its sitecustomize.py
WAITS = (Joining, Collective, Forward, Backward)  # may wait for other ranks, until Returned
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_AT_END = 5  # seconds in which a launcher sees that its ranks have ended
PAUSE_OF_LOOKS = 1.0  # seconds between two looks at what the ranks do
WAITED = "ddp-doctor: every rank has waited for {:g} s, and so the doctor stops the run"
SIGN_OF_LIFE = 60  # seconds between two lines that say how far a long run is


def catch_signals():
    """Each of them raises KeyboardInterrupt from now on: what was started is ended in any case."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)


def observe(command, patience, limit, speed=False, short=None):
    """Run the command -> its exit code, how it ended, the events of each process, kept files.

    It ended by itself ("ended"), or was stopped: --short has seen enough ("enough"), all ranks
    waited for longer than the patience ("hang"), it took longer than the limit ("limit"), or a
    signal came ("interrupt"). Then the exit code is None.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-doctor-"))
    try:
        words = [program(command[0]), *command[1:]]
        process = subprocess.Popen(words, env=watched(folder, speed, short))
        end = wait(process, folder, patience, limit, short)
        processes = [read(file) for file in sorted(folder.glob("*.jsonl"))]
        code = process.returncode if end == "ended" else None
        stop(started(folder))
        return code, end, processes, put_back(folder)
    finally:
        stop(started(folder))
        put_back(folder)
        shutil.rmtree(folder, ignore_errors=True)


def program(name):
    """Without an activated environment, torchrun is not on PATH but next to this Python."""
    neighbour = shutil.which(name, path=os.path.dirname(sys.executable))
    return neighbour or name


def watched(folder, speed, short):
    """The environment in which a Python process imports the watchers."""
    env = os.environ | {"DDP_DOCTOR_FOLDER": str(folder)}
    if speed:
        env["DDP_DOCTOR_SPEED"] = "1"
    if short:
        env["DDP_DOCTOR_SHORT"] = str(short)
        env["DDP_DOCTOR_STARTED"] = str(time.time())
    path = os.environ.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{START}{os.pathsep}{path}" if path else START
    return env


def wait(process, folder, patience, limit, short):
    """-> "ended", "enough", "hang", "limit" or "interrupt"."""
    begun = time.monotonic()
    looked = begun
    told = begun
    try:
        while time.monotonic() - begun < limit:
            time.sleep(0.2)
            if process.poll() is not None:
                return "ended"
            now = time.monotonic()
            if now - told > SIGN_OF_LIFE:
                told = now
                print(sign_of_life(folder, now - begun, limit), file=sys.stderr, flush=True)
            if now - looked < PAUSE_OF_LOOKS:  # to read the files takes time from the ranks
                continue
            looked = now
            if short and has_enough(folder, patience):
                (folder / ENOUGH).touch()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_AT_END)
                return "enough"
            if hangs(folder, patience):
                print(WAITED.format(patience), file=sys.stderr, flush=True)
                return "hang"
        return "limit"
    except KeyboardInterrupt:
        # To end all processes takes seconds. A second signal would lose the report.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        print("ddp-doctor: interrupted, the ranks are ended", file=sys.stderr, flush=True)
        return "interrupt"
    finally:
        if process.poll() is None:
            stop({process.pid} | started(folder))
            process.wait()


def sign_of_life(folder, seconds, limit):
    tails = [tail for tail in map(tail_of, folder.glob("*.jsonl")) if tail]
    steps = max((tail[-1].when.step for tail in tails), default=0)
    made = f", {steps} steps" if steps else ""
    return f"ddp-doctor: {seconds:.0f} s of at most {limit:.0f}, {len(tails)} rank(s){made}"


# ------------------------------------------------------------------ does it hang?


def hangs(folder, patience):
    """All ranks that are still there wait for others, and none computes."""
    files = [file for file in folder.glob("*.jsonl") if is_alive(pid_of(file))]
    if has_written(files, patience):
        return False  # as in almost every look, and to read the files takes longer
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


def has_written(files, seconds):
    """Has any of these processes written an event within the last seconds?"""
    for file in files:
        with suppress(OSError):
            if time.time() - file.stat().st_mtime < seconds:
                return True
    return False


def has_enough(folder, patience):
    """A rank has seen two passes of training, and all others have or wait for it."""
    lasts = []
    others = []
    for file in folder.glob("*.jsonl"):
        tail = tail_of(file)
        if tail and isinstance(tail[-1], Enough):
            lasts.append(tail[-1].when.time)
        elif is_alive(pid_of(file)):
            others.append(tail)
    if not lasts or not all(map(is_waiting, others)):
        return False
    return not others or time.monotonic() - max(lasts) > patience


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

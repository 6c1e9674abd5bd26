"""Start commands, wait for them, and end everything that they have started.

A command carries a mark in its environment, and everything that it starts inherits the mark. So its
processes can be found, even those that have lost their parent or have a session of their own.
"""

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARKS = "STARTED_BY"  # the environment variable: the marks of all commands above a process
# glibc gives the memory of large tensors back to the system after a step, and asks for it again in
# the next one. Each of its pages then costs a page fault. With these variables a process keeps its
# memory. Runs that are compared have them, because otherwise a large batch is slower than a small
# one for a reason that has nothing to do with parallelism. Without the second variable, the first
# one would make every large tensor a mapping of its own. The third is for the threads of stage 2:
# each of them would otherwise have a pool of its own, and empty pools are returned in spite of the
# first variable. Other C libraries do not read them.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",  # bytes: more than the stages use
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_ARENA_MAX": "1",
}
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1  # from linux/prctl.h: the signal that a process gets when its parent ends


@dataclass
class Result:
    """What a command left: its exit code (negative: the signal that ended it) and its output."""

    code: int
    out: str
    err: str

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run(
    command: list[str],
    timeout: float,
    env: Mapping[str, str] | None = None,
    until: Callable[[], bool] = lambda: False,
    **options,
) -> Result:
    """Run a command and wait for it. Nothing that it has started is left afterwards.

    env: variables on top of this process's. until: the command is killed as soon as this is true.
    options: those of Popen. Raises TimeoutError if it does not end within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    options = {"stdin": subprocess.DEVNULL, **options}
    temporary = {"mode": "w+", "errors": "replace"}
    with tempfile.TemporaryFile(**temporary) as out, tempfile.TemporaryFile(**temporary) as err:
        process = start(command, env, stdout=out, stderr=err, **options)
        try:
            while process.poll() is None and not until():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no end within {timeout} seconds: {shlex.join(command)}")
                time.sleep(0.02)
        finally:
            end(process.mark)
        code = process.wait()
        out.seek(0)
        err.seek(0)
        return Result(code, out.read(), err.read())


def run_to_file(
    command: list[str], path: Path, title: str, timeout: float, env=None, **options
) -> int | None:
    """Run a command with its output in a file, below a line with `title`.

    timeout: in seconds. -> its exit code, 127 if it cannot be started, None if it did not end in
    time. Nothing that it has started is left afterwards. options: those of Popen.
    """
    with open(path, "w") as log:
        log.write(f"$ {title}\n")
        log.flush()
        try:
            process = start(command, env, stdout=log, stderr=subprocess.STDOUT, **options)
        except OSError as error:
            log.write(f"{error}\n")
            return 127
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process.mark)


def start(
    command: list[str], env: Mapping[str, str] | None = None, mark: str | None = None, **options
) -> subprocess.Popen:
    """Start a command in a session of its own; `process.mark` is its mark, by default a new one.

    On Linux the command gets SIGTERM when this process ends, whatever has ended it.
    """
    mark = mark or new_mark()
    if os.name == "posix":
        options = {"start_new_session": True, "preexec_fn": in_the_child, **options}
    process = subprocess.Popen(command, env=environment(mark, env), **options)
    process.mark = mark
    return process


def in_the_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores it
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def new_mark() -> str:
    return str(uuid.uuid4())


def environment(mark: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with the variables `env` and with the mark."""
    return {**os.environ, **(env or {}), MARKS: f"{os.environ.get(MARKS, '')} {mark}".strip()}


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes with this mark, also those that have lost their parent."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile, or belongs to somebody else
            if mark in process.environ().get(MARKS, "").split():
                found.append(process)
    return found


def end(mark: str) -> None:
    """Kill all processes with this mark."""
    deadline = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < deadline:  # one may have started another
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that `finally` blocks run as after Ctrl-C."""

    def stop(number: int, _) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it: leave it so
            signal.signal(number, stop)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def device_name() -> str:
    """Return the name of the CPU, as the records of the stages have it. A child asks PyTorch."""
    return ask("torch.cpu.get_capabilities().get('cpu_name', 'CPU')")


def ask(expression: str) -> str:
    """Let a child process print an expression of torch. Raises RuntimeError if it fails."""
    result = run([sys.executable, "-c", f"import torch; print({expression})"], timeout=120)
    if result.code:
        raise RuntimeError(f"{expression}: {result.err.strip().rpartition(chr(10))[2]}")
    return result.out.strip()

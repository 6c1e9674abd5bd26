"""What the tests share: run a command as a user does, and see that nothing is left of it."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

DOCTOR = Path(__file__).resolve().parents[1]
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs what only Linux has")

sys.path[:0] = [str(DOCTOR), str(DOCTOR / "tests")]


class User:
    """A user at a terminal, in an empty folder."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = uuid.uuid4().hex
        # A loader worker has a socket in TMPDIR, whose path may have 107 characters. If it has
        # more, the worker's batches are lost, and the rank waits forever.
        programs = Path(sys.executable).parent  # python and torchrun are those of the tests
        self.env = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(folder / "t"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "DOCTOR_TEST": self.mark,
        }
        (folder / "t").mkdir(exist_ok=True)

    def run(self, *words, timeout=200, **env):
        """Run a command -> its CompletedProcess, when all that it has started is gone."""
        options = {"capture_output": True, "text": True, "timeout": timeout}
        command = [str(word) for word in words]
        done = subprocess.run(command, cwd=self.folder, env=self.env | env, **options)
        self.check_nothing_is_left(done)
        return done

    def doctor(self, line, **options):
        """Run a command line after `ddp-doctor`."""
        return self.run(sys.executable, DOCTOR, *shlex.split(line), **options)

    def check(self, command, flags="", **options):
        """Run `ddp-doctor check` -> its CompletedProcess, and what --json has written."""
        out = self.folder / "found.json"
        out.unlink(missing_ok=True)
        done = self.doctor(f"check --json found.json {flags} {command}", **options)
        return done, json.loads(out.read_text()) if out.exists() else None

    def check_nothing_is_left(self, done):
        assert not list((self.folder / "t").glob("ddp-doctor*")), "a file is left"
        deadline = time.monotonic() + 10
        while marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not marked(self.mark), f"a process is left: {done}"


def marked(mark):
    """The processes that have this mark in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it is another user's, or it is gone
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def keys(said, severity=None):
    """The keys of the findings, of one severity or of both."""
    found = set()
    for finding in said["findings"]:
        if severity in (None, finding["severity"]):
            found.add(finding["key"])
    return found


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)

"""Two hosts with torchrun on each, watched from outside: what failures.py runs its cases on."""

import argparse
import importlib
import itertools
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
hosts_py = importlib.import_module("05_multinode.rehearsal.hosts")

TRAIN = str(ROOT / "05_multinode/train.py")
RESUME = str(ROOT / "05_multinode/resume.py")  # has the same flags, and snapshots amid an epoch
WAITS = "waits"  # in the place of an exit code: it would wait longer than we do
FAULT_STEP = 20


class Bench:
    """Two hosts, the torchruns on them, and the moment at which something was broken."""

    def __init__(self, folder: str, hosts, args: argparse.Namespace):
        self.folder, self.hosts, self.args = folder, hosts, args
        self.mark = f"FAILURES={uuid.uuid4()}"  # in the environment of all that we start
        self.port = 29500 if hosts else free_port()
        self.soon = ("--timeout", str(args.timeout))  # for the script: how long a rank waits
        self.clear()

    def clear(self) -> None:
        self.kill()
        self.sides, self.broken = [], None
        for file in Path(self.folder).glob("snapshot*"):
            file.unlink()

    def torchrun(self, number, *flags, nnodes=2, nproc=1, endpoint=None, fault=None, torchrun=(),
                 env=None, before=(), script=TRAIN):  # fmt: skip
        """Start torchrun on host <number>; flags are those of the script, train.py or resume.py."""
        if number == 1 and not self.hosts and not endpoint:
            self.wait(self.listens)  # or either of the two could become the head host
        endpoint = endpoint or f"{'host0' if self.hosts else '127.0.0.1'}:{self.port}"
        command = [*before, "torchrun", f"--nnodes={nnodes}", f"--nproc-per-node={nproc}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", *torchrun]
        command += [__file__ if fault else script, "--data", self.args.data.resolve(), "-b", "24"]
        command += ["-e", "100000", "--lr", "0.001", "--device", "cpu", "--snapshot", "snapshot.pt"]
        command += ["--timeout", "60", *flags]
        own = dict([self.mark.split("=")]) | {"TMPDIR": f"{self.folder}/tmp"}
        own |= {"FAULT": fault or "", "SCRIPT": script}
        side = Side(f"host{number}", Path(self.folder, f"{len(self.sides)}.log"))
        options = {"cwd": self.folder, "env": os.environ | own | (env or {})}
        with open(side.log, "w") as log:
            options |= {"stdout": log, "stderr": subprocess.STDOUT}
            command = list(map(str, command))
            if self.hosts:
                side.process = self.hosts.start(side.name, command, **options)
            else:
                options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
                side.process = subprocess.Popen(command, **options)
        self.sides.append(side)

    def start_both(self, *flags, **options) -> None:
        for number in range(2):
            self.torchrun(number, *flags, **options)

    def train(self, *flags, **options) -> None:
        """Both hosts train, and have trained for an epoch."""
        self.start_both(*flags, **options)
        self.wait_for("^epoch")

    def breaks(self, break_it: Callable[[], None]) -> None:
        time.sleep(0.3)  # amid an epoch
        self.broken = time.time()
        break_it()

    def pid(self, rank: int) -> int:
        return next(pid for pid, environ in self.family() if f"RANK={rank}" in environ)

    def family(self) -> list[tuple[int, list[str]]]:
        """All processes that we have started, and what they have -> [(pid, environment), ...]"""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                environ = file.read_text(errors="replace").split("\0")
            except OSError:  # ended while we looked, or not ours
                continue
            if self.mark in environ:
                found.append((int(file.parent.name), environ))
        return found

    def listens(self) -> bool:
        """Does anybody on the first side's host listen at the endpoint's port?"""
        sockets = Path(f"/proc/{self.sides[0].process.pid}/net/tcp6").read_text()
        return bool(re.search(rf":{self.port:04X} \w+:0000 0A", sockets))

    def wait_for(self, line: str) -> None:
        self.wait(lambda: any(side.says(line) for side in self.sides))

    def wait(self, what: Callable[[], bool], limit: float = 150) -> None:
        """Raises TimeoutError, with what was said so far."""
        patience = time.monotonic() + limit
        while not what():
            self.look()
            in_vain = all(side.ended for side in self.sides) and not what()
            if in_vain or time.monotonic() > patience:
                said = "\n".join(side.log.read_text(errors="replace") for side in self.sides)
                raise TimeoutError(f"waited in vain; this is what they said:\n{said}")
            time.sleep(0.05)

    def look(self) -> None:
        for side in self.sides:
            if side.ended is None and side.process.poll() is not None:
                side.ended = time.time()

    def ends(self, *expected: tuple[int | str, str], limit: float = 150) -> dict:
        """Wait for the end of each side, which has an exit code and a line to be expected."""
        started = time.time()
        due = [side for side, (code, _) in zip(self.sides, expected) if code != WAITS]
        self.wait(lambda: all(side.ended for side in due), limit)
        if len(due) < len(self.sides):
            time.sleep(self.args.timeout)
            self.look()  # the others should still be waiting
        fault = Path(self.folder, "fault")
        since = self.broken or (fault.stat().st_mtime if fault.exists() else started)
        rows = [side.row(since, pattern) for side, (_, pattern) in zip(self.sides, expected)]
        told = all(row["code"] == code and row["says"] is not None
                   for row, (code, _) in zip(rows, expected))  # fmt: skip
        files = (path for path in Path(self.folder).rglob("*") if path.is_file())
        left = sorted(str(path.relative_to(self.folder)) for path in files)
        left = [name for name in left if not re.match(r"tmp/|fault|.*\.log", name)]
        last = {} if told else {"last": [line for side in self.sides for line in side.last_lines()]}
        return {"sides": rows, "left": left, "ok": told} | last

    def kill(self) -> None:
        patience = time.monotonic() + 5
        while (family := self.family()) and time.monotonic() < patience:
            for pid, _ in family:
                hosts_py.send(os.kill, pid, signal.SIGKILL)
            time.sleep(0.02)
        for side in getattr(self, "sides", ()):
            side.process.wait()


class Side:
    """torchrun on one of the hosts."""

    process, ended = None, None

    def __init__(self, name: str, log: Path):
        self.name, self.log = name, log

    def says(self, pattern: str) -> re.Match | None:
        return re.search(pattern, self.log.read_text(errors="replace"), re.MULTILINE)

    def last_lines(self, number: int = 20) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [f"{self.name} | {line}" for line in lines[-number:]]

    def row(self, since: float, pattern: str) -> dict:
        found = self.says(pattern)
        code, seconds = (
            (self.process.returncode, self.ended - since) if self.ended else (WAITS, None)
        )
        says = found and found[0]
        return {"host": self.name, "code": code, "seconds": seconds, "says": says}


def inside(fault: str, script: str) -> None:
    """We are a rank: run the script as it is, but let one rank meet its fault after some steps."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    kind, rank, *once = fault.split()
    steps = itertools.count(1)

    def before_step(*_):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if next(steps) == FAULT_STEP and os.environ["RANK"] == rank and (first or not once):
            Path("fault").touch()
            if kind == "raises":
                raise OSError("an image is missing")
            if kind == "leaves":
                os._exit(0)
            while True:
                time.sleep(1)

    register_optimizer_step_pre_hook(before_step)
    runpy.run_path(script, run_name="__main__")


@contextmanager
def a_bench(args: argparse.Namespace, left: list[str]) -> Iterator[Bench]:
    """Hosts for one case. Puts into left what is there of it afterwards: nothing should be."""
    made = hosts_py.hosts_for_a_while(2, args.net) if args.hosts else nullcontext()
    with tempfile.TemporaryDirectory(prefix="failures-") as folder:
        Path(folder, "tmp").mkdir()
        with made as hosts:
            bench = Bench(folder, hosts, args)
            try:
                yield bench
            finally:
                bench.kill()
    left += [f"process {pid}" for pid, _ in bench.family()]
    left += [str(path) for place in (hosts_py.NAMESPACES, hosts_py.ETC) if args.hosts
             for path in place.glob(f"{args.net}-*")]  # fmt: skip
    left += [folder] if Path(folder).exists() else []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not args.hosts and probe.connect_ex(("127.0.0.1", bench.port)) == 0:
            left.append(f"port {bench.port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":  # torchrun has started us in the place of the script
    inside(os.environ["FAULT"], os.environ["SCRIPT"])

"""What hosts.py, slurm.py and failures.py share: arguments, errors, signals, two watched nodes."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(ROOT / "05_multinode/train.py")
FAULTY_RANK = str(ROOT / "05_multinode/rehearsal/faulty_rank.py")
STILL_WAITS = "waits"  # instead of an exit code: torchrun waits longer than we do
PATIENCE = 150  # seconds until a wait counts as a hang
TIMEOUT = 5  # seconds a rank waits for the others in cases that are about waiting
MARK = "REHEARSAL"  # environment variable of everything that a TwoNodes has started


# ------------------------------------------------------------------- arguments and errors


class RehearsalError(Exception):
    """Something cannot be done; the message is one line that says what and why."""


class Parser(argparse.ArgumentParser):
    """Reports bad input in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def number(low: int, high: int) -> Callable[[str], int]:
    """Return an argparse type: an int from low to high."""

    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


def parser_of_actions(description: str, net: str) -> tuple[Parser, argparse.Action]:
    """Return a parser with the actions with, up and down, and the actions to add others to."""
    usage = f"{Path(sys.argv[0]).name} [--net NAME] ACTION ... [-- COMMAND]"
    parser = Parser(description=description, usage=usage)
    parser.add_argument("--net", default=net, help="which set of nodes: one word")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    helps = {"with": "make so many nodes, run COMMAND, remove them", "up": "make nodes that stay"}
    for name, text in helps.items():
        action = actions.add_parser(name, help=f"NUMBER: {text}")
        action.add_argument("number", type=number(1, 32), metavar="NUMBER")
    actions.add_parser("down", help="end all that runs on the nodes and remove them")
    return parser, actions


def parse_with_command(parser: Parser) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after "--", which the actions `with` and `run` need."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:split]), words[split + 1 :]
    if args.action in ("with", "run") and not command:
        fail("a command is missing: -- COMMAND")
    if args.action not in ("with", "run") and command:
        fail(f"{args.action} takes no command")
    return args, command


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2."""
    print(f"{Path(sys.argv[0]).stem}: error: {message}", file=sys.stderr)
    sys.exit(2)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exit with what main returns. An expected error and Ctrl-C end in one line, no traceback."""
    try:
        sys.exit(main())
    except (RehearsalError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print(f"\n{Path(sys.argv[0]).stem}: interrupted", file=sys.stderr)
        sys.exit(130)


# ------------------------------------------------------------------- signals and processes


def exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that `finally` blocks run as after Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP: leave it so
            signal.signal(number, lambda number, _: sys.exit(128 + number))


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block is done: for a cleanup."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes with this environment variable, also those that lost their parent."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile, or belongs to somebody else
            if process.environ().get(variable) == value:
                found.append(process)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ------------------------------------------------------------------- torchrun on two nodes


class Torchrun:
    """A torchrun on a node: its process, its output, and the time at which it ended."""

    def __init__(self, node: str, log: Path, process: subprocess.Popen):
        self.node, self.log, self.process = node, log, process
        self.ended = None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def find(self, pattern: str) -> str | None:
        """Return the first match in the output."""
        match = re.search(pattern, self.output(), re.MULTILINE)
        return match[0] if match else None

    def last_lines(self) -> list[str]:
        return [f"{self.node} | {line}" for line in self.output().splitlines()[-20:]]

    def poll(self) -> None:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.time()


class TwoNodes:
    """Two nodes on which torchruns train, watched from outside.

    folder: the working directory of all processes. hosts: two nodes of hosts.py, or None for two
    torchruns on 127.0.0.1. data: the folder that holds MNIST/raw.
    """

    def __init__(self, folder: Path, hosts, data: Path):
        self.folder, self.hosts, self.data = folder, hosts, data.resolve()
        self.port = 29500 if hosts else free_port()
        self.mark = str(uuid.uuid4())
        self.torchruns = []
        self.started = self.injected = None
        (folder / "tmp").mkdir()

    def start(self, node, *flags, nnodes=2, endpoint=None, fault=None, torchrun=(), env=()):
        """Start torchrun with train.py on a node.

        flags: of train.py; torchrun: flags of torchrun; env: further environment variables. fault:
        for faulty_rank.py, such as "raises 1".
        """
        if node == 1 and not self.hosts:
            self.wait_until(self.listens)  # or either of the two could become the head node
        endpoint = endpoint or f"{'host0' if self.hosts else '127.0.0.1'}:{self.port}"
        command = ["torchrun", f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint={endpoint}", *torchrun]
        command += [FAULTY_RANK, fault] if fault else [TRAIN]
        command += ["--data", str(self.data), "-b", "24", "-e", "100000", "--lr", "0.001"]
        command += ["--device", "cpu", "--timeout", "60", "--snapshot", "snapshot.pt", *flags]
        marked = {MARK: self.mark, "TMPDIR": str(self.folder / "tmp"), "PYTHONUNBUFFERED": "1"}
        options = {"cwd": self.folder, "env": os.environ | marked | dict(env)}
        path = self.folder / f"{len(self.torchruns)}.log"
        with open(path, "w") as log:
            options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            if self.hosts:
                process = self.hosts.start(f"host{node}", command, **options)
            else:
                process = subprocess.Popen(command, start_new_session=True, **options)
        self.started = time.time()
        self.torchruns.append(Torchrun(f"host{node}", path, process))

    def start_both(self, *flags, **options) -> None:
        for node in range(2):
            self.start(node, *flags, **options)

    def train_an_epoch(self, *flags, **options) -> None:
        """Start torchrun on both nodes and wait for the first epoch; the training goes on."""
        self.start_both(*flags, **options)
        self.wait_for_line("^epoch")

    def inject(self, fault: Callable[[], None]) -> None:
        """Call fault() in the middle of an epoch; the seconds of the result count from now."""
        time.sleep(0.3)
        self.injected = time.time()
        fault()

    def rank(self, rank: int) -> psutil.Process:
        """Return the process of a rank."""
        return next(each for each in self.processes() if each.environ().get("RANK") == str(rank))

    def processes(self) -> list[psutil.Process]:
        return processes_with(MARK, self.mark)

    def listens(self) -> bool:
        """Is there a server at the endpoint's port of the first torchrun's node?

        psutil reads /proc/net, which is that of our own network namespace.
        """
        sockets = Path(f"/proc/{self.torchruns[0].process.pid}/net/tcp6").read_text()
        return re.search(rf":{self.port:04X} \w+:0000 0A", sockets) is not None

    def wait_for_line(self, pattern: str) -> None:
        self.wait_until(lambda: any(each.find(pattern) for each in self.torchruns))

    def wait_until(self, happened: Callable[[], bool], limit: float = PATIENCE) -> None:
        """Raises TimeoutError, with all output so far."""
        deadline = time.monotonic() + limit
        while not happened():
            for each in self.torchruns:
                each.poll()
            in_vain = all(each.ended for each in self.torchruns) and not happened()
            if in_vain or time.monotonic() > deadline:
                raise TimeoutError("".join(each.output() for each in self.torchruns))
            time.sleep(0.05)

    def result(self, *expected: tuple[int | str, str], limit: float = PATIENCE) -> dict:
        """Wait until the torchruns have ended -> what a record holds of a case.

        expected: for each torchrun its exit code, or STILL_WAITS, and a pattern of its output.
        """
        due = [run for run, (code, _) in zip(self.torchruns, expected) if code != STILL_WAITS]
        self.wait_until(lambda: all(run.ended for run in due), limit)
        if len(due) < len(self.torchruns):
            time.sleep(TIMEOUT)
        for run in self.torchruns:
            run.poll()
        fault = self.folder / "fault"  # a faulty rank has written it
        since = self.injected or (fault.stat().st_mtime if fault.exists() else self.started)
        rows, ok = [], True
        for run, (code, pattern) in zip(self.torchruns, expected):
            row = {"node": run.node, "code": STILL_WAITS, "seconds": None}
            if run.ended:
                row |= {"code": run.process.returncode, "seconds": run.ended - since}
            row["message"] = run.find(pattern)
            ok = ok and row["code"] == code and row["message"] is not None
            rows.append(row)
        result = {"nodes": rows, "left": self.files(), "ok": ok}
        if not ok:
            result["last"] = [line for run in self.torchruns for line in run.last_lines()]
        return result

    def files(self) -> list[str]:
        """Return what the training has left on the disk."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        names = sorted(str(path.relative_to(self.folder)) for path in paths)
        return [name for name in names if not re.match(r"tmp/|fault|.*\.log", name)]

    def kill(self) -> None:
        """Kill all processes that were started here."""
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:  # one may have started another
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.05)
        for each in self.torchruns:
            each.process.wait()

"""Two nodes on which torchruns train, watched from outside: for failures.py."""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lib import processes

FOLDER = Path(__file__).resolve().parent
TRAIN = [str(FOLDER.parent / "train.py")]
STILL_WAITS = "waits"  # instead of an exit code: torchrun waits longer than we do
PATIENCE = 150  # seconds until a wait counts as a hang
TIMEOUT = 5  # seconds a rank waits for the others in cases that are about waiting


class Torchrun:
    """A torchrun on a node: its process, its output, and the time at which it ended."""

    def __init__(self, node: str, log: Path, process: subprocess.Popen):
        self.node = node
        self.log = log
        self.process = process
        self.ended = None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def find(self, pattern: str) -> str | None:
        """Return the first match in the output."""
        match = re.search(pattern, self.output(), re.MULTILINE)
        return match[0] if match else None

    def has_ended(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.time()
        return self.ended is not None


class TwoNodes:
    """Two nodes on which torchruns train, watched from outside.

    folder: the working directory of all processes. hosts: two nodes of hosts.py. data: the folder
    that holds MNIST/raw.
    """

    port = 29500

    def __init__(self, folder: Path, hosts, data: str):
        self.folder = folder
        self.hosts = hosts
        self.data = data
        self.fault = folder / "fault"  # written when something is broken, here or by faulty_rank.py
        self.mark = processes.new_mark()
        self.torchruns = []
        self.started = None
        (folder / "tmp").mkdir()

    def start(self, node, *flags, nnodes=2, endpoint=None, fault=None, torchrun=(), env=()):
        """Start torchrun with train.py on a node.

        flags: of train.py; torchrun: flags of torchrun; env: further environment variables. fault:
        for faulty_rank.py, such as "raises 1".
        """
        endpoint = endpoint or f"host0:{self.port}"
        command = ["torchrun", f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint={endpoint}", *torchrun]
        command += [str(FOLDER / "faulty_rank.py"), fault] if fault else TRAIN
        command += ["--data", self.data, "-b", "24", "-e", "100000", "--lr", "0.001"]
        command += ["--device", "cpu", "--timeout", "60", "--snapshot", "snapshot.pt", *flags]
        env = {"TMPDIR": str(self.folder / "tmp"), **dict(env)}
        path = self.folder / f"{len(self.torchruns)}.log"
        with open(path, "w") as log:
            options = {"cwd": self.folder, "stdout": log, "stderr": subprocess.STDOUT}
            process = self.hosts.start(f"host{node}", command, env, self.mark, **options)
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
        self.fault.touch()
        fault()

    def rank(self, rank: int) -> psutil.Process:
        """Return the process of a rank."""
        ours = processes.marked(self.mark)
        return next(each for each in ours if each.environ().get("RANK") == str(rank))

    def listens(self) -> bool:
        """Is there a server at the endpoint's port? psutil would look on our own network only."""
        if self.torchruns[0].has_ended():
            return False
        sockets = Path(f"/proc/{self.torchruns[0].process.pid}/net/tcp6").read_text()
        return re.search(rf":{self.port:04X} \w+:0000 0A", sockets) is not None

    def wait_for_line(self, pattern: str) -> None:
        self.wait_until(lambda: any(each.find(pattern) for each in self.torchruns))

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Raises TimeoutError, with all output so far."""
        deadline = time.monotonic() + PATIENCE
        while not happened():
            in_vain = all([run.has_ended() for run in self.torchruns]) and not happened()
            if in_vain or time.monotonic() > deadline:
                raise TimeoutError("".join(run.output() for run in self.torchruns))
            time.sleep(0.05)

    def result(self, *expected: tuple[int | str, str]) -> dict:
        """Wait until the torchruns have ended -> what a record holds of a case.

        expected: for each torchrun its exit code, or STILL_WAITS, and a pattern of its output. The
        seconds count from the fault; if it is a setting, from the start of the last torchrun.
        """
        due = [run for run, (code, _) in zip(self.torchruns, expected) if code != STILL_WAITS]
        self.wait_until(lambda: all([run.has_ended() for run in due]))
        if len(due) < len(self.torchruns):
            time.sleep(TIMEOUT)
        since = self.fault.stat().st_mtime if self.fault.exists() else self.started
        rows = []
        ok = True
        for run, (code, pattern) in zip(self.torchruns, expected):
            row = {"node": run.node, "code": STILL_WAITS, "seconds": None}
            if run.has_ended():
                row |= {"code": run.process.returncode, "seconds": run.ended - since}
            row["message"] = run.find(pattern)
            ok = ok and row["code"] == code and row["message"] is not None
            rows.append(row)
        result = {"nodes": rows, "left": self.files(), "ok": ok}
        if not ok:
            result["last"] = "".join(run.output() for run in self.torchruns)
        return result

    def files(self) -> list[str]:
        """Return what the training has left on the disk."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        names = sorted(str(path.relative_to(self.folder)) for path in paths)
        return [name for name in names if not re.match(r"tmp/|fault|.*\.log", name)]

    def kill(self) -> None:
        """Kill all processes that were started here."""
        processes.end(self.mark)
        for each in self.torchruns:
            each.process.wait()

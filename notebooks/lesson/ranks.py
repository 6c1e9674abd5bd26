"""Start ranks on this machine, and leave nothing of them behind."""

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lib import processes

ROOT = Path(__file__).resolve().parents[2]
GIVEN = "LESSON_GIVEN"  # the folder for what ranks give


@dataclass
class Run:
    """What a command left. After torchrun, out, err and values have an entry for each rank."""

    code: int
    out: list[str]
    err: list[str]
    launcher: str = ""  # what torchrun itself wrote
    values: list[dict] = field(default_factory=list)  # what the ranks have given: see give

    def __str__(self) -> str:
        """What the ranks have printed, rank by rank."""
        lines = []
        for rank, text in enumerate(self.out):
            lines += [f"rank {rank} | {line}\n" for line in text.splitlines()]
        return "".join(lines)


def torchrun(
    what: str | Path,
    ranks: int = 2,
    *flags: str,
    options: Sequence[str] = ("--standalone",),
    timeout: float = 300,
    env: dict[str, str] | None = None,
    check: bool = True,
    kill_at: Path | None = None,
    restarts: int = 0,
    cwd: Path | None = None,
) -> Run:
    """Start a script on some ranks of this machine by torchrun, and wait for them.

    what: a file, from the repository's root, or the text of a script (with a line break in it).
    flags: for the script; options: for torchrun; env: variables for both. They are CPU processes
    with one thread each, also where there are GPUs. They work in cwd, by default in a folder that
    is removed afterwards. kill_at: kill torchrun and its ranks as soon as this file is there.
    restarts: how often torchrun starts all ranks again after a failure.
    Raises RuntimeError with the last lines of the ranks unless all end well (check=False: only if
    they do not end within `timeout` seconds).
    """
    with tempfile.TemporaryDirectory(prefix="lesson-", ignore_cleanup_errors=True) as folder:
        file = ROOT / what
        if "\n" in str(what):
            file = Path(folder, "script.py")
            file.write_text(str(what), encoding="utf-8")
        logs = Path(folder, "logs")
        given = Path(folder, "given")
        given.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        command += ["--nproc-per-node", str(ranks), "--log-dir", str(logs), "--redirects", "3"]
        variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", GIVEN: str(given)}
        if restarts:
            command += ["--max-restarts", str(restarts)]
            # Each restart gets a new store. The old one has the address of a rank that has exited.
            variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        variables.update(env or {})
        run = start([*command, str(file), *flags], timeout, variables, cwd or folder, kill_at)
        run.launcher = run.err[0]
        run.out = [log(logs, rank, "stdout.log") for rank in range(ranks)]
        run.err = [log(logs, rank, "stderr.log") for rank in range(ranks)]
        run.values = [values_of(given, rank) for rank in range(ranks)]
    if check and run.code:
        last = [line for text in (*run.err, run.launcher) for line in text.splitlines()[-5:]]
        raise RuntimeError("a rank has failed\n" + "\n".join(last))
    return run


def log(logs: Path, rank: int, name: str) -> str:
    """What a rank wrote to a stream, over all attempts of its launcher."""
    paths = sorted(logs.glob(f"*/attempt_*/{rank}/{name}"))
    return "".join(path.read_text(errors="replace") for path in paths)


def start(
    command: list[str],
    timeout: float = 300,
    env: dict[str, str] | None = None,
    folder: str | Path = ROOT,
    kill_at: Path | None = None,
) -> Run:
    """Run a command and wait for it; nothing that it has started is left afterwards.

    env: variables on top of this process's. kill_at: kill it as soon as this file is there.
    Raises TimeoutError if it takes more than `timeout` s.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}
    until = kill_at.exists if kill_at else lambda: False
    result = processes.run(command, timeout, variables, until, cwd=folder)
    return Run(result.code, [result.out], [result.err])


def give(**values) -> None:
    """In a rank: hand values to the notebook, which finds them in run.values[rank].

    They travel as JSON; tensors arrive as lists.
    """
    folder = Path(os.environ[GIVEN])
    rank = int(os.environ["LOCAL_RANK"])
    text = json.dumps(values_of(folder, rank) | values, default=lambda tensor: tensor.tolist())
    Path(folder, f"{rank}.json").write_text(text)


def values_of(folder: Path, rank: int) -> dict:
    path = Path(folder, f"{rank}.json")
    return json.loads(path.read_text()) if path.exists() else {}


def temporary_folder() -> str:
    """A new folder, removed when Python ends."""
    folder = tempfile.mkdtemp(prefix="lesson-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

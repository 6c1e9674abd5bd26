"""What the tests share: small data, and a way to start a stage as a reader does."""

import contextlib
import functools
import importlib
import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from browser import chromium  # noqa: F401 (a fixture)
from filelock import FileLock

from lib import processes
from lib.processes import Result, free_port  # noqa: F401 (for the tests)
from tools.draw_digits import draw_data_set

# Several tests run at the same time, most of them on several ranks: a core has enough to do.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hosts = importlib.import_module("05_multinode.rehearsal.hosts")

ROOT = Path(__file__).resolve().parent.parent
STAGES = sorted(path.parent.name for path in ROOT.glob("0*/train.py"))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs what only Linux has")
ENDLESS = "--epochs 100000 --batch-size 240 --lr 0.001 --device cpu"
TEST_IMAGES = 303  # does not divide by 2 or 4: a padded evaluation would count more
NO_NETWORK = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
NET = f"test{os.getpid()}"  # tests that run at the same time have hosts of their own
NEEDS_HOSTS = pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))


def files(ending):
    """The repository's files with this ending, without _site/ and folders like .venv."""
    found = []
    for path in [*ROOT.glob(f"*{ending}"), *ROOT.glob(f"[!.]*/**/*{ending}")]:
        folders = path.relative_to(ROOT).parts[:-1]
        if "_site" not in folders[:1] and not any(name.startswith(".") for name in folders):
            found.append(path)
    return sorted(found)


def fenced(text):
    """The code blocks of a page, or of a part of one: [(language, text), ...]"""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(language, code) for language, code in blocks if re.fullmatch(r"\w*", language)]


def anchor(heading):
    """The part of a link after the #, as GitHub makes it from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def draw_digits(folder, train, test):
    """Put so many training and test digits into a folder, in MNIST's format -> the folder."""
    draw_data_set(folder / "MNIST" / "raw", train, test)
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with 1,200 training and 303 test digits in MNIST's format."""
    return draw_digits(tmp_path_factory.mktemp("small"), 1200, TEST_IMAGES)


# ---------------------------------------------------------------- commands


class Reader:
    """A reader at a terminal, in a folder of their own with the stages and tools in it."""

    def __init__(self, folder, data):
        self.folder = folder
        for name in (*STAGES, "benchmarks", "docs", "doctor", "lib", "tools", "compare.py"):
            (folder / name).symlink_to(ROOT / name)
        bin_folder = Path(sys.executable).parent  # python and torchrun are those of the tests
        self.env = os.environ | {
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "MNIST_ROOT": str(data),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, command, **env):
        """Start a command line in a session of its own."""
        return processes.start(
            shlex.split(command),
            self.env | env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process, timeout=150):
        """Wait for a command to end -> Result. Fails if it leaves a process behind."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            processes.end(process.mark)
            out, err = process.communicate()
            pytest.fail(f"no end within {timeout} s\n{out}\n{err}")
        result = Result(process.returncode, out, err)
        patience = time.monotonic() + 10
        while family(process) and time.monotonic() < patience:
            time.sleep(0.05)
        assert not family(process), f"left behind: {family(process)}\n{result}"
        return result

    def run(self, command, timeout=150, **env):
        return self.finish(self.start(command, **env), timeout)

    def stage(self, stage, flags="", ranks=2, timeout=150, **env):
        """Run a stage on `ranks` ranks (stages 3 to 5; stage 5 on two nodes if ranks is even)."""
        return self.finish_all(self.start_stage(stage, flags, ranks, **env), timeout)

    def start_stage(self, stage, flags="", ranks=2, **env):
        if stage in ("01_baseline", "02_dp"):
            commands = [f"python {stage}/train.py {flags}"]
        elif stage == "03_ddp_spawn":
            commands = [f"python {stage}/train.py --world-size {ranks} {flags}"]
        elif stage == "04_ddp_torchrun":
            commands = [f"torchrun --standalone --nproc-per-node {ranks} {stage}/train.py {flags}"]
        else:
            nodes = 2 if ranks % 2 == 0 else 1
            return self.start_nodes(f"{stage}/train.py {flags}", ranks // nodes, [env] * nodes)
        return [self.start(command, **env) for command in commands]

    def start_nodes(self, script, ranks, nodes):
        """Start a script with `ranks` ranks on each node; `nodes`: the variables of each."""
        meet = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
        torchrun = f"torchrun --nnodes {len(nodes)} --nproc-per-node {ranks} {meet}"
        return [self.start(f"{torchrun} {script}", **env) for env in nodes]

    def finish_all(self, started, timeout=150):
        """Wait for the commands of all nodes -> one Result."""
        results = [self.finish(process, timeout) for process in started]
        return Result(
            max((result.code for result in results), key=abs),
            "".join(result.out for result in results),
            "".join(result.err for result in results),
        )


def record_of(folder, file="timings/runs.jsonl"):
    """The record of the one run that has appended its line to a file in a folder."""
    (line,) = Path(folder, file).read_text().splitlines()
    return json.loads(line)


def usage_error(result, told):
    """Bad input, as argparse reports it: exit code 2, the usage, and a line with the reason."""
    assert result.code == 2 and result.out == "", result
    *usage, reason = result.err.splitlines()
    assert usage[0].startswith("usage: ") and not any("error" in line for line in usage), result
    assert ": error: " in reason and told in reason, result


def one_line(result, program, told):
    """Bad input: exit code 2, and one line of the program that says what is wrong."""
    assert result.code == 2 and result.out == "", result
    assert result.err.count("\n") == 1 and result.err.startswith(f"{program}: error: ")
    assert told in result.err, result


def family(process):
    """The process ids of all that a command has started and that lives, itself included."""
    return sorted(member.pid for member in processes.marked(process.mark))


def ranks_of(process, script="train.py"):
    """The processes that train, without the one that has started them and without helpers."""
    ranks = []
    for pid in family(process):
        with contextlib.suppress(psutil.Error):
            command = psutil.Process(pid).cmdline()
            spawned = any("spawn_main" in word for word in command)
            runs = any(word.endswith(f"/{script}") for word in command)
            launcher = any(word.endswith("bin/torchrun") for word in command)
            if pid != process.pid and (spawned or runs and not launcher):
                ranks.append(pid)
    return ranks


def wait_for_line(*started, start="epoch", timeout=150):
    """Read what the processes print until a line of one of them begins with `start`."""
    patience = time.monotonic() + timeout
    while time.monotonic() < patience:
        ready, _, _ = select.select([process.stdout for process in started], [], [], 1)
        if any(pipe.readline().startswith(start) for pipe in ready):
            return
    pytest.fail(f"no line begins with {start!r}")


def wait_for(what, seconds=150):
    """Wait until what() is true. Fails if it does not come to that."""
    patience = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < patience, "waited in vain"
        time.sleep(0.05)


def left(net=NET):
    """What is there of a set of hosts: names of namespaces, and folders for what they see."""
    return [path for place in (hosts.NAMESPACES, hosts.ETC) for path in place.glob(f"{net}*")]


@pytest.fixture
def reader(tmp_path, small_data):
    return Reader(tmp_path, small_data)


@pytest.fixture
def called(reader, monkeypatch, capfd):
    """Call a script's main() in this process -> Result. Starting it would take seconds longer."""

    def call(script, flags=""):
        module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
        monkeypatch.chdir(reader.folder)
        monkeypatch.setattr(sys, "argv", [script, *flags.split()])
        monkeypatch.setenv("MNIST_ROOT", reader.env["MNIST_ROOT"])
        try:
            code = module.main() or 0
        except SystemExit as stopped:
            code = stopped.code
        out, err = capfd.readouterr()
        if isinstance(code, str):  # sys.exit("why") is an exit code of 1, and a line on stderr
            code, err = 1, f"{err}{code}\n"
        return Result(code, out, err)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory, small_data):
    """Call it with a stage -> a folder in which it has trained, on two ranks, and its Result.

    Each stage trains once for all tests, in the process of pytest-xdist that asks for it first.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    shared.mkdir(exist_ok=True)
    flags = "--epochs 3 --batch-size 48 --device cpu --seed 5 --lr 0.05"

    @functools.cache
    def train(stage):
        folder = shared / stage
        printed = shared / f"{stage}.json"
        with FileLock(shared / f"{stage}.lock", timeout=280):
            if not printed.exists():
                folder.mkdir()
                result = Reader(folder, small_data).stage(stage, flags)
                printed.write_text(json.dumps(vars(result)))
        return folder, Result(**json.loads(printed.read_text()))

    return train

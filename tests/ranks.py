"""Ranks and scripts for the tests, started in a fraction of the time.

A new Python process imports PyTorch, which takes longer than what most ranks here do. So one
process, a server without threads and groups, imports it once, and each rank is a fork of it.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import torch.multiprocessing as mp

from benchmarks import common
from exercises.ranks import PRELOADED  # if the checker starts the server first, it has the same
from lib.processes import Result, free_port

ROOT = Path(__file__).resolve().parent.parent
METHOD = "forkserver" if sys.platform == "linux" else "spawn"
MORE = ["torchvision.datasets", "torch.nn.parallel", "psutil", "pytest", "tabulate", "tqdm"]


def on_ranks(world_size: int, function: Callable, *arguments) -> list:
    """Call function(*arguments) on so many ranks of a group -> what each of them returns.

    The function stands at the top level of a file, as for benchmarks.common.on_ranks.
    """
    forkserver.set_forkserver_preload([*PRELOADED, *MORE])
    each = (dict(os.environ), function, arguments)
    return common.on_ranks(world_size, in_environment, *each, method=METHOD)


def start(count: int, function: Callable, *arguments) -> None:
    """Call function(number, *arguments) in so many processes without a group, and wait for them."""
    forkserver.set_forkserver_preload([*PRELOADED, *MORE])
    each = (dict(os.environ), function, arguments)
    mp.start_processes(numbered, each, count, start_method=METHOD)


def run(reader, script: str, *flags: str) -> Result:
    """What `python SCRIPT FLAGS` does in the reader's folder. What it spawns is forked, too."""
    return programs(reader, [{}], script, flags)


def torchrun(reader, count: int, script: str, *flags: str, nodes=({},)) -> Result:
    """What the ranks do that torchrun starts, `count` on each node, in the reader's folder.

    nodes: the variables of each node.
    """
    same = {"WORLD_SIZE": count * len(nodes), "LOCAL_WORLD_SIZE": count}
    same |= {"GROUP_WORLD_SIZE": len(nodes)}
    same |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    each = []
    for node, own in enumerate(nodes):
        for local in range(count):
            numbers = {"RANK": node * count + local, "LOCAL_RANK": local, "GROUP_RANK": node}
            each.append(same | numbers | own)
    return programs(reader, each, script, flags)


def programs(reader, environments: list[dict], script: str, flags: tuple, seconds=150) -> Result:
    forkserver.set_forkserver_preload([*PRELOADED, *MORE])
    processes = []
    for number, own in enumerate(environments):
        environment = reader.env | {name: str(value) for name, value in own.items()}
        each = (environment, as_program, (str(reader.folder), number, script, flags))
        processes.append(mp.get_context(METHOD).Process(target=in_environment, args=each))
        processes[-1].start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    printed = {}
    for kind in ("out", "err"):
        files = [reader.folder / f"{number}.{kind}" for number in range(len(processes))]
        printed[kind] = "".join(file.read_text() for file in files)
    return Result(max((process.exitcode for process in processes), key=abs), **printed)


# ---------------------------------------------------------------- in a fork


def in_environment(environment: dict, function: Callable, arguments: tuple):
    """A fork of the server has the environment in which the server was started."""
    os.environ.clear()
    os.environ |= environment
    return function(*arguments)


def numbered(number: int, environment: dict, function: Callable, arguments: tuple) -> None:
    in_environment(environment, function, (number, *arguments))


def as_program(folder: str, number: int, script: str, flags: tuple) -> None:
    os.chdir(folder)
    for stream, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{number}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    prepared = Path(os.getenv("PYTHONPATH", "."), "sitecustomize.py")
    if prepared.exists():  # as each new Python process does
        exec(prepared.read_text(), {})
    sys.argv = [script, *flags]
    sys.path.insert(0, str(Path(script).resolve().parent))
    if sys.platform == "linux":
        mp.spawn = partial(mp.start_processes, start_method="fork")
    runpy.run_path(script, run_name="__main__")

"""Run the cases without the doctor: python tests/doctor/run_cases.py [parts of names]

Each has to end as it says. PyTorch is imported once, and each rank is a fork of this process.
"""

import contextlib
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import cases
import torch
import torch._dynamo  # with what the first step of an optimizer would import in each rank
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE, STUCK = 60, 15  # seconds for a run; for one that may hang


def main(words):
    failed = []
    runpy.run_path(cases.SCRIPTS / "small.py")  # for what it imports
    for case in cases.innocents() + cases.mutants():
        if words and not any(word in case.name for word in words):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(case.source)
            ends = [run(case, folder) for _ in range(1 + ("twice" in case.options))]
            output = (Path(folder) / "output").read_text()
        wanted = case.options & {"fails", "hangs", "any"} or {"ends"}
        print(f"{ends[-1]:5} {time.monotonic() - begin:4.1f} s  {case.name}", flush=True)
        if not {ends[-1], "any"} & wanted:
            failed.append(case.name)
            print(output[-1500:])
    print(len(failed), "ended otherwise than they should:", *failed)
    return len(failed) > 0


def run(case, folder):
    """How the ranks end: ends, fails, hangs."""
    spawned = "mp.spawn" in case.source
    pids = [fork(rank, case, folder, spawned) for rank in range(1 if spawned else case.ranks())]
    end = time.monotonic() + (STUCK if case.options & {"hangs", "any"} else PATIENCE)
    good = {}
    while len(good) < len(pids) and time.monotonic() < end and all(good.values()):
        for pid in set(pids) - set(good):
            if os.waitpid(pid, os.WNOHANG)[0]:
                good[pid] = (Path(folder) / f"{pid}.ok").exists()
        time.sleep(0.02)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if pid not in good:
            os.waitpid(pid, 0)
    (Path(folder) / "store").unlink(missing_ok=True)
    return "fails" if not all(good.values()) else "ends" if len(good) == len(pids) else "hangs"


def fork(rank, case, folder, spawned):
    """Start a rank (or what spawns the ranks) -> its process id."""
    if pid := os.fork():
        return pid
    os.setsid()
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
    try:
        mp.spawn = partial(mp.start_processes, start_method="fork")
        if not spawned:
            join(rank, case.ranks())
        runpy.run_path("train.py", run_name="__main__")
        Path(f"{os.getpid()}.ok").touch()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def join(rank, size):
    """What torchrun would have done for this rank."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    place = {"store": dist.FileStore("store", size), "rank": rank, "world_size": size}
    dist.init_process_group = partial(dist.init_process_group, **place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

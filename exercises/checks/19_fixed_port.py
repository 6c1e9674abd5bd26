"""Two jobs start at the same moment: they do not meet, and each returns what its ranks return."""

import contextlib
import os
import sys
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.distributed as dist

from exercises.checks.ranks import Verdict

GROUP = False
WORLD_SIZES = (2,)  # processes, each of which launches a job
SIZE = 2  # the ranks of each job
RANKS = [f"rank {rank} of job {job}" for job in (0, 1) for rank in range(SIZE)]
APART = 153_600_000  # from pid to pid: any two jobs may have pids that are equal modulo 10 or 20000
HINTS = (
    "Start it in one terminal, and `ss -ltnp` (or `lsof -iTCP -sTCP:LISTEN`) in another. Which "
    "number is the same in every job?",
    "A fixed port is shared by all jobs of a machine. One that was free a moment ago may be taken "
    "when it is used; a file in a folder that is new for each job needs no port.",
    "In launch: with tempfile.TemporaryDirectory() as folder; give the ranks "
    "f'file://{folder}/store', which is the init_method of their init_process_group.",
)


def observe(mine):
    sys.path.insert(0, str(Path(mine.__file__).parent))  # spawned processes import it from there
    path = str(Path.cwd() / "both")
    both, start = dist.FileStore(path), BaseProcess.start
    job = both.add("jobs", 1) - 1
    both.set(f"pid {job}", str(os.getpid()))
    both.wait(["pid 0", "pid 1"])
    pid = int(both.get("pid 0")) + job * APART
    os.getpid = lambda: pid

    def start_together(process):
        """Both jobs have chosen their ports before either takes one."""
        BaseProcess.start = start
        both.set(f"{job} has chosen", "")
        with contextlib.suppress(RuntimeError):  # a launch may keep others from choosing
            both.wait([f"{1 - job} has chosen"], timedelta(seconds=0.1))  # and one more
        start(process)

    BaseProcess.start = start_together
    try:
        returned = mine.launch(partial(work, path, job), SIZE)
        return {"returned": returned, "wanted": RANKS[SIZE * job :][:SIZE]}
    except Exception as error:  # of a rank: its traceback
        when = "two jobs start at the same moment, and their process ids end in the same digits"
        reason = (str(error).strip() or repr(error)).splitlines()[-1]
        raise Verdict(f"{when}; one fails:\n{reason}") from error


def work(path, job, rank):
    """Ends once the ranks of both jobs are there."""
    store, both = dist.distributed_c10d._get_default_store(), dist.FileStore(path)
    store.set(f"job {job}", "")
    both.set(RANKS[SIZE * job + rank], "")
    both.wait(RANKS)
    if store.check([f"job {1 - job}"]):  # that the ranks have found their own job was luck
        raise RuntimeError("both jobs have one store: each sees the ranks of the other")
    return RANKS[SIZE * job + rank]


def judge(ranks):
    for rank in ranks:
        if rank["returned"] != rank["wanted"]:
            return f"launch returned {rank['returned']}; work returned {rank['wanted']}"
    return None

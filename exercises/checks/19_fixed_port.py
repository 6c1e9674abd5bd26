"""A job starts while another runs: they do not meet, and each returns what its ranks return."""

import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

GROUP = False
WORLD_SIZES = (2,)  # processes, each of which launches a job
SIZE = 2  # the ranks of each job
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
    folder, job = Path.cwd(), 0
    try:
        (folder / "claimed").touch(exist_ok=False)
    except FileExistsError:
        job = 1
        wait_for([folder / f"0-{rank}" for rank in range(SIZE)], folder)
    try:
        return {"job": job, "returned": mine.launch(partial(work, folder, job), SIZE)}
    except Exception as error:  # of a rank: its traceback
        (folder / "failed").touch()
        return {"job": job, "error": (str(error).strip() or repr(error)).splitlines()[-1]}


def work(folder, job, rank):
    """Ends once the ranks of both jobs are there, or one has failed -> the sum over its group."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"job {job}", "")
    (folder / f"{job}-{rank}").touch()
    wait_for([folder / f"{job}-{rank}" for job in (0, 1) for rank in range(SIZE)], folder)
    if store.check([f"job {1 - job}"]):  # that the ranks have found their own job was luck
        raise RuntimeError("both jobs have one store: each sees the ranks of the other")
    tensor = torch.tensor(10 ** (SIZE * job + rank))
    dist.all_reduce(tensor)
    return {"rank": rank, "sum": tensor.item()}


def wait_for(files, folder):
    while not all(file.exists() for file in files) and not (folder / "failed").exists():
        time.sleep(0.1)


def judge(ranks):
    for error in [rank["error"] for rank in ranks if "error" in rank]:
        return f"of two jobs of which one starts while the other runs, one fails:\n{error}"
    for rank in ranks:
        total = sum(10 ** (SIZE * rank["job"] + number) for number in range(SIZE))
        wanted = [{"rank": number, "sum": total} for number in range(SIZE)]
        if rank["returned"] != wanted:
            return (
                f"launch was to return {wanted}, what work returned on each rank; it returned "
                f"{rank['returned']}"
            )
    return None

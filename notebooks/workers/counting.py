"""Two ranks that count to six together, and one that is killed on the way, once: to be restarted.

They save how far they are after every third step, and go on from there when they are started
again, as a training does from its snapshot. In FOLDER each rank writes down what it did, and with
--look what it found in the store when it came.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 notebooks/workers/counting.py FOLDER
    torchrun --standalone --nproc-per-node 2 notebooks/workers/counting.py FOLDER --look
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, SAVE_EVERY, DONE, DIES = 6, 3, 4, 1  # with four steps done, rank 1 is killed


def main() -> None:
    saved = Path(sys.argv[1], "saved.json")
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    told = {"pid": os.getpid(), "steps": []}
    if "--look" in sys.argv:
        told["old_address"] = old_address(rank, attempt)
    tell(rank, attempt, told)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0)
    while step < STEPS:
        if attempt == 0 and (rank, step) == (DIES, DONE):
            os.kill(os.getpid(), signal.SIGKILL)
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        step, total = step + 1, total + int(ranks)
        told |= {"steps": [*told["steps"], step], "total": total}
        tell(rank, attempt, told)
        if step % SAVE_EVERY == 0 and rank == 0:
            saved.write_text(json.dumps([step, total]))
        dist.barrier()  # nobody goes on before it is saved
    dist.destroy_process_group()


def old_address(rank: int, attempt: int) -> bool:
    """Does the store, before any rank has said a word, know where rank 1 is to be found?"""
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False":
        return False  # the launcher keeps no store for its ranks: rank 0 will open a new one
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, is_master=False)
    known = store.check(["default_pg/0//cpu//0/1"])
    store.set(f"looked: {attempt}, {rank}", "")
    store.wait([f"looked: {attempt}, {1 - rank}"])  # before that nobody writes its address
    return known


def tell(rank: int, attempt: int, told: dict) -> None:
    Path(sys.argv[1], f"attempt-{attempt}-rank-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

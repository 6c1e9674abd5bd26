"""Two ranks that count to six together, and one that is killed on the way, once: to be restarted.

They save how far they are after every third step, and go on from there when they are started
again, as a training does from its snapshot. In FOLDER each rank writes down what it did.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 notebooks/ranks/04_counting.py FOLDER
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, SAVE_EVERY, DONE, DIES = 6, 3, 4, 1  # with four steps done, rank 1 is killed


def main() -> None:
    folder = Path(sys.argv[1])
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    saved, report = folder / "saved.json", folder / f"attempt-{attempt}-rank-{rank}.json"
    dist.init_process_group("gloo")
    step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0)
    steps = []
    while step < STEPS:
        if attempt == 0 and (rank, step) == (DIES, DONE):
            os.kill(os.getpid(), signal.SIGKILL)
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        step, total = step + 1, total + int(ranks)
        steps.append(step)
        report.write_text(json.dumps({"pid": os.getpid(), "steps": steps, "total": total}))
        if step % SAVE_EVERY == 0 and rank == 0:
            saved.write_text(json.dumps([step, total]))
        dist.barrier()  # no rank goes on before it is saved
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Two ranks count to six together. One of them is killed once, and then all ranks are restarted.

The ranks save their position after every third step and resume from it, as a training resumes from
its snapshot. Each rank writes its steps to a file in FOLDER.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 notebooks/ranks/04_restart.py FOLDER
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 6
DONE = 4  # After so many steps a rank is killed.


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save-every", type=int, default=3, help="steps (3)")
    parser.add_argument("--kill", type=int, default=1, help="which rank is killed (1)")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    saved = args.folder / "saved.json"
    report = args.folder / f"attempt-{attempt}-rank-{rank}.json"
    dist.init_process_group("gloo")
    step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0)
    steps = []
    while step < STEPS:
        if attempt == 0 and (rank, step) == (args.kill, DONE):
            os.kill(os.getpid(), signal.SIGKILL)
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        step, total = step + 1, total + int(ranks)
        steps.append(step)
        report.write_text(json.dumps({"pid": os.getpid(), "steps": steps, "total": total}))
        if step % args.save_every == 0 and rank == 0:
            saved.write_text(json.dumps([step, total]))
        dist.barrier()  # No rank continues before the position is saved.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

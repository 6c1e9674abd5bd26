"""Restart: the ranks resume from different checkpoints

Each node has a disk of its own, so each rank keeps its checkpoints in a folder of its own. A killed
run leaves files that are cut off, or that one rank has written and another has not. After the
restart all ranks are to go on from one epoch: the newest whose file is whole on all of them, or
from the start if there is none. Mend `newest`.

torchrun --standalone --nproc-per-node 2 exercises/mend/14_newest_checkpoint.py   # shows it
python exercises/check.py 14                                                      # is it mended?
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def newest(folder):
    """Of the files epoch_01.pt, epoch_02.pt, ... -> (epoch, what its file holds) or (0, None)"""
    for path in sorted(folder.glob("epoch_*.pt"), reverse=True):
        state = read(path)
        if state is not None:
            return state["epoch"], state
    return 0, None


def read(path):
    """What a file holds, or None if it is not whole."""
    try:
        return torch.load(path)
    except (OSError, RuntimeError, EOFError):
        return None


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as name:  # the disk of this rank's node
        for epoch in range(1, 4):
            torch.save({"epoch": epoch, "weights": torch.ones(9)}, f"{name}/epoch_{epoch:02}.pt")
        if rank == 1:  # was killed while it wrote
            path = Path(name, "epoch_03.pt")
            path.write_bytes(path.read_bytes()[:500])
        print(f"rank {rank} resumes from epoch {newest(Path(name))[0]}")
    dist.destroy_process_group()

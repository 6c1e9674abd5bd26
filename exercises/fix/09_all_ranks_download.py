"""Dataset not found or corrupted: all ranks download it

Ranks that start together all download the file to one place. A rank that comes later takes what is
there at that moment. Each node has its own disk. On each node, one rank must download the file if
it is not there, and no rank may read it before it is complete. torchrun tells each rank its number
on its node in the environment variable LOCAL_RANK. Fix `load`. Here `download(path)` stands for any
download; the one below is slow. The checker also simulates two nodes.

torchrun --standalone --nproc-per-node 2 exercises/fix/09_all_ranks_download.py  # shows it
python exercises/check.py 09                                                     # is it fixed?
"""

import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def load(path, download):
    """-> the content of the file, which download(path) writes if it is not there yet."""
    if not path.exists():
        download(path)
    return path.read_bytes()


def slow_download(path):
    print(f"rank {dist.get_rank()} downloads")
    with open(path, "wb", buffering=0) as file:
        for _ in range(10):
            file.write(bytes(10))
            time.sleep(0.1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        path = [Path(folder, "images")]
        dist.broadcast_object_list(path, src=0)  # in the folder of rank 0: all are on its node
        time.sleep(0.5 * dist.get_rank())  # ranks never arrive at the same moment
        print(f"rank {dist.get_rank()} has {len(load(path[0], slow_download))} of 100 bytes")
        dist.barrier()
    dist.destroy_process_group()

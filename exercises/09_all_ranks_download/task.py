"""Dataset not found or corrupted: all ranks download it

Ranks that start at the same time all download the file to the same path. A rank that starts later
reads the file as it is at that moment, which may be only a part of it. Each node (machine) has its
own disk. If the file is not there, exactly one rank of each node must download it. No rank may read
the file before it is complete. torchrun numbers the ranks of each node from 0, and tells each rank
its number in the environment variable LOCAL_RANK. Fix `load`.

`load` gets a function `download(path)`. The small program at the end of the file uses a slow
download, so that you can see the problem. The checker uses a download of its own, and it also
simulates two nodes.

torchrun --standalone --nproc-per-node 2 exercises/09_all_ranks_download/task.py  # the symptom
python exercises/check.py 09                                                      # is it fixed?
"""

import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def load(path, download):
    """Return the content of the file. `download(path)` writes it if it is not there yet."""
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
        dist.broadcast_object_list(path, src=0)  # all ranks are on one node
        time.sleep(0.5 * dist.get_rank())  # ranks never arrive at the same moment
        print(f"rank {dist.get_rank()} has {len(load(path[0], slow_download))} of 100 bytes")
        dist.barrier()
    dist.destroy_process_group()

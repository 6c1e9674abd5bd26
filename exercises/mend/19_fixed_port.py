"""mp.spawn: Address already in use

While one job runs, or a process that it left behind, a second one on the same machine fails.
`launch` is to work whichever ports are taken, and for jobs that start at the same moment, none of
which sees the ranks of another. Mend it; `work` is picklable.

python exercises/mend/19_fixed_port.py   # shows it: in two terminals, within ten seconds
python exercises/check.py 19             # is it mended?
"""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def launch(work, world_size):
    """Call work(rank) in so many processes, which form a group -> what each returned, by rank."""
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run_rank, args=(work, world_size, results), nprocs=world_size)
    returned = dict(results.get() for _ in range(world_size))
    return [returned[rank] for rank in range(world_size)]


def run_rank(rank, work, world_size, results):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    results.put((rank, work(rank)))
    dist.destroy_process_group()


def train(rank):
    """Stands for a training of ten seconds."""
    time.sleep(10)
    seconds = torch.tensor(10)
    dist.all_reduce(seconds)
    return seconds.item()


if __name__ == "__main__":
    print(f"what the ranks returned: {launch(train, world_size=2)}")

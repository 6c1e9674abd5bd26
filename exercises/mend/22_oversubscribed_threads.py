"""mp.spawn is much slower than torchrun on CPU

The same code is many times slower: more threads compute than there are cores. The processes are to
divide the cores of their computer: 8 cores and 3 processes make 2 threads for each, at least 1.
OMP_NUM_THREADS is what the user has chosen: if it is set, it holds. Mend `set_threads`.

python exercises/mend/22_oversubscribed_threads.py   # shows it; then with OMP_NUM_THREADS=1
python exercises/check.py 22                         # is it mended?
"""

import os
import time

import torch
import torch.multiprocessing as mp


def set_threads(processes):
    """Called first in each of so many processes: sets the threads with which this one computes."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(os.cpu_count())


def work(number, processes):
    set_threads(processes)
    x = torch.rand(200, 200)
    start = time.perf_counter()
    for _ in range(200):
        x = torch.tanh(x @ x)
    took = time.perf_counter() - start
    print(
        f"process {number} of {processes}: {torch.get_num_threads()} threads on "
        f"{os.cpu_count()} cores, {took / 200 * 1e3:.2f} ms per step"
    )


if __name__ == "__main__":
    mp.spawn(work, args=(4,), nprocs=4)

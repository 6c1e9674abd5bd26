"""DDP: random_split differs between ranks, the validation loss is too good

Each rank splits the data set into images to train on and images to validate on. One rank validates
on what another trains on. All ranks must have the same random split, and each seed must give
another one. The split must not change the random numbers that a rank draws afterwards. Fix `split`.

torchrun --standalone --nproc-per-node 2 exercises/fix/08_split_of_rank.py  # shows it
python exercises/check.py 08                                                # is it fixed?
"""

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset, random_split


def split(dataset, count, seed):
    """-> (images to train on, `count` images to validate on), two Subsets of the data set"""
    return random_split(dataset, [len(dataset) - count, count])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(42 + dist.get_rank())  # each rank has its own random numbers
    dataset = TensorDataset(torch.arange(12))
    training, validation = split(dataset, 4, seed=42)
    print(f"rank {dist.get_rank()} validates on {sorted(validation.indices)}")
    dist.barrier()
    dist.destroy_process_group()

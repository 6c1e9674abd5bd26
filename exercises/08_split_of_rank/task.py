"""DDP: random_split differs between ranks, the validation loss is too good

Each rank splits the data set into images to train on and images to validate on. But the splits
differ, so one rank validates on images on which another rank trains. All ranks must have the same
random split, and different seeds must give different splits. After the call of `split`, each rank
must draw the same random numbers as it would draw without the call. Fix `split`.

torchrun --standalone --nproc-per-node 2 exercises/08_split_of_rank/task.py  # the symptom
python exercises/check.py 08                                                 # is it fixed?
"""

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset, random_split


def split(dataset, count, seed):
    """Return two Subsets: the images to train on, and `count` images to validate on."""
    return random_split(dataset, [len(dataset) - count, count])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(42 + dist.get_rank())  # each rank has its own random numbers
    dataset = TensorDataset(torch.arange(12))
    training, validation = split(dataset, 4, seed=42)
    print(f"rank {dist.get_rank()} validates on {sorted(validation.indices)}")
    dist.barrier()
    dist.destroy_process_group()

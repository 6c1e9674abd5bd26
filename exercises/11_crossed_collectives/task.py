"""all_reduce: wrong sums, but no error

Every rank has counted the images of each class in its shard (its part of the data). All ranks have
counted the same classes. For each class, `totals` must return the number of images on all ranks
together. But its results are wrong, and they differ from rank to rank. Fix `totals`.

torchrun --standalone --nproc-per-node 2 exercises/11_crossed_collectives/task.py  # the symptom
python exercises/check.py 11                                                       # is it fixed?
"""

from collections import Counter

import torch
import torch.distributed as dist


def totals(counts):
    """Take {class: number of this rank's images}, return {class: number of all ranks' images}."""
    summed = {}
    for name, count in counts.items():
        number = torch.tensor(count)
        dist.all_reduce(number)
        summed[name] = number.item()
    return summed


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shards = [
        ["cat", "dog", "dog", "dog", "owl", "cat", "dog", "dog"],
        ["owl", "cat", "cat", "dog", "owl", "owl", "owl", "cat"],
    ]
    counts = Counter(shards[dist.get_rank() % 2])
    print(f"rank {dist.get_rank()} has counted {dict(counts)}, all ranks {totals(counts)}")
    dist.destroy_process_group()

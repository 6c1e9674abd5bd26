"""Our solution of exercise 11. The task is in task.py, next to this file."""

from collections import Counter

import torch
import torch.distributed as dist


def totals(counts):
    """Take {class: number of this rank's images}, return {class: number of all ranks' images}."""
    summed = {}
    for name in sorted(counts):  # the same order on all ranks
        number = torch.tensor(counts[name])
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

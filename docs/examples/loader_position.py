"""Resume within an epoch: two ways to go on after batch 8 of 21, and what each reads and draws.

One process, with the shard of rank 0 of 2.

python docs/examples/loader_position.py
"""

from itertools import islice

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH, DONE = 25, 8


class Numbers(Dataset):
    """Sample i is (i, a random number that stands for an augmentation); counts what is read."""

    read = 0

    def __len__(self):
        return 1003

    def __getitem__(self, index):
        self.read += 1
        return index, torch.rand(1)


def loader(data, workers, first=0):
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    sampler.set_epoch(3)  # neither way remembers the epoch
    return DataLoader(data, BATCH, sampler=list(sampler)[first:], num_workers=workers)


def skip(data, workers, at_start, now):
    """Read the epoch from its start, and drop what is done."""
    torch.set_rng_state(at_start)
    return list(islice(loader(data, workers), DONE, None))


def offset(data, workers, at_start, now):
    """Let the sampler begin later."""
    iterator = iter(loader(data, workers, first=DONE * BATCH))
    torch.set_rng_state(now)  # after iter, which takes a random number
    return list(iterator)


def epoch(workers):
    """Without a stop -> the batches after DONE, the random states at the start and after DONE."""
    torch.manual_seed(0)
    at_start, iterator = torch.get_rng_state(), iter(loader(Numbers(), workers))
    for _ in range(DONE):
        next(iterator)
    now = torch.get_rng_state()
    return list(iterator), at_start, now


WAYS = {"skip the batches (islice)": skip, "begin the sampler later": offset}


def main():
    print("                            samples  same samples  same random numbers")
    print("way                            read                without, with 2 workers")
    for way, resume in {
        "skip the batches (islice)": skip,
        "begin the sampler later": offset,
    }.items():
        data, samples, random = Numbers(), [], []
        for workers in (0, 2):
            expected, *states = epoch(workers)
            pairs = list(zip(expected, resume(data, workers, *states), strict=True))
            samples += [all(torch.equal(one[0], other[0]) for one, other in pairs)]
            random += [all(torch.equal(one[1], other[1]) for one, other in pairs)]
        answers = ["yes" if same else "no" for same in (all(samples), *random)]
        print(f"{way:<27} {data.read:>7}  {answers[0]:<12}  {answers[1]:<8} {answers[2]}")


if __name__ == "__main__":
    main()

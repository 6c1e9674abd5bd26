"""Resume within an epoch: three ways to go on after batch 8 of 21, and what each reads and draws.

One process, with the shard of rank 0 of 2.

python docs/examples/loader_position.py
"""

from itertools import islice

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

BATCH, DONE = 25, 8


class Numbers(Dataset):
    """Sample i is (i, a random number that stands for an augmentation); counts what is read."""

    read = 0

    def __len__(self):
        return 1003

    def __getitem__(self, index):
        self.read += 1
        return index, torch.rand(1)


def loader(data, workers, cls=DataLoader, first=0):
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    sampler.set_epoch(3)  # no way remembers the epoch
    return cls(data, BATCH, sampler=list(sampler)[first:], num_workers=workers)


def skip(data, workers, state):
    """Read the epoch from its start, and drop what is done."""
    torch.set_rng_state(state["random at the start"])
    return list(islice(loader(data, workers), DONE, None))


def offset(data, workers, state):
    """Let the sampler begin later."""
    iterator = iter(loader(data, workers, first=DONE * BATCH))
    torch.set_rng_state(state["random"])  # after iter, which takes a random number
    return list(iterator)


def stateful(data, workers, state):
    resumed = loader(data, workers, StatefulDataLoader)
    resumed.load_state_dict(state["loader"])
    iterator = iter(resumed)
    torch.set_rng_state(state["random"])
    return list(iterator)


def epoch(workers):
    """The epoch without a stop -> the batches after DONE, and what to save at that moment."""
    torch.manual_seed(0)
    state = {"random at the start": torch.get_rng_state()}
    batches = loader(Numbers(), workers, StatefulDataLoader or DataLoader)
    iterator = iter(batches)
    for _ in range(DONE):
        next(iterator)
    state["random"] = torch.get_rng_state()
    if StatefulDataLoader:
        state["loader"] = batches.state_dict()
    return list(iterator), state


def main():
    ways = {"skip the batches (islice)": skip, "begin the sampler later": offset}
    if StatefulDataLoader:
        ways["StatefulDataLoader"] = stateful
    print("                            samples  same samples  same random numbers")
    print("way                            read                without, with 2 workers")
    for way, resume in ways.items():
        data, samples, random = Numbers(), [], []
        for workers in (0, 2):
            expected, state = epoch(workers)
            pairs = list(zip(expected, resume(data, workers, state), strict=True))
            samples += [all(torch.equal(one[0], other[0]) for one, other in pairs)]
            random += [all(torch.equal(one[1], other[1]) for one, other in pairs)]
        answers = ["yes" if same else "no" for same in (all(samples), *random)]
        print(f"{way:<27} {data.read:>7}  {answers[0]:<12}  {answers[1]:<8} {answers[2]}")
    if not StatefulDataLoader:
        print("StatefulDataLoader          is not installed: pip install torchdata")


if __name__ == "__main__":
    main()

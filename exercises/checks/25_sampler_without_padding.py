"""Each sample once per epoch over all ranks, in shards of nearly one length, newly shuffled."""

from collections import Counter

import torch
from torch.utils.data import DataLoader

from exercises.checks.common import numbered, some

WORLD_SIZES = (2, 3)
SIZES = (24, 25, 2)
EPOCHS, SEEDS = (0, 1, 2, 1), (5, 77)
HINTS = (
    "If all ranks know one order of all samples, which part of it can each take so that nothing "
    "is left and nothing is taken twice?",
    "order[rank::world_size] has no padding. What draws the same order on all ranks, and another "
    "one in each epoch?",
    "torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).",
)


def observe(mine):
    rounds = [one_epoch(mine, size, SEEDS[0], e, n) for size in SIZES for n, e in enumerate(EPOCHS)]
    other = mine.ShardSampler(numbered(SIZES[0]), seed=SEEDS[1])
    state = torch.get_rng_state()
    list(other)
    return {
        "rounds": rounds,
        "other": [int(number) for number in other],
        "untouched": torch.equal(state, torch.get_rng_state()),
    }


def one_epoch(mine, size, seed, epoch, number):
    dataset = numbered(size)
    sampler = mine.ShardSampler(dataset, seed=seed)
    if number > 0:  # epoch 0 holds until set_epoch is called
        sampler.set_epoch(epoch)
    seen = [int(i) for x, _ in DataLoader(dataset, 4, sampler=sampler) for i in x[:, 0]]
    return {"size": size, "epoch": epoch, "seen": seen, "length": len(sampler)}


def judge(ranks):
    for rounds in zip(*(rank["rounds"] for rank in ranks)):
        if wrong := judge_epoch(rounds, [r["seen"] for r in rounds]):
            return f"{rounds[0]['size']} samples, epoch {rounds[0]['epoch']}: {wrong}"
    for number, rank in enumerate(ranks):
        zero, one, two, again = (r["seen"] for r in rank["rounds"][: len(EPOCHS)])
        if sorted(zero) == zero:
            return f"rank {number} takes its samples in ascending order: {some(zero)}"
        for epoch, seen in ((1, one), (2, two)):
            if set(zero) == set(seen):
                same = "in the same order" if zero == seen else "in another order"
                return f"rank {number} has the same samples in epochs 0 and {epoch}, {same}"
        if one != again:
            return f"rank {number} draws another order when epoch 1 is set once more"
        if zero == rank["other"]:
            return f"seeds {SEEDS[0]} and {SEEDS[1]} give rank {number} the same order"
        if not rank["untouched"]:
            return f"after the sampler, PyTorch's global generator on rank {number} is another"
    return None


def judge_epoch(rounds, shards):
    counts = Counter(number for shard in shards for number in shard)
    if missing := sorted(set(range(rounds[0]["size"])) - set(counts)):
        return f"no rank takes {some(missing)}"
    if twice := sorted(number for number, count in counts.items() if count > 1):
        return f"{some(twice)} is taken more than once"
    lengths = [len(shard) for shard in shards]
    if max(lengths) - min(lengths) > 1:
        return f"the ranks take {lengths} samples"
    for number, values in enumerate(rounds):
        if values["length"] != lengths[number]:
            return f"on rank {number}, len() is {values['length']}; it takes {lengths[number]}"
    return None

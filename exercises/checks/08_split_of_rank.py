"""All ranks have one split, drawn from the seed; what they draw afterwards is their own."""

import torch
import torch.distributed as dist

from exercises.checks.common import numbered

CASES = ((24, 6), (25, 9))  # images, those to validate on
SEEDS = (1, 2, 1)


def observe(mine, size, count):
    torch.manual_seed(dist.get_rank())
    found = []
    for seed in SEEDS:
        state = torch.get_rng_state()
        training, validation = (
            [int(x[0]) for x, _ in part] for part in mine.split(numbered(size), count, seed)
        )
        left = torch.equal(state, torch.get_rng_state())
        found.append({"training": training, "validation": validation, "left": left})
        torch.rand(1)
    return found


def facts(found, size, count):
    every = [one for rank in found for one in rank]
    splits = [set(one["validation"]) for one in found[0]]
    both = [
        f"images {sorted(images)} of rank {a}, rank {b} trains on them"
        for a, rank in enumerate(found)
        for b, other in enumerate(found)
        for one, another in zip(rank, other)
        if (images := set(one["validation"]) & set(another["training"]))
    ]
    parts = [sorted(one["training"] + one["validation"]) for one in every]
    return {
        "each image in one of the two parts": parts == [[*range(size)]] * len(parts),
        "images to validate on": [len(one["validation"]) for one in every],
        "images that are validated and trained on": both[:2],
        "another split for another seed": splits[0] != splits[1],
        "the same split for the same seed": splits[0] == splits[2],
        "neighbours only": sorted(splits[0])[-1:] == [min(splits[0], default=0) + count - 1],
        "random numbers afterwards as without the split": all(one["left"] for one in every),
    }

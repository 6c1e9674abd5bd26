"""All ranks have one split, drawn from the seed; what they draw afterwards is their own."""

import random
from itertools import product

import numpy as np
import torch
import torch.distributed as dist

from exercises.common import numbered

CASES = ((24, 6), (25, 9))  # images, those to validate on
SEEDS = (1, 2, 1, 0, 3)  # the third one is the first again


def observe(mine, size, count):
    torch.manual_seed(dist.get_rank())
    found = []
    for seed in SEEDS:
        state = random_states()
        training, validation = mine.split(numbered(size), count, seed)
        one = {
            "training": images_of(training),
            "validation": images_of(validation),
            "left": state == random_states(),
        }
        found.append(one)
        torch.rand(1)
    return found


def random_states():
    """Of PyTorch, Python and NumPy: augmentation draws from any of them."""
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def images_of(part):
    return [int(x[0]) for x, _ in part]


def facts(found, size, count):
    every = []
    for rank in found:
        every += rank
    splits = [frozenset(one["validation"]) for one in found[0]]
    parts = [sorted(one["training"] + one["validation"]) for one in every]
    first = sorted(splits[0])
    last = min(first, default=0) + count - 1
    return {
        "each image in one of the two parts": parts == [[*range(size)]] * len(parts),
        "images to validate on": [len(one["validation"]) for one in every],
        "images on which one rank validates and another rank trains": both(found),
        "different splits for different seeds": len(set(splits)) == len(set(SEEDS)),
        "the same split for the same seed": splits[0] == splits[2],
        "all images to validate on are neighbours": first[-1:] == [last],
        "the same random numbers afterwards as without the split": all(
            one["left"] for one in every
        ),
    }


def both(found):
    """Images that one rank validates on and another trains on, in words."""
    lines = []
    for (a, rank), (b, other) in product(enumerate(found), repeat=2):
        for one, another in zip(rank, other):
            images = set(one["validation"]) & set(another["training"])
            if images:
                lines.append(f"rank {a} validates and rank {b} trains on {sorted(images)}")
    return lines[:2]

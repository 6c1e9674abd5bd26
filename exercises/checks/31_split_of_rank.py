"""All ranks have one split, drawn from the seed; what they draw afterwards is their own."""

import torch
import torch.distributed as dist

from exercises.checks.common import numbered, some

CASES = ((24, 6), (25, 9))  # images, those to validate on
SEEDS = (1, 2, 1)
HINTS = (
    "Which images does each rank validate on, and where does random_split take its numbers from?",
    "What all ranks must draw alike needs a generator of its own, with a seed that all share: to "
    "seed PyTorch's global one alike would give all ranks the same augmentation.",
    "random_split(dataset, lengths, torch.Generator().manual_seed(seed)).",
)


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


def judge(ranks, size, count):
    for number, rank in enumerate(ranks):
        for one, first in zip(rank, ranks[0]):
            if sorted(one["training"] + one["validation"]) != list(range(size)):
                return f"on rank {number} the two parts are not the {size} images, each once"
            if len(one["validation"]) != count:
                return f"rank {number} validates on {len(one['validation'])} images, not {count}"
            if seen := sorted(set(one["validation"]) & set(first["training"])):
                return f"rank {number} validates on the images {some(seen)}; rank 0 trains on them"
    first, other, again = (set(one["validation"]) for one in ranks[0])
    if first == other or first != again:
        return "each seed is to give a split of its own, the same one in every run"
    if max(first) - min(first) < count:
        return f"the split is not random: {some(sorted(first))}"
    for number, rank in enumerate(ranks):
        if not all(one["left"] for one in rank):
            return f"after the split rank {number} draws other random numbers than without it"
    return None

"""After each step the ranks have the weights of one process; gradients are averaged once a step."""

import math

import torch

from exercises.checks import accumulation

WORLD_SIZES = (2, 3)
CASES = ((2, 2), (6, 3), (8, 4), (3, 1))  # micro-batches, how many of them make a step
HINTS = (
    "Print for each micro-batch if it is inside no_sync, and if a step follows. In which one are "
    "the gradients averaged?",
    "A backward pass outside of no_sync averages all that has been added up in .grad until then. "
    "What later passes add stays on its rank.",
    "Outside of no_sync belongs the last micro-batch of a step: number + 1 is a multiple of k.",
)


def observe(mine):
    weights = [accumulation.observe_case(mine, *case) for case in CASES]
    return {"weights": weights, "reduced": [reduced(mine, *case) for case in CASES]}


def reduced(mine, count, k):
    """How often as many numbers were reduced as the model has: also those that DDP sends."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        weights = accumulation.observe_case(mine, count, k)
    numbers = sum(
        math.prod(shape)
        for event in profile.function_events
        if event.name in ("gloo:all_reduce", "gloo:reduce")
        for shape in event.input_shapes
    )
    return numbers // len(weights[0])


def judge(ranks):
    for case, (count, k) in enumerate(CASES):
        found = [rank["weights"][case] for rank in ranks]
        wrong = judge_ranks(found) or accumulation.judge_case(count, k, found)
        times, steps = max(rank["reduced"][case] for rank in ranks), count // k
        if wrong is None and times > steps:
            wrong = f"the weights are right, but all gradients were averaged {times} times, in "
            wrong += f"{steps} step{'s' * (steps > 1)}"
        if wrong:
            return f"{count} micro-batches, k={k}; {wrong}"
    return None


def judge_ranks(found):
    for done, weights in enumerate(zip(*found)):
        for rank, others in enumerate(weights):
            if not torch.equal(others, weights[0]):
                error = (others - weights[0]).abs().max().item()
                return (
                    f"after micro-batch {done - 1} the weights of rank {rank} differ from those of "
                    f"rank 0 by up to {error:.2g}"
                )
    return None

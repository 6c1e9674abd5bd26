"""Each step, also the one of the micro-batches that are left, uses the mean over its images."""

from exercises.checks import accumulation

WORLD_SIZES = (2, 3)
CASES = ((3, 2), (2, 4), (7, 3), (11, 4), (6, 3))  # micro-batches, how many of them make a step
HINTS = (
    "How many micro-batches are in each step, and by how many is each loss divided?",
    "A mean over 4 micro-batches is the sum of their losses, each divided by 4. The step at the "
    "end has fewer than k, and its losses are still divided by k.",
    "The last len(batches) % k micro-batches (if that is not 0) are divided by that, not by k.",
)


def observe(mine):
    return {"weights": [accumulation.observe_case(mine, *case) for case in CASES]}


def judge(ranks):
    for (count, k), found in zip(CASES, zip(*(rank["weights"] for rank in ranks))):
        if wrong := accumulation.judge_case(count, k, found):
            return f"{count} micro-batches, k={k}; {wrong}"
    return None

"""What the verb `speed` can name, and the words for it."""

from dataclasses import dataclass

from ..run.words import Words


@dataclass(frozen=True)
class Cost:
    """A judge of `speed` yields it. It is no mistake, but takes time."""

    key: str
    at: str
    ms: float  # of a step
    seen: str


COSTS = {
    "slow-data": Words(
        "Workers (num_workers) load batches while the rank computes.",
        "docs/speed/reading_timings.md#where-a-step-goes",
    ),
    "straggler": Words(
        "In each step all ranks wait for the slowest.",
        "docs/speed/reading_timings.md#where-a-step-goes",
    ),
    "exposed": Words(
        "Fewer bytes, a faster network, or more work per step hide the average.",
        "docs/speed/reading_timings.md#where-a-step-goes",
    ),
    "memory-returned": Words(
        "With MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ set to 1000000000, glibc keeps it.",
        "docs/speed/reading_timings.md#what-is-compared",
    ),
    "small-batch": Words(
        "A larger batch per rank pays the latency less often.",
        "docs/training/batch_size_and_learning_rate.md",
    ),
    "own-collectives-per-step": Words(
        "Each of them waits for the slowest rank: add up locally, and reduce once per epoch.",
        "docs/reference/questions.md#metrics-and-losses",
        "exercises/10_slower_than_one/task.py",
    ),
    "averaged-twice": Words(
        "DDP has averaged the gradients in backward() already.",
        "docs/your_script/adapt.md#the-difference",
    ),
    "each-pass-synced": Words(
        "The average of a sum is the sum of the averages: one average per step is enough.",
        "docs/training/gradient_accumulation.md",
    ),
    "unused-search": Words(
        "Without unused parameters the search finds nothing, in each step.",
        "docs/training/unused_parameters.md",
    ),
    "rank-0-works-alone": Words(
        "The others wait in their next collective: let all ranks share the work.",
        "docs/reference/corrections.md#testing-and-collectives",
    ),
    "evaluation-share": Words(
        "Evaluate on all ranks, each on its part, or less often.",
        "docs/training/uneven_inputs.md",
    ),
    "saving-share": Words(
        "Save less often.",
        "docs/training/checkpoints.md",
    ),
    "epoch-pause": Words(
        "Nothing is computed meanwhile: keep the loader and its workers from epoch to epoch.",
        "docs/doctor/speed.md#the-pause-between-epochs",
    ),
    "own-code": Words(
        "The slow part of the loop is the script's own code. More ranks do not make it faster.",
        "docs/speed/reading_timings.md#where-a-step-goes",
        "exercises/10_slower_than_one/task.py",
    ),
}

"""Every rank returns the accuracy that one process finds, without testing the whole set itself."""

from exercises.checks import accuracy

WORLD_SIZES = (2, 3)
HINTS = (
    "Print which images each rank tests: 11 images on two ranks. How many are that in all?",
    "DistributedSampler gives all ranks equally many images; if that does not come out even, it "
    "repeats the first ones. Those count twice.",
    "A test needs no DistributedSampler: take "
    "Subset(dataset, range(rank, len(dataset), world_size)) on each rank.",
)
observe = accuracy.observe
judge = accuracy.judge

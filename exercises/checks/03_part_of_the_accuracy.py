"""All ranks return the accuracy over the whole data set."""

from exercises.checks import accuracy

WORLD_SIZES = (2, 3)
HINTS = (
    "How many images has a rank tested when it divides, and by how many does it divide?",
    "Each rank knows how many of its own images are right. The whole set needs the sum over the "
    "ranks. A mean of the ranks' accuracies will not do: one may have tested fewer images.",
    "Make correct a tensor, and call dist.all_reduce(correct) before it is divided by "
    "len(dataset).",
)
observe = accuracy.observe
judge = accuracy.judge

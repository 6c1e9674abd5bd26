"""Every rank returns the accuracy that one process finds, without testing the whole set itself."""

import math

import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises.checks.common import Watch, secret_seed, some

CASES = ((11, 0), *((size, 0.4) for size in (11, 13, 7, 10, 24, 16)))  # images, random labels
HINTS = (
    "Print which images each rank tests: 11 images on two ranks. How many are that in all?",
    "DistributedSampler repeats the first images until all ranks have equally many: those count "
    "twice. To test, shard without padding, and divide the sum of all counts once.",
    "A test needs no DistributedSampler: take Subset(dataset, range(rank, len(dataset), "
    "world_size)) on each rank.",
)


def observe(mine, size, share):
    """`share` of the images get a random label; how many are right is known after the test only."""
    torch.manual_seed(secret_seed())
    model = nn.Linear(4, 3)
    x, labels = torch.randn(size, 4), torch.randint(3, (size,))
    with torch.no_grad():
        labels = torch.where(torch.rand(size) < share, labels, model(x).argmax(1))
    watch = Watch(model)
    result = mine.evaluate(model, TensorDataset(x, labels))
    tested = watch.rows
    with torch.no_grad():
        right = (model(x).argmax(1) == labels).sum().item()
    return {"result": result, "tested": tested, "right": right}


def judge(ranks, count, _):
    right, results = ranks[0]["right"], [rank["result"] for rank in ranks]
    for result in results:
        if not isinstance(result, (int, float)) and not torch.is_tensor(result):
            return f"evaluate is to return a number; it returned {result!r}"
    tested = [rank["tested"] for rank in ranks]
    if any(not math.isclose(result, 100 * right / count, abs_tol=1e-3) for result in results):
        return (
            f"the model is right on {right} of {count} images, {100 * right / count:.2f} %; the "
            f"ranks tested {some(tested)} images and returned "
            f"{some([f'{float(result):.2f} %' for result in results])}"
        )
    most = -(-count // len(ranks))
    for rank, images in enumerate(tested):
        if images > most:
            return (
                f"the figure is right, but rank {rank} tested {images} of {count} images; with "
                f"{len(ranks)} ranks {most} are enough"
            )
    return None

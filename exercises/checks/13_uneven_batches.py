"""All batches of all ranks are used in each epoch, in steps that all ranks take together."""

from collections import Counter
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Recorder, Watch, close, parameters
from exercises.checks.judge import shown

SIZE, EPOCHS = 2, 2
COUNTS = {2: (3, 5), 3: (4, 2, 3)}  # the batches of each rank


def images_of(rank, count):
    return range(100 * rank + 1, 100 * rank + 1 + SIZE * count)


def batch_of(images):
    x = torch.tensor([[float(image), 1.0] for image in images], dtype=torch.float64)
    return x, x[:, :1] * 1e-2


def observe(mine):
    rank, counts = dist.get_rank(), COUNTS[dist.get_world_size()]
    torch.manual_seed(rank)
    model = Recorder().double()
    watch = Watch(model)
    batches = torch.tensor(images_of(rank, counts[rank])).split(SIZE)
    mine.train(model, [batch_of(images) for images in batches], EPOCHS)
    return {"weights": [*watch.states, parameters(model)], "seen": model.seen, "at": model.weights}


def judge(found):
    counts = COUNTS[len(found)]
    wrong = judge_images(found, counts) or judge_weights(found) or judge_steps(found)
    return wrong and f"the ranks have {shown(counts)} batches: {wrong}"


def judge_images(found, counts):
    times = Counter(image for rank in found for images in rank["seen"] for image in images)
    given = [images_of(number, count) for number, count in enumerate(counts)]
    if strange := sorted(set(times).difference(*given)):
        return f"inputs were trained on that are in no batch of any rank: {shown(strange)}"
    for number, images in enumerate(given):
        if missing := [image for image in images if times[image] < EPOCHS]:
            seen = f"trained on {times[missing[0]]} times in {EPOCHS} epochs"
            return f"the images {shown(missing)} of rank {number} were {seen}"
    most = EPOCHS * SIZE * max(counts)
    for number, rank in enumerate(found):
        if (count := sum(map(len, rank["seen"]))) > most:
            return f"rank {number} trained on {count} images in {EPOCHS} epochs; {most} are enough"
    return None


def judge_weights(found):
    """All ranks go through the weights of the rank with the most steps, and end with the same."""
    most = max(range(len(found)), key=lambda number: len(found[number]["weights"]))
    steps = found[most]["weights"]
    for number, rank in enumerate(found):
        for step, weight in enumerate(rank["weights"]):  # a rank may leave steps to others
            if not any(close(weight, one) for one in steps):
                has = f"has the weights {shown(weight)} after {step} steps"
                return f"rank {number} {has}; rank {most} never has these"
        if not close(weight, steps[-1]):
            other = f"rank {most} {shown(steps[-1])}"
            return f"rank {number} has the weights {shown(weight)} at the end, {other}"
    return None


def judge_steps(found):
    """Each step adds the average gradient of all ranks, or of those that have a batch for it."""
    steps = max((rank["weights"] for rank in found), key=len)
    pairs = [pair for rank in found for pair in zip(rank["seen"], rank["at"])]
    for number, (before, after) in enumerate(pairwise(steps), start=1):
        batches = [images for images, weights in pairs if close(weights, before)]
        if close(before, after) or not batches:
            continue
        model = Recorder().double()
        torch.nn.utils.vector_to_parameters(before, model.parameters())
        loss = sum(F.mse_loss(model(x), y) for x, y in map(batch_of, batches))
        gradient = torch.autograd.grad(loss, model.parameters())
        total = torch.cat([one.flatten() for one in gradient])
        wanted = [-0.1 * total / count for count in (len(found), len(batches))]
        if not any(close(after, before + one) for one in wanted):
            added = f"added {shown(after - before)} to the weights"
            return f"step {number} {added}, the average gradient {shown(wanted[0])}"
    return None

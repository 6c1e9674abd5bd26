"""All batches of all ranks are used in each epoch, in steps that all ranks take together."""

from collections import Counter
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.common import Recorder, Watch, close, parameters
from exercises.verdict import shown

SIZE = 2
EPOCHS = 2
COUNTS = {2: (3, 5), 3: (4, 2, 3)}  # the batches of each rank


def images_of(rank, count):
    return range(100 * rank + 1, 100 * rank + 1 + SIZE * count)


def batch_of(images):
    rows = [[float(image), 1.0] for image in images]
    x = torch.tensor(rows, dtype=torch.float64)
    return x, 2 + x[:, :1] * 1e-2


def observe(mine):
    rank = dist.get_rank()
    count = COUNTS[dist.get_world_size()][rank]
    torch.manual_seed(rank)
    model = Recorder().double()
    watch = Watch(model)
    images = torch.tensor(images_of(rank, count))
    batches = [batch_of(part) for part in images.split(SIZE)]
    mine.train(model, batches, EPOCHS)
    return {
        "weights": [*watch.states, parameters(model)],
        "seen": model.seen,
        "at": model.weights,
    }


def judge(found):
    counts = COUNTS[len(found)]
    wrong = judge_images(found, counts) or judge_weights(found) or judge_steps(found)
    return wrong and f"the ranks have {shown(counts)} batches: {wrong}"


def judge_images(found, counts):
    times = Counter()
    for rank in found:
        for images in rank["seen"]:
            times.update(images)
    given = [images_of(number, count) for number, count in enumerate(counts)]
    strange = sorted(set(times).difference(*given))
    if strange:
        return f"inputs were trained on that are in no batch of any rank: {shown(strange)}"
    for number, images in enumerate(given):
        missing = [image for image in images if times[image] < EPOCHS]
        if missing:
            seen = f"trained on {times[missing[0]]} times in {EPOCHS} epochs"
            return f"the images {shown(missing)} of rank {number} were {seen}"
    most = EPOCHS * SIZE * max(counts)
    for number, rank in enumerate(found):
        count = sum(map(len, rank["seen"]))
        if count > most:
            return f"rank {number} trained on {count} images in {EPOCHS} epochs; {most} are enough"
    return None


def judge_weights(found):
    """All ranks go through the weights of the rank with the most steps, and end with the same."""
    lengths = [len(rank["weights"]) for rank in found]
    most = lengths.index(max(lengths))
    steps = found[most]["weights"]
    for number, rank in enumerate(found):
        for step, weight in enumerate(rank["weights"]):  # a rank may leave steps to others
            if not is_among(weight, steps):
                has = f"has the weights {shown(weight)} after {step} steps"
                return f"rank {number} {has}; rank {most} never has these"
        if not close(weight, steps[-1]):
            other = f"rank {most} {shown(steps[-1])}"
            return f"rank {number} has the weights {shown(weight)} at the end, {other}"
    return None


def is_among(weight, others):
    return any(close(weight, other) for other in others)


def judge_steps(found):
    """Each step adds the average gradient of all ranks, or of those that have a batch for it."""
    steps = max((rank["weights"] for rank in found), key=len)
    for number, (before, after) in enumerate(pairwise(steps), start=1):
        batches = batches_at(before, found)
        if close(before, after) or not batches:
            continue
        total = gradient_at(before, batches)
        wanted = [-0.1 * total / count for count in (len(found), len(batches))]
        if not is_among(after, [before + one for one in wanted]):
            added = f"added {shown(after - before)} to the weights"
            return f"step {number} {added}, the average gradient {shown(wanted[0])}"
    return None


def batches_at(weights, found):
    """The images that any rank has used with these weights."""
    batches = []
    for rank in found:
        for images, at in zip(rank["seen"], rank["at"]):
            if close(at, weights):
                batches.append(images)
    return batches


def gradient_at(weights, batches):
    """The sum of the gradients of these batches."""
    model = Recorder().double()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    loss = 0
    for images in batches:
        x, y = batch_of(images)
        loss += F.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, model.parameters())
    return torch.cat([one.flatten() for one in gradients])

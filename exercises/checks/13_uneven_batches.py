"""All batches of all ranks are used in each epoch, in steps that all ranks take together."""

from collections import Counter

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
    return {"weights": [*watch.states, parameters(model)], "seen": model.seen}


def judge(found):
    counts = COUNTS[len(found)]
    wrong = judge_images(found, counts) or judge_weights(found) or judge_first_step(found)
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
    """All ranks go through the weights of the rank with the most steps; none come back."""
    most = max(range(len(found)), key=lambda number: len(found[number]["weights"]))
    steps = found[most]["weights"]
    for end, weight in enumerate(steps):
        for start, before in enumerate(steps[:end]):
            if close(weight, before) and not all(close(weight, w) for w in steps[start:end]):
                return f"rank {most}: what it learnt in steps {start + 1} to {end} is thrown away"
    for number, rank in enumerate(found):
        left = iter(steps)  # a rank may leave steps to others, in order
        for step, weight in enumerate(rank["weights"]):
            if not any(close(weight, one) for one in left):
                has = f"has the weights {shown(weight)} after {step} steps"
                return f"rank {number} {has}; rank {most} never has these, or had them before"
        if not close(weight, steps[-1]):
            ends = f"{shown(weight)} at the end, rank {most} has {shown(steps[-1])}"
            return f"rank {number} has the weights {ends}"
    return None


def judge_first_step(found):
    """In it all ranks have a batch: it is made by the average of their gradients."""
    before, after = found[0]["weights"][:2]
    model = Recorder().double()
    torch.nn.utils.vector_to_parameters(before, model.parameters())
    x, y = map(torch.cat, zip(*[batch_of(rank["seen"][0]) for rank in found]))
    F.mse_loss(model(x), y).backward()
    wanted = -0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
    added = f"added {shown(after - before)} to the weights, the average gradient {shown(wanted)}"
    return None if close(after, before + wanted) else f"the first step {added}"

"""All batches of all ranks are used in each epoch, in steps that all ranks take together."""

from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Recorder, Watch, close, parameters
from exercises.checks.judge import shown

SIZE, EPOCHS = 2, 2
COUNTS = {2: (3, 5), 3: (4, 2, 3)}  # the batches of each rank
HINTS = (
    "Which rank has finished, which one waits, and in which step of which epoch?",
    "Each backward pass is a collective: all ranks make the same number of steps, or somebody "
    "answers for a rank that is done. Dropping the rest would leave images out.",
    "`with Join([ddp_model]):` around the loop over the batches, from "
    "torch.distributed.algorithms.join; or start again with the first batches until the rank with "
    "the most is done: all_reduce the number with MAX.",
)


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


def judge(ranks):
    counts = COUNTS[len(ranks)]
    if wrong := left_out(ranks, counts) or not_together(ranks) or too_many(ranks, counts):
        return f"with {', '.join(map(str, counts[:-1]))} and {counts[-1]} batches {wrong}"
    return None


def left_out(found, counts):
    times = Counter(image for rank in found for images in rank["seen"] for image in images)
    given = {image for number, count in enumerate(counts) for image in images_of(number, count)}
    if strange := sorted(set(times) - given):
        return f"inputs were trained on that are in no batch of any rank: {shown(strange)}"
    for number, count in enumerate(counts):
        if missing := [image for image in images_of(number, count) if times[image] < EPOCHS]:
            return (
                f"the images {shown(missing)} of rank {number} were trained on "
                f"{times[missing[0]]} times in {EPOCHS} epochs"
            )
    return None


def too_many(found, counts):
    most = EPOCHS * SIZE * max(counts)
    for number, rank in enumerate(found):
        if (given := sum(map(len, rank["seen"]))) > most:
            return f"rank {number} trained on {given} images in {EPOCHS} epochs; {most} are enough"
    return None


def thrown_away(steps):
    """Steps after which the weights are again what they had been before."""
    for end, weight in enumerate(steps):
        for start, before in enumerate(steps[:end]):
            if close(weight, before) and not all(close(weight, w) for w in steps[start:end]):
                return start, end
    return None


def not_together(found):
    most = max(range(len(found)), key=lambda number: len(found[number]["weights"]))
    if steps := thrown_away(found[most]["weights"]):
        return (
            f"rank {most} has after step {steps[1]} the weights that it had after step {steps[0]}: "
            f"what it learnt in between is thrown away"
        )
    for number, rank in enumerate(found):
        had = iter(found[most]["weights"])  # a rank may leave steps to others, in order
        for step, weight in enumerate(rank["weights"]):
            if not any(close(weight, one) for one in had):
                return (
                    f"rank {number} has the weights {shown(weight)} after {step} steps; rank "
                    f"{most} never has these, or had them before"
                )
        if not close(weight, last := found[most]["weights"][-1]):
            return (
                f"rank {number} has the weights {shown(weight)} at the end, rank {most} has "
                f"{shown(last)}"
            )
    return not_averaged(found)


def not_averaged(found):
    """In the first step, in which all ranks have a batch."""
    before, after = found[0]["weights"][:2]
    model = Recorder().double()
    torch.nn.utils.vector_to_parameters(before, model.parameters())
    x, y = map(torch.cat, zip(*[batch_of(rank["seen"][0]) for rank in found]))
    F.mse_loss(model(x), y).backward()
    wanted = -0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
    if not close(after, before + wanted):
        return (
            f"the first step added {shown(after - before)} to the weights; the average of the "
            f"ranks' gradients would add {shown(wanted)}"
        )
    return None

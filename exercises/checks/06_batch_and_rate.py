"""One epoch on all ranks ends with the weights of one process, and no image is seen twice."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from exercises.checks.common import Recorder, alone, first_difference, numbered, parameters, some

CASES = ((24, 6, 0.3), (24, 12, 0.1), (60, 6, 0.2))  # images, batch size, learning rate
CASE = "{} images, batch_size={}: "
LEARNT = "batch_size of a DataLoader is that of its rank: N ranks take N times as many per step."
HINTS = (
    "How many steps does an epoch take on one process, and how many on two ranks? How many images "
    "are in a step, over all ranks?",
    "batch_size of a DataLoader is that of its own rank: N ranks take N times as many images per "
    "step, and 1/N of the steps. No other learning rate undoes that.",
    "DataLoader(dataset, batch_size=batch_size // dist.get_world_size(), sampler=sampler)",
)


def data(count):
    numbers, _ = numbered(count).tensors
    return TensorDataset(numbers.double(), torch.sin(numbers[:, :1]).double())


def make_model(seed=0):
    torch.manual_seed(seed)
    return Recorder().double()


def observe(mine, count, batch_size, lr):
    model = make_model(seed=dist.get_rank())
    mine.train(model, data(count), batch_size, lr)
    return {"seen": model.seen, "steps": [parameters(make_model()), parameters(model)]}


def judge(ranks, count, size, lr):
    x, y = data(count).tensors
    start, *_, end = alone(make_model(), zip(x.split(size), y.split(size)), F.mse_loss, lr)
    return judge_images(count, size, ranks) or first_difference(ranks, [start, end], "epoch")


def judge_images(count, batch_size, found):
    """In each step the ranks together take the images that one process takes."""
    counts = [len(values["seen"]) for values in found]
    wanted = torch.arange(count).split(batch_size)
    for step, one in enumerate(wanted[: min(counts)]):
        taken = sorted(image for values in found for image in values["seen"][step])
        if taken != one.tolist():
            return (
                f"in step {step} the ranks together took {len(taken)} images: {some(taken, 13)}; "
                f"one process takes {len(one)}: {some(one.tolist(), 13)}"
            )
    for number, steps in enumerate(counts):
        if steps != len(wanted):
            return f"rank {number} made {steps} steps; one process makes {len(wanted)}"
    return None

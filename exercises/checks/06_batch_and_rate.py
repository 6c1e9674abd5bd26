"""One epoch on all ranks ends with the weights of one process, and no image is seen twice."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from exercises.checks.common import Recorder, numbered, parameters, some

WORLD_SIZES = (2, 3)
CASES = ((24, 6, 0.3), (24, 12, 0.1), (60, 6, 0.2))  # images, batch size, learning rate
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


def observe(mine):
    found = []
    for count, batch_size, lr in CASES:
        model = make_model(seed=dist.get_rank())
        mine.train(model, data(count), batch_size, lr)
        found.append({"seen": model.seen, "weights": parameters(model)})
    return {"cases": found}


def alone(count, batch_size, lr):
    """The weights with which one process ends."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = data(count).tensors
    for batch, labels in zip(x.split(batch_size), y.split(batch_size)):
        optimizer.zero_grad()
        F.mse_loss(model(batch), labels).backward()
        optimizer.step()
    return parameters(model)


def judge(ranks):
    for case, found in zip(CASES, zip(*(rank["cases"] for rank in ranks))):
        if wrong := judge_images(*case, found) or judge_weights(*case, found):
            return f"{case[0]} images, batch_size={case[1]}: {wrong}"
    return None


def judge_images(count, batch_size, lr, found):
    """In each step the ranks together take the images that one process takes."""
    counts = [len(values["seen"]) for values in found]
    wanted = list(torch.arange(count).split(batch_size))
    for step in range(min(counts, default=0)):
        taken = sorted(image for values in found for image in values["seen"][step])
        one = wanted[step].tolist() if step < len(wanted) else []
        if taken != one:
            return (
                f"in step {step} the ranks together took {len(taken)} images: {some(taken, 13)}; "
                f"one process takes {len(one)}: {some(one, 13)}"
            )
    for number, steps in enumerate(counts):
        if steps != len(wanted):
            return f"rank {number} made {steps} steps; one process makes {len(wanted)}"
    return None


def judge_weights(count, batch_size, lr, found):
    wanted = alone(count, batch_size, lr)
    for number, values in enumerate(found):
        error = (values["weights"] - wanted).abs().max().item()
        if not error < 1e-10:
            return (
                f"the images are those of one process in every step, but the weights of rank "
                f"{number} differ from its weights by up to {error:.2g} in the end"
            )
    return None

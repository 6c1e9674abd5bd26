"""Weights are those of one process with the big batch; one micro-batch at a time; one collective"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 3)
SIZES = (((4, 4), (4, 4), (4, 4)), ((5, 1, 2), (3,), (6, 2)), ((1,), (7, 2), (2, 2, 2)))
HINTS = (
    "The gradient of the big batch is the sum over all samples, divided by their number. Which of "
    "the two can a rank know without the others?",
    "Backward passes add up in .grad. Let them add up sums (not means), count the samples, and "
    "send both in one vector.",
    'cross_entropy(..., reduction="sum") for each micro-batch; torch.cat of all gradients and '
    "[count]; all_reduce; divide by the last element; copy back; step.",
)


class Model(nn.Module):
    """Notes the passes: `events` is the sizes of the micro-batches, and "backward"."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.outer = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
        self.inner.bias.requires_grad_(False)
        self.events = []

    def forward(self, x):
        self.events.append(len(x))
        y = self.outer(torch.tanh(self.inner(x)))
        y.register_hook(lambda gradient: self.events.append("backward"))
        return y

    def weights(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}


def micro_batches(rank, step):
    torch.manual_seed(10 * step + rank)
    return [
        (torch.randn(size, 4, dtype=torch.float64), torch.randint(3, (size,)))
        for size in SIZES[step][rank]
    ]


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)


def observe(mine):
    notes = Collectives()
    model = Model()
    optimizer = make_optimizer(model)
    steps = []
    for step in range(len(SIZES)):
        notes.calls.clear()
        model.events.clear()
        mine.train_step(model, optimizer, micro_batches(dist.get_rank(), step))
        names = [name for name, _ in notes.calls]
        steps.append({"weights": model.weights(), "events": list(model.events), "calls": names})
    return {"steps": steps}


def whole(world_size):
    """-> the weights after each step of one process with all samples."""
    model = Model()
    optimizer = make_optimizer(model)
    for step in range(len(SIZES)):
        batches = [batch for rank in range(world_size) for batch in micro_batches(rank, step)]
        x, y = (torch.cat(parts) for parts in zip(*batches))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield model.weights()


def judge(ranks):
    for step, wanted in enumerate(whole(len(ranks))):
        for number, rank in enumerate(ranks):
            values, sizes = rank["steps"][step], SIZES[step][number]
            wrong = judge_passes(values["events"], sizes) or judge_weights(values, wanted)
            if wrong is None and len(values["calls"]) > 1:
                wrong = f"{len(values['calls'])} collectives, where one is enough"
            if wrong:
                return f"step {step}, rank {number} with micro-batches of {list(sizes)}: {wrong}"
    return None


def judge_passes(events, sizes):
    forward = [event for event in events if event != "backward"]
    if sorted(forward) != sorted(sizes):
        return f"the model was given {forward} samples"
    if (first := events.index("backward") if "backward" in events else len(events)) > 1:
        return f"{first} forward passes before the first backward pass"
    return None


def judge_weights(values, wanted):
    for name, weight in values["weights"].items():
        if not torch.allclose(weight, wanted[name], rtol=1e-6, atol=1e-9):
            return (
                f"{name} is not what one process gets: it begins with "
                f"{weight.flatten()[0]:.5f}, not {wanted[name].flatten()[0]:.5f}"
            )
    return None

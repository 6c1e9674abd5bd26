"""After each step all ranks have the weights of one process that trains on the data of all."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector as vector

from exercises.checks.common import digits, note_rows, note_weights, too_many_rows, weights

WORLD_SIZES = (2, 3)
STEPS = 4
HINTS = (
    "Print the gradients of two ranks after backward(). Are they equal?",
    "backward() averages only if the forward pass went through the DDP model: its forward "
    "prepares the averaging.",
    "Only .loss is to be taken from .module: net.loss(ddp_model(x), y).",
)


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(2, 1).double()

    def forward(self, x):
        return self.layer(x)

    def loss(self, prediction, y):
        return 0.7 * F.mse_loss(prediction, y)  # only who calls it gets the right steps


def data(rank):
    torch.manual_seed(100 + rank)
    x = torch.rand(6, 2, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) * (1 + rank)


def alone(x, y):
    """The weights of one process before each step, and at the end."""
    model = Model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [vector(model.parameters()).detach().clone()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        model.loss(model(x), y).backward()
        optimizer.step()
        found.append(vector(model.parameters()).detach().clone())
    return found


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = Model(seed=rank)
    notes, rows = note_weights(model), note_rows(model)
    mine.train(model, *data(rank), STEPS)
    found = [vector(note.values()) for note in [*notes, weights(model)]]
    everything = [torch.cat(parts) for parts in zip(*map(data, range(world_size)))]
    own = alone(*data(rank))
    return {"found": found, "wanted": alone(*everything), "own": own, "rows": rows}


def judge(ranks):
    for number, rank in enumerate(ranks):
        if (calls := len(rank["found"]) - 1) != STEPS:
            return f"rank {number} was to take {STEPS} steps; it called the model {calls} times"
    for step in range(STEPS + 1):
        found = [rank["found"][step] for rank in ranks]
        for number in range(1, len(ranks)):
            if not close(found[0], found[number]):
                return (
                    f"after step {step} the weights of rank 0 are {digits(found[0])}, those of "
                    f"rank {number} are {digits(found[number])}"
                )
        for number, rank in enumerate(ranks):
            if step and close(found[0], rank["own"][step]):
                return (
                    f"after step {step} all ranks have the same weights, but those that rank "
                    f"{number} would have learnt alone: nothing came from the others' data"
                )
        if not close(found[0], wanted := ranks[0]["wanted"][step]):
            return (
                f"after step {step} all ranks have the weights {digits(found[0])}; one process "
                f"with the data of all ranks, by the model's own loss, has {digits(wanted)}"
            )
    return too_many_rows(ranks, STEPS * 6)


def close(one, other):
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)

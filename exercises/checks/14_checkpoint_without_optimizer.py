"""Stopped after any epoch and started again, a run ends with the weights of an undisturbed one."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import digits, note_weights, weights

WORLD_SIZES = (2, 3)
EPOCHS, BATCHES = 4, 2
HINTS = (
    "Compare the first step after the start with the same step of the undisturbed run: the "
    "weights before it are equal. What else does the step depend on?",
    "SGD with momentum adds up past gradients, in the state of the optimizer. It is not in the "
    "file, so it begins at 0 again.",
    "Save optimizer.state_dict() as well, and load it on all ranks.",
)


class Stopped(Exception):
    """Raised in the first forward pass of an epoch: the job is ended there."""


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Linear(2, 1).double()


def data(rank):
    torch.manual_seed(100 + rank)
    x = torch.rand(BATCHES, 5, 2, dtype=torch.float64)
    return list(zip(x, x.sum(2, keepdim=True) * (1 + rank)))


def run(mine, path, stop=None):
    """Train a new model, until it is stopped before epoch `stop` -> its weights at each step."""
    rank = dist.get_rank()
    model = make_model(seed=rank)
    notes = note_weights(model)

    def forward(*_):
        if stop and len(notes) > stop * BATCHES:
            raise Stopped

    model.register_forward_pre_hook(forward)
    try:
        mine.train(model, data(rank), EPOCHS, path)
    except Stopped:
        notes.pop()
    dist.barrier()
    return [flat(note) for note in [*notes, weights(model)]]


def flat(note):
    return torch.cat([note["weight"].flatten(), note["bias"]])


def alone():
    """The weights of one process with all data, never stopped, at each step."""
    batches = [[torch.cat(part) for part in zip(*pairs)] for pairs in everything()]
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    found = [flat(weights(model))]
    for x, y in batches * EPOCHS:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        found.append(flat(weights(model)))
    return found


def everything():
    """The first batch of each rank, the second of each, ..."""
    return zip(*map(data, range(dist.get_world_size())))


def observe(mine):
    found = {"wanted": alone(), "undisturbed": run(mine, "undisturbed.pt"), "resumed": {}}
    for stop in range(1, EPOCHS):
        path = f"stopped_{stop}.pt"
        found["resumed"][stop] = run(mine, path, stop), run(mine, path)
    return found


def judge(ranks):
    for number, rank in enumerate(ranks):
        whole, wanted = rank["undisturbed"], rank["wanted"]
        if len(whole) != len(wanted) or not torch.allclose(whole[-1], wanted[-1], rtol=1e-9):
            return (
                f"on rank {number} a run that is never stopped ended with the weights "
                f"{digits(whole[-1])} after {len(whole) - 1} steps; one process that trains on the "
                f"data of all ranks has {digits(wanted[-1])} after {len(wanted) - 1}"
            )
    for stop in ranks[0]["resumed"]:
        for number, rank in enumerate(ranks):
            first, again = rank["resumed"][stop]
            case = f"stopped after {stop} of {EPOCHS} epochs and started again"
            if (steps := len(again) - 1) != (left := (EPOCHS - stop) * BATCHES):
                return f"{case}, rank {number} took {steps} more steps; {left} were left"
            before = rank["undisturbed"][stop * BATCHES :]
            for step, (seen, wanted) in enumerate(zip(again, before)):
                if not torch.equal(seen, wanted):
                    when = f"after its step {step}" if step else "before its first step"
                    return (
                        f"{case}, rank {number} has the weights {digits(seen)} {when}; in the run "
                        f"that was never stopped it has {digits(wanted)} there"
                    )
    return None

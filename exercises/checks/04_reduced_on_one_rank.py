"""All ranks halve the learning rate in the epochs in which one process with all data would."""

import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import number

WORLD_SIZES = (2, 3)
EPOCHS = 8
HINTS = (
    "Print what the scheduler is given on each rank: is it the same number?",
    "After dist.reduce only the rank that is named in dst has the sum. What the tensor holds on "
    "the others is not defined.",
    "Every rank needs the sum: dist.all_reduce(mean) in place of dist.reduce(mean, dst=0).",
)


def cases(world_size):
    """[(the rank whose loss grows while the mean falls, or None; learning rate)]"""
    return [(world_size - 1, 0.2), (0, 0.2), (None, 1.6)]


def data(rank, odd):
    """Labels that grow with x, except those of one rank."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.rand(8, 1, generator=generator)
    return x, x * (0.0 if rank == odd else 2.0 + 0.1 * rank)


def make_model():
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def observe(mine):
    found = []
    for odd, lr in cases(dist.get_world_size()):
        model = make_model()
        rates = mine.train(model, *data(dist.get_rank(), odd), lr, EPOCHS)
        right = isinstance(rates, (list, tuple)) and len(rates) == EPOCHS
        rates = [number(rate) for rate in rates] if right else repr(rates)
        found.append({"rates": rates, "weight": model.weight.item()})
    return {"cases": found}


def alone(world_size, odd, lr):
    """What one process does with the data of all ranks -> (rates, weight)"""
    model = make_model()
    x, y = (torch.cat(parts) for parts in zip(*(data(rank, odd) for rank in range(world_size))))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    rates = []
    for _ in range(EPOCHS):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    return rates, model.weight.item()


def judge(ranks):
    for (odd, lr), found in zip(cases(len(ranks)), zip(*(rank["cases"] for rank in ranks))):
        for rank, values in enumerate(found):
            rates = values["rates"]
            if isinstance(rates, str) or not all(isinstance(rate, float) for rate in rates):
                return (
                    f"train is to return a list of {EPOCHS} learning rates; on rank {rank} it "
                    f"returned {rates}"
                )
        if wrong := judge_rates(found, *alone(len(ranks), odd, lr)):
            return wrong
    return None


def judge_rates(found, wanted, weight):
    for epoch, rates in enumerate(zip(*(values["rates"] for values in found))):
        seen = ", ".join(f"{rate:g} on rank {rank}" for rank, rate in enumerate(rates))
        if any(not math.isclose(rate, rates[0], rel_tol=1e-6) for rate in rates):
            return f"after epoch {epoch} the learning rate is {seen}"
        if not math.isclose(rates[0], wanted[epoch], rel_tol=1e-6):
            return (
                f"after epoch {epoch} the learning rate is {rates[0]:g} on all ranks; one process "
                f"with the data of all ranks has {wanted[epoch]:g} then"
            )
    for rank, values in enumerate(found):
        if not math.isclose(values["weight"], weight, rel_tol=1e-4):
            return (
                f"the learning rates are right, but rank {rank} ends with the weight "
                f"{values['weight']:.6f}; one process with the data of all ranks with {weight:.6f}"
            )
    return None

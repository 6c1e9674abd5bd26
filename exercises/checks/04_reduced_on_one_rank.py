"""All ranks halve the learning rate in the epochs in which one process with all data would."""

import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import close, some, together

EPOCHS = 8
CASES = ((-1, 0.2), (0, 0.2), (None, 1.6))  # the rank whose loss grows, learning rate
HINTS = (
    "Print what the scheduler is given on each rank: is it the same number?",
    "After dist.reduce only the rank that is named in dst has the sum. What every rank decides "
    "by, a learning rate or an early stop, has to be all-reduced.",
    "Every rank needs the sum: dist.all_reduce(mean) in place of dist.reduce(mean, dst=0).",
)


def data(world_size, odd):
    """For each rank x and labels that grow with it, except those of one rank."""
    torch.manual_seed(0)
    slopes = [2.0 + 0.1 * rank for rank in range(world_size)]
    if odd is not None:
        slopes[odd] = 0.0
    return [(x, x * slope) for x, slope in zip(torch.rand(world_size, 8, 1), slopes)]


def make_model():
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def observe(mine, odd, lr):
    model = make_model()
    rates = mine.train(model, *data(dist.get_world_size(), odd)[dist.get_rank()], lr, EPOCHS)
    return {"rates": rates, "weight": model.weight.item()}


def alone(world_size, odd, lr):
    """What one process does with the data of all ranks -> (rates, weight)"""
    model = make_model()
    x, y = together(data(world_size, odd))
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
    return torch.tensor(rates), model.weight.item()


def judge(ranks, odd, lr):
    rates, weight = alone(len(ranks), odd, lr)
    for values in ranks:
        try:
            mine = torch.tensor(values["rates"], dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            mine = torch.empty(0)
        if mine.shape != (EPOCHS,):
            return f"train is to return {EPOCHS} learning rates, not {values['rates']}"
        if not close(mine, rates):
            each = [f"{some(v['rates'], EPOCHS)} on rank {n}" for n, v in enumerate(ranks)]
            return (
                f"the learning rates after each epoch are {'; '.join(each)}; one process with "
                f"the data of all ranks has {some([f'{r:g}' for r in rates.tolist()], EPOCHS)}"
            )
    for rank, values in enumerate(ranks):
        if not math.isclose(values["weight"], weight, rel_tol=1e-4):
            return (
                f"the learning rates are right, but rank {rank} ends with the weight "
                f"{values['weight']:.6f}; one process with all data with {weight:.6f}"
            )
    return None

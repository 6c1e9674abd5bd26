"""All ranks halve the learning rate in the epochs in which one process with all data would."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import close, digits, some, together

WORLD_SIZES = (2, 3)
EPOCHS = 8
LEARNT = "dist.reduce leaves the sum on one rank only: what every rank decides by is all-reduced."
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
        found.append({"rates": rates, "weight": model.weight.item()})
    return {"cases": found}


def alone(world_size, odd, lr):
    """What one process does with the data of all ranks -> (rates, weight)"""
    model = make_model()
    x, y = together(data(rank, odd) for rank in range(world_size))
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
    return torch.tensor(rates), torch.tensor(model.weight.item())


def judge(ranks):
    for number, case in enumerate(cases(len(ranks))):
        found = [rank["cases"][number] for rank in ranks]
        rates, weight = alone(len(ranks), *case)
        for values in found:
            try:
                mine = torch.tensor(values["rates"], dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError):
                mine = torch.empty(0)
            if mine.shape != (EPOCHS,):
                return f"train is to return {EPOCHS} learning rates, not {values['rates']}"
            if not close(mine, rates):
                each = [f"{some(v['rates'], EPOCHS)} on rank {n}" for n, v in enumerate(found)]
                return (
                    f"the learning rates after each epoch are {'; '.join(each)}; one process with "
                    f"the data of all ranks has {some([f'{r:g}' for r in rates.tolist()], EPOCHS)}"
                )
        for rank, values in enumerate(found):
            if not torch.isclose(torch.tensor(values["weight"]), weight, rtol=1e-4):
                return (
                    f"the learning rates are right, but rank {rank} ends with the weight "
                    f"{values['weight']:.6f}; one process with all data with {digits(weight)}"
                )
    return None

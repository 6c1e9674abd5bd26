"""The weights are those of one process with the data of all; the model is sharded meanwhile."""

import torch.distributed as dist
import torch.nn as nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from exercises.common import linear, rank_data
from exercises.verdict import NOTE, shown

STEPS = 4
CASES = ((0.5,), (3.0,), (4.0,))  # always below the norm; between its values on 2, on 3 ranks
CASE = "max_norm={}: "


def observe(mine, max_norm):
    model = nn.Sequential(linear(1, 2, 5), nn.Tanh(), linear(2, 5, 1))
    kinds = set()
    squares = []  # of the gradients that the optimizer is given in each step

    def note(optimizer, args, kwargs):
        kinds.update(map(type, model.parameters()))
        squares.append(local_square(model))

    noting = register_optimizer_step_pre_hook(note)
    weights = mine.train(model, *rank_data(dist.get_rank()), max_norm, STEPS)
    noting.remove()
    whole = {}
    for name, weight in weights.items():
        whole[f"the returned {name}"] = "a shard" if isinstance(weight, DTensor) else weight
    whole["the model is sharded in all steps"] = kinds == {DTensor}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, squares)
    whole[f"{NOTE}norms"] = [sum(of_step) ** 0.5 for of_step in zip(*everyone)]
    return whole


def figures(*cases):
    """What shows that a gradient was clipped by the norm of one rank's part, or never."""
    lines = ["the norm of the whole gradient that Adam is given in each step"]
    for (max_norm,), found in zip(CASES, cases):
        lines.append(f"max_norm={max_norm}: {shown(found[f'{NOTE}norms'])}")
    return "\n".join(lines)


def local_square(model):
    """Of the parts of the gradients that this rank has."""
    total = 0.0
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.to_local()
        if gradient is not None:
            total += gradient.double().square().sum().item()
    return total

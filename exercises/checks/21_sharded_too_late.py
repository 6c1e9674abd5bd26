"""The weights are those of one process with the data of all; the model is sharded meanwhile."""

import torch.distributed as dist
import torch.nn as nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from exercises.checks.common import linear, rank_data

STEPS = 4
CASES = ((0.5,), (3.0,), (4.0,))  # always below the norm; between its values on 2, on 3 ranks
CASE = "max_norm={}: "


def observe(mine, max_norm):
    model = nn.Sequential(linear(1, 2, 5), nn.Tanh(), linear(2, 5, 1))
    kinds = set()

    def note_kinds(optimizer, args, kwargs):
        kinds.update(map(type, model.parameters()))

    noting = register_optimizer_step_pre_hook(note_kinds)
    weights = mine.train(model, *rank_data(dist.get_rank()), max_norm, STEPS)
    noting.remove()
    whole = {}
    for name, weight in weights.items():
        whole[name] = "a shard" if isinstance(weight, DTensor) else weight
    whole["a sharded model in all steps"] = kinds == {DTensor}
    return whole

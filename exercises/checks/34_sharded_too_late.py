"""The weights are those of one process with the data of all; the model is sharded meanwhile."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from exercises.checks.common import alone, close, digits, linear, rank_data, together

STEPS, MAX_NORM = 4, 0.5
HINTS = (
    "Compare id(p) of the optimizer's parameters with those of the model, before the first step.",
    "fully_shard puts new parameters, the shards, into the model; an optimizer that was made "
    "before keeps the old ones.",
    "Make the optimizer after fully_shard.",
)


def make_model():
    return nn.Sequential(linear(1, 2, 5), nn.Tanh(), linear(2, 5, 1))


def observe(mine):
    model, kinds = make_model(), set()
    register_optimizer_step_pre_hook(lambda *_: kinds.update(map(type, model.parameters())))
    weights = mine.train(model, *rank_data(dist.get_rank()), MAX_NORM, STEPS)
    whole = {n: w.detach() for n, w in weights.items() if not isinstance(w, DTensor)}
    return {"weights": whole, "sharded": kinds == {DTensor}}


def judge(ranks):
    model, batch = make_model(), together(map(rank_data, range(len(ranks))))
    alone(model, [batch] * STEPS, lr=0.05, optimizer=torch.optim.Adam, max_norm=MAX_NORM)
    for number, rank in enumerate(ranks):
        for name, wanted in model.state_dict().items():
            if name not in rank["weights"] or rank["weights"][name].shape != wanted.shape:
                return f"{name} on rank {number} is a shard, or not there; return whole weights"
            if not close(rank["weights"][name], wanted):
                start = make_model().state_dict()[name]
                return (
                    f"{name} on rank {number} is {digits(rank['weights'][name])}, one process "
                    f"gets {digits(wanted)}; before the training it was {digits(start)}"
                )
        if not rank["sharded"]:
            return f"the weights are right, but on rank {number} not all steps had a sharded model"
    return None

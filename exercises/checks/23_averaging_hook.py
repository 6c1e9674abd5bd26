"""Gradients and weights have to equal those of one process with all data, after each pass."""

import copy

import torch
import torch.distributed as dist
import torch.nn as nn

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 3)
HINTS = (
    "One process would compute the average of the ranks' gradients. When is a gradient there?",
    "parameter.register_hook(f) calls f with the gradient of each pass before it is added to "
    ".grad, and takes what f returns in its place.",
    "In the hook: divide by dist.get_world_size(), all_reduce, return. Broadcast each parameter "
    "once before.",
)


def make_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[0].bias.requires_grad_(False)
    return model


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    calls = Collectives().calls
    model = make_model(seed=rank)

    def listen(_, x, y):  # its gradients come after those of the last layer
        y.register_hook(lambda _: calls.append(("the first layer", 0)))

    model[0].register_forward_hook(listen)
    mine.attach(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(99)
    batches = torch.rand(2, world_size, 5, 3, dtype=torch.float64)
    alone = copy.deepcopy(make_model(seed=0))
    gradients, wanted = [], []
    for batch in batches:  # two backward passes without zero_grad
        model(batch[rank]).square().mean().backward()
        alone(batch.flatten(0, 1)).square().mean().backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
        )
        wanted.append({n: p.grad.clone() for n, p in alone.named_parameters() if p.requires_grad})
    start = {name: p.detach().clone() for name, p in alone.named_parameters()}
    return dict(weights=weights, start=start, gradients=gradients, wanted=wanted, calls=calls)


def judge(ranks):
    for number, rank in enumerate(ranks):
        for name, weight in rank["weights"].items():
            if not torch.equal(weight, rank["start"][name]):
                return f"after attach, {name} on rank {number} is not that of rank 0"
    for number, rank in enumerate(ranks):
        for step, (found, wanted) in enumerate(zip(rank["gradients"], rank["wanted"]), start=1):
            for name in wanted:
                if not torch.allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12):
                    factor = (found[name].norm() / wanted[name].norm()).item()
                    return (
                        f"after backward pass {step}, the gradient of {name} on rank {number} "
                        f"is not the average over the ranks (its norm is {factor:.3f} times that)"
                    )
        if not any(name == "all_reduce" for name, _ in rank["calls"]):
            return "the gradients are right, but not by all_reduce"
        names = [name for name, _ in rank["calls"]]
        if "all_reduce" not in names[: names.index("the first layer")]:
            return (
                f"the gradients are right, but rank {number} called no all_reduce before the "
                f"backward pass came to the first layer: those of the last one were there"
            )
    return None

"""Rank 0 returns the validation loss of its model after each epoch; the training is as before."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import batchnorm_model, digits

EPOCHS, BATCHES = 3, 2
HINTS = (
    "In which line does each rank wait? A collective needs all ranks, and two different ones do "
    "not meet. Which collective is there in rank 0's line?",
    "The forward pass of a DDP model broadcasts the buffers of rank 0, here those of BatchNorm, "
    "in eval mode as well: it is a collective, and the other ranks do not call it.",
    "Let rank 0 validate the bare model: validate(ddp_model.module, ...).",
)


def data(seed, batches):
    torch.manual_seed(seed)
    x = torch.rand(batches, 6, 2) + 0.2 * seed
    return list(zip(x, x.sum(2, keepdim=True)))


def observe(mine):
    rank = dist.get_rank()
    model, states = batchnorm_model(seed=rank), []

    def note(module, _):
        if module.training:
            states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    model.register_forward_pre_hook(note)
    x_val, y_val = data(seed=9, batches=1)[0]
    returned = mine.train(model, data(rank, BATCHES), x_val, y_val, EPOCHS)
    states.append(model.state_dict())
    wanted = [loss(state, x_val, y_val) for state in states[BATCHES::BATCHES]]
    bias = states[-1]["2.bias"].clone()
    return {"returned": returned, "wanted": wanted, "passes": len(states) - 1, "bias": bias}


@torch.no_grad()
def loss(state, x, y):
    """Of the model in this state, in eval mode."""
    model = batchnorm_model(seed=0)
    model.load_state_dict(state)
    return F.mse_loss(model.eval()(x), y).item()


def judge(ranks):
    for number, rank in enumerate(ranks):
        if rank["passes"] != EPOCHS * BATCHES:
            return (
                f"rank {number} has {BATCHES} batches and {EPOCHS} epochs; it made "
                f"{rank['passes']} forward passes in train mode"
            )
        if not torch.equal(rank["bias"], ranks[0]["bias"]):
            return (
                f"after the training a bias is {digits(ranks[0]['bias'])} on rank 0 and "
                f"{digits(rank['bias'])} on rank {number}"
            )
    returned, wanted = ranks[0]["returned"], ranks[0]["wanted"]
    kinds = [type(one) for one in returned] if isinstance(returned, list) else None
    if kinds != [float] * EPOCHS:
        return f"train is to return a list of {EPOCHS} losses; on rank 0 it returned {returned!r}"
    for epoch, (one, other) in enumerate(zip(returned, wanted)):
        if not abs(one - other) <= 1e-4 * other:  # or not a number
            return (
                f"the validation loss after epoch {epoch} was to be {other:.5f}, that of rank 0's "
                f"model in eval mode; train returned {one:.5f}"
            )
    return None

"""The loss that train returns is that of the saved model, on the test data of all ranks."""

import torch
import torch.distributed as dist

from exercises.checks.common import batchnorm_model

STEPS = 6
HINTS = (
    "Which numbers of the model does the test use, and are they equal on all ranks? Compare "
    "model.state_dict() of two ranks after the last step.",
    "DDP averages gradients, not BatchNorm's statistics: each rank has those of its own batches, "
    "and the file has those of rank 0.",
    "Before saving and testing: for buffer in model.buffers(): dist.broadcast(buffer, src=0).",
)


def data(rank):
    """The batches of a rank, and its test data: other numbers on each rank, and more of them."""
    torch.manual_seed(100 + rank)
    x = torch.rand(STEPS + 1, 6 + rank, 2) + 2 * rank
    y = x.sum(2, keepdim=True)
    return list(zip(x[:-1], y[:-1])), x[-1], y[-1]


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches, x, y = data(rank)
    model, calls = batchnorm_model(seed=rank), []
    model.register_forward_hook(lambda module, *_: calls.append(module.training))
    returned = mine.train(model, batches, x, y, "model.pt")
    found = {"returned": returned, "steps": sum(calls)}
    dist.barrier()
    saved = batchnorm_model(seed=0).eval()
    saved.load_state_dict(torch.load("model.pt"))
    with torch.no_grad():
        tests = [data(other)[1:] for other in range(world_size)]
        squares = torch.cat([(saved(x) - y).square() for x, y in tests])
    found["statistics"] = saved[1].running_mean.abs().sum().item()
    return found | {"wanted": squares.mean().item()}


def judge(ranks):
    for number, rank in enumerate(ranks):
        returned = rank["returned"]
        if not isinstance(returned, float):
            return f"train is to return the loss, a float; on rank {number} it is {returned!r}"
        if rank["steps"] < STEPS:
            return f"rank {number} has {STEPS} batches; it trained on {rank['steps']} in train mode"
        if not rank["statistics"]:
            return "BatchNorm's running_mean is 0 in the file: it has seen no data"
        if not abs(returned - rank["wanted"]) <= 1e-5 * rank["wanted"]:  # or not a number
            return (
                f"train returned {returned:.6g} on rank {number}; the model in the file, tested "
                f"on the same data, has a loss of {rank['wanted']:.6g}"
            )
    return None

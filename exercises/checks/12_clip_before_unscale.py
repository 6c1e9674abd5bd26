"""Each step changes the weights as it would without a scaler; the loss is scaled all the same."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Watch, linear, rank_data, together

STEPS, MAX_NORM, RATE = 8, 1.0, 0.1
OVERFLOW = 1  # in this step the last rank has an infinite gradient: all skip it, halve the scale
LEARNT = "Unscale before you clip. DDP averages before both, so all ranks see an infinite gradient."
HINTS = (
    "Print what clip_grad_norm_ returns: the norm of the gradients that it was given.",
    "The scaler multiplies the loss, and by that all gradients, by 65,536. scaler.step divides "
    "them again, but the clipping comes before it.",
    "scaler.unscale_(optimizer) after backward() and before clip_grad_norm_; scaler.step then "
    "does not divide a second time.",
)


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    watch, scales = Watch(linear(rank).float()), []
    x, y = (tensor.float() for tensor in rank_data(rank))

    def listen(_, inputs, out):
        if out.requires_grad:
            out.register_hook(lambda gradient: backward(gradient, out))

    def backward(gradient, out):
        scales.append(scale(gradient, out, y))
        overflow = len(scales) == OVERFLOW + 1 and rank == world_size - 1
        return gradient * torch.inf if overflow else gradient

    watch.model.register_forward_hook(listen)
    mine.train(watch.model, x, y, MAX_NORM, STEPS)
    found = watch.found()["steps"]
    return {"found": found, "wanted": wanted(found, world_size), "scales": scales}


def scale(gradient, out, y):
    """How many times the gradient of the loss it is."""
    return (gradient.norm() / (2 * (out.detach() - y) / len(y)).norm()).item()


def wanted(found, world_size):
    """What each step would add to the weights without a scaler: [(clipped, not clipped), ...]."""
    model, added = linear(0).float(), []
    x, y = (tensor.float() for tensor in together(map(rank_data, range(world_size))))
    for start in found[:-1]:
        model.load_state_dict({"weight": start[None, :-1], "bias": start[-1:]})
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        gradient = torch.cat([model.weight.grad[0], model.bias.grad])
        clipped = gradient * min(1.0, MAX_NORM / gradient.norm().item())
        added.append((-RATE * clipped, -RATE * gradient))
    return added


def judge(ranks):
    for number, rank in enumerate(ranks):
        if (calls := len(rank["found"]) - 1) != STEPS:
            return f"rank {number} was to take {STEPS} steps; it called the model {calls} times"
        if not rank["scales"] or min(rank["scales"]) < 2:
            return "the loss was not scaled before backward: in fp16 its small gradients would be 0"
        for step in range(STEPS):
            before, after = rank["found"][step : step + 2]
            clipped, whole = rank["wanted"][step]
            if step == OVERFLOW:
                if not torch.equal(before, after):
                    return (
                        f"in step {step} a gradient was infinite, as it may be in fp16: the scaler "
                        f"skips such a step; it has moved the weights of rank {number}"
                    )
                continue
            if not torch.allclose(after - before, clipped, rtol=1e-3, atol=1e-6):
                return (
                    f"step {step} moved the weights of rank {number} by "
                    f"{(after - before).norm():.2g}; without a scaler it would be "
                    f"{clipped.norm():.2g} (and {whole.norm():.2g} if nothing were clipped)"
                )
    return None

"""Output and gradients are those of batch_norm on the whole batch, for two collectives."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Collectives, digits

# the rows of each rank; is it float32, with a mean of 3,000?
CASES = (((4, 4, 4), False), ((5, 2, 9), False), ((1, 6, 2), False), ((4, 4, 4), True))
FEATURES = 3
LEARNT = "A sum over ranks has a backward pass of its own: the sum of the gradients over ranks."
HINTS = (
    "Which sums over all rows make mean and variance? Each rank can add up its own rows. In the "
    "backward pass: through what does x of one rank change the losses of the others?",
    "all_reduce one vector: sums, sums of squares (in float64: they may be large), number of rows. "
    "It needs a backward pass of its own: a torch.autograd.Function.",
    "The backward pass of a sum over ranks is the sum of the gradients over ranks: in `backward`, "
    "clone the gradient, all_reduce it, return it.",
)


def part(rank, rows, far):
    torch.manual_seed(rank)
    shape = rows[rank], FEATURES
    x = torch.randn(shape, dtype=torch.float64) + 2 * rank
    target = torch.rand(shape, dtype=torch.float64)
    return ((x + 3000).float(), target.float()) if far else (x, target)


def parameters():
    torch.manual_seed(5)
    made = torch.rand(2, FEATURES, dtype=torch.float64)
    return [parameter.requires_grad_() for parameter in made.clone().unbind()]


def observe(mine, rows, far):
    x, target = part(dist.get_rank(), rows, far)
    weight, bias = (parameter.detach().to(x.dtype).requires_grad_() for parameter in parameters())
    x.requires_grad_()
    calls = Collectives().calls
    y = mine.sync_batch_norm(x, weight, bias)
    if not torch.is_tensor(y) or y.shape != x.shape:
        return {"wrong": repr(y)[:200]}
    forward = len(calls)
    (y - target).pow(3).sum().backward()
    return {
        "output": y.detach(),
        "x.grad": x.grad,
        "weight.grad": weight.grad,
        "bias.grad": bias.grad,
        "forward": [name for name, _ in calls[:forward]],
        "backward": [name for name, _ in calls[forward:]],
    }


def whole(world_size, rows, far):
    """What one process gets."""
    parts = [part(rank, rows, far) for rank in range(world_size)]
    x = torch.cat([x for x, _ in parts]).double().requires_grad_()
    weight, bias = (parameter.detach().requires_grad_() for parameter in parameters())
    y = F.batch_norm(x, None, None, weight, bias, training=True)
    (y - torch.cat([target for _, target in parts])).pow(3).sum().backward()
    sizes = rows[:world_size]
    return {
        "output": y.detach().split(sizes),
        "x.grad": x.grad.split(sizes),
        "weight.grad": weight.grad,
        "bias.grad": bias.grad,
    }


def judge(ranks, rows, far):
    if wrong := judge_case(ranks, whole(len(ranks), rows, far)):
        kind = ", float32 with a mean of 3,000" if far else ""
        return f"parts of {rows[: len(ranks)]} rows{kind}: {wrong}"
    return None


def judge_case(seen, wanted):
    for number, values in enumerate(seen):
        if "wrong" in values:
            return f"a tensor of the shape of x is to be returned, not {values['wrong']}"
        for what in ("output", "x.grad"):
            if values[what] is None or off(values[what], wanted[what][number]):
                return (
                    f"{what} on rank {number} differs from that of the whole batch; it is "
                    f"{values[what] if values[what] is None else digits(values[what])}, not "
                    f"{digits(wanted[what][number])}"
                )
    for what in ("weight.grad", "bias.grad"):
        parts = [values[what] for values in seen if values[what] is not None]
        if len(parts) < len(seen) or off(sum(parts), wanted[what]):
            return (
                f"the ranks' parts of {what} add up to {digits(sum(parts, torch.zeros(())))}; the "
                f"whole batch gives {digits(wanted[what])}"
            )
    for when in ("forward", "backward"):
        if len(seen[0][when]) > 1:
            return f"in the {when} pass: {', '.join(seen[0][when])}; one collective is enough"
    return None


def off(found, wanted):
    rtol, atol = (1e-7, 1e-9) if found.dtype == torch.float64 else (0.01, 0.01)
    return not torch.allclose(found.double(), wanted, rtol=rtol, atol=atol)

"""Output and gradients are those of batch_norm on the whole batch, for two collectives."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.checks.common import Collectives, digits, together

# the rows of each rank; is it float32, with a mean of 3,000?
CASES = (((4, 4, 4), False), ((5, 2, 9), False), ((1, 6, 2), False), ((4, 4, 4), True))
FEATURES = 3
HINTS = (
    "Which sums over all rows make mean and variance? Each rank can add up its own rows. In the "
    "backward pass: through what does x of one rank change the losses of the others?",
    "all_reduce one vector: sums, sums of squares (in float64: they may be large), number of "
    "rows. A sum over ranks has a backward pass of its own, the sum of the gradients over ranks: "
    "it needs a torch.autograd.Function.",
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
    if not torch.is_tensor(y) or (y.shape, y.dtype) != (x.shape, x.dtype):
        return {"wrong": f"{y.dtype} of {list(y.shape)}" if torch.is_tensor(y) else repr(y)[:200]}
    forward = len(calls)
    (y - target).pow(3).sum().backward()
    found = gradients(x, weight, bias) | {"output": y.detach()}
    names = [name for name, _ in calls]
    return found | {"forward": names[:forward], "backward": names[forward:]}


def gradients(x, weight, bias):
    named = {"x.grad": x, "weight.grad": weight, "bias.grad": bias}
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in named.items()}


def whole(world_size, rows, far):
    """What one process gets."""
    parts = [part(rank, rows, far) for rank in range(world_size)]
    x, target = (tensor.double() for tensor in together(parts))
    weight, bias = parameters()
    y = F.batch_norm(x.requires_grad_(), None, None, weight, bias, training=True)
    (y - target).pow(3).sum().backward()
    return gradients(x, weight, bias) | {"output": y.detach()}


def judge(ranks, rows, far):
    if wrong := judge_case(ranks, whole(len(ranks), rows, far), rows[: len(ranks)]):
        kind = ", float32 with a mean of 3,000" if far else ""
        return f"parts of {rows[: len(ranks)]} rows{kind}: {wrong}"
    return None


def judge_case(ranks, whole, rows):
    for number, rank in enumerate(ranks):
        if "wrong" in rank:
            return f"a tensor of the shape and dtype of x is to be returned, not {rank['wrong']}"
        for what in ("output", "x.grad"):
            if off(rank[what], wanted := whole[what].split(rows)[number]):
                return (
                    f"{what} on rank {number} differs from that of the whole batch; it is "
                    f"{digits(rank[what])}, not {digits(wanted)}"
                )
    for what in ("weight.grad", "bias.grad"):
        if off(total := sum(rank[what] for rank in ranks), whole[what]):
            return (
                f"the ranks' parts of {what} add up to {digits(total)}; the whole batch gives "
                f"{digits(whole[what])}"
            )
    for when in ("forward", "backward"):
        if len(ranks[0][when]) > 1:
            return f"in the {when} pass: {', '.join(ranks[0][when])}; one collective is enough"
    return None


def off(found, wanted):
    rtol, atol = (1e-7, 1e-9) if found.dtype == torch.float64 else (0.01, 0.01)
    return not torch.allclose(found.double(), wanted, rtol=rtol, atol=atol)

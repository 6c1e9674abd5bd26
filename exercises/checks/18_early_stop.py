"""All ranks stop after the first epoch in which the mean loss of all is below the target."""

import torch

WORLD_SIZES = (2, 3)
TARGET, EPOCHS = 0.02, 100
LEARNT = "Ranks that leave a loop decide by one number that all of them have, never by their own."
HINTS = (
    "Which rank still waits, and in which collective? Which rank does not come?",
    "The condition looks at the loss of this rank; every rank has another one.",
    "All-reduce the loss, divide by the world size, and compare that on every rank.",
)


def data(rank):
    torch.manual_seed(rank)
    x = torch.rand(8, 1)
    return x, x * (1 + 0.2 * rank)


def observe(mine):
    import torch.distributed as dist

    torch.manual_seed(7)
    model = torch.nn.Linear(1, 1)
    losses = []
    model.register_forward_hook(lambda _, x, out: losses.append(out.detach()))
    x, y = data(dist.get_rank())
    took = mine.train(model, x, y, TARGET, EPOCHS)
    return {"took": took, "losses": [((out - y) ** 2).mean().item() for out in losses]}


def judge(ranks):
    took = [rank["took"] for rank in ranks]
    if any(not isinstance(epochs, int) for epochs in took):
        return f"train is to return the number of epochs; it returned {took[0]!r}"
    if len(set(took)) > 1:
        return f"the ranks stopped after different numbers of epochs: {took}"
    steps = [len(rank["losses"]) for rank in ranks]
    if steps != took:
        return f"train returned {took}, but the ranks made {steps} forward passes"
    means = [sum(losses) / len(losses) for losses in zip(*(rank["losses"] for rank in ranks))]
    below = [epoch for epoch, mean in enumerate(means, start=1) if mean < TARGET]
    if not below:
        return (
            f"all stopped after {took[0]} epochs, but the mean loss was {means[-1]:.3f} then, "
            f"not below {TARGET}"
        )
    if below[0] != took[0]:
        return f"all stopped after {took[0]} epochs; the loss was below {TARGET} after {below[0]}"
    return None

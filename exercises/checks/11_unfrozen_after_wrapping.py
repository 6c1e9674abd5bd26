"""In each epoch all ranks have the weights of one process that trains on the data of all."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from exercises.checks.common import digits, note_rows, note_weights, too_many_rows, weights

WORLD_SIZES = (2, 3)
EPOCHS = 5
HINTS = (
    "Print the gradients of two ranks after backward(), of the head and of the body, before and "
    "after the body is unfrozen.",
    "When it is made, DistributedDataParallel notes which parameters need gradients. Only these it "
    "averages, for ever.",
    "Wrap the model again, once the body is unfrozen; or wrap it before anything is frozen, and "
    "leave the body out of the optimizer's parameters at first.",
)


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double()
        self.head = nn.Linear(2, 1).double()

    def forward(self, x):
        return self.head(self.body(x))


def data(rank):
    torch.manual_seed(100 + rank)
    x = torch.rand(6, 2, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) * (1 + rank)


def alone(x, y, frozen):
    """The weights of one process before each epoch, and at the end."""
    model, found = Model(seed=0), []
    for epoch in range(EPOCHS):
        found.append(weights(model))
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        trained = model if epoch >= frozen else model.head
        for parameter in trained.parameters():
            parameter.data -= 0.1 * parameter.grad
    return [*found, weights(model)]


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everything = [torch.cat(parts) for parts in zip(*map(data, range(world_size)))]
    found = {}
    for frozen in (1, 3):
        model = Model(seed=rank)
        notes, rows = note_weights(model), note_rows(model)
        mine.finetune(model, *data(rank), frozen, EPOCHS)
        found[frozen] = [*notes, weights(model)], alone(*everything, frozen)
    return {"cases": found, "rows": rows}


def judge(ranks):
    for frozen, (_, wanted) in ranks[0]["cases"].items():
        all_found = [rank["cases"][frozen][0] for rank in ranks]
        for number, found in enumerate(all_found):
            if len(found) != EPOCHS + 1:
                return (
                    f"rank {number} was to take one step in each of {EPOCHS} epochs; it called "
                    f"the model {len(found) - 1} times"
                )
        for epoch in range(EPOCHS):
            before, after = all_found[0][epoch : epoch + 2]
            case = f"with frozen={frozen}, in epoch {epoch}"
            for name in wanted[0]:
                if name.startswith("body") and epoch < frozen and differ(before[name], after[name]):
                    return f"{case}: {name} changed; it was to stay as it was"
                if epoch >= frozen and not differ(before[name], after[name]):
                    return f"{case}: {name} did not change; it was to be trained"
            if seen := disagreement(all_found, wanted, epoch + 1):
                return f"{case}: {seen}"
    return too_many_rows(ranks, EPOCHS * 6)


def disagreement(all_found, wanted, epoch):
    """What differs after so many epochs between the ranks, or from one process."""
    for name in wanted[0]:
        first = all_found[0][epoch][name]
        for number in range(1, len(all_found)):
            if differ(first, other := all_found[number][epoch][name]):
                return (
                    f"{name} is [{digits(first)}] on rank 0 and [{digits(other)}] on rank {number} "
                    f"after it"
                )
        if differ(first, one := wanted[epoch][name]):
            return (
                f"{name} is [{digits(first)}] on all ranks after it; one process with the data of "
                f"all ranks has [{digits(one)}]"
            )
    return None


def differ(one, other):
    return not torch.allclose(one, other, rtol=1e-9, atol=1e-12)

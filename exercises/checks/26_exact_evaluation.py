"""Counts and mean loss are those of one process; no sample is computed twice; one all_reduce."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from exercises.checks.common import Collectives

WORLD_SIZES = (2, 3)
SIZES, BATCH = (10, 23, 1), 4
HINTS = (
    "Which sums, over all samples, make the accuracy and the mean loss? A rank can add up its own.",
    "Add up the right ones and the losses (not the means of batches) of this rank's samples, "
    "which are indices rank, rank + world_size, ...; then add up over the ranks, once.",
    "all_reduce one tensor [correct, sum of the losses] after the loop; divide by len(dataset).",
)


class Model(nn.Module):
    """Notes how many inputs it gets, and in which mode; gives other logits when it trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.dropout = nn.Linear(4, 3).double(), nn.Dropout(0.9)
        self.rows, self.trained, self.graph = [], False, False

    def forward(self, x):
        self.rows.append(len(x))
        self.trained |= self.training
        self.graph |= torch.is_grad_enabled()
        return 5 * self.dropout(self.linear(x))


def observe(mine):
    notes = Collectives()
    return {"sizes": [one_size(mine, size, notes) for size in SIZES]}


def one_size(mine, size, notes):
    torch.manual_seed(size)
    x, y = torch.rand(size, 4, dtype=torch.float64), torch.randint(3, (size,))
    model = Model().eval()
    logits = model(x).detach()
    wanted = ((logits.argmax(1) == y).sum().item(), F.cross_entropy(logits, y).item())
    model = Model().train(size != SIZES[1])
    model.linear.eval()  # frozen
    modes = [module.training for module in model.modules()]
    notes.calls.clear()
    returned = mine.evaluate(model, TensorDataset(x, y), BATCH)
    return {
        "returned": returned,
        "wanted": wanted,
        "rows": model.rows,
        "calls": [name for name, _ in notes.calls],
        "trained": model.trained,
        "graph": model.graph,
        "left": modes == [module.training for module in model.modules()],
    }


def judge(ranks):
    for case, size in enumerate(SIZES):
        seen = [rank["sizes"][case] for rank in ranks]
        wrong = judge_work(seen, size) or judge_result(seen, size) or judge_manners(seen)
        if wrong:
            return f"{size} sample{'s' * (size > 1)}: {wrong}"
    return None


def judge_work(seen, size):
    rows = [sum(rank["rows"]) for rank in seen]
    if sum(rows) != size:
        return f"the model was given {' + '.join(map(str, rows))} inputs, {sum(rows)} in all"
    if max(rows) > -(-size // len(seen)):
        return f"the ranks were given {rows} inputs; they could have divided them more evenly"
    if (most := max(max(rank["rows"], default=0) for rank in seen)) > BATCH:
        return f"the model was given {most} inputs at a time; batch_size was {BATCH}"
    return None


def judge_result(seen, size):
    for number, rank in enumerate(seen):
        try:
            correct, loss = (float(value) for value in rank["returned"])
        except (TypeError, ValueError):
            return f"evaluate is to return (correct, loss), not {rank['returned']!r}"
        wanted, mean = rank["wanted"]
        if correct != wanted:
            return f"rank {number} returned {correct:g} right, one process gets {wanted}"
        if abs(loss - mean) > 1e-6 * mean:
            return f"rank {number} returned a loss of {loss:.4f}, one process gets {mean:.4f}"
    return None


def judge_manners(seen):
    for number, rank in enumerate(seen):
        if rank["calls"] != ["all_reduce"]:
            return f"rank {number} called {', '.join(rank['calls'])}: one all_reduce is enough"
        if rank["trained"]:
            return f"on rank {number} the model was in training mode"
        if rank["graph"]:
            return f"on rank {number} autograd recorded the forward passes"
        if not rank["left"]:
            return f"on rank {number} a module was left in another mode than it was in before"
    return None

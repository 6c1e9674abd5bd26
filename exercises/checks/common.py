"""What the checks share: data, what a rank has seen, and how its steps differ from one process."""

import random
import re

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset


def numbered(count: int) -> TensorDataset:
    """A data set of (input, label) whose input i is [i, 1.0]: a model can see which one it gets."""
    numbers = torch.arange(count, dtype=torch.float32)
    return TensorDataset(torch.stack([numbers, torch.ones(count)], dim=1), torch.zeros(count, 1))


def rank_data(rank: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, 2) and y (rows, 1) of a rank, in float64; each rank's y has another slope."""
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.rand(rows, 2, dtype=torch.float64, generator=generator)
    return x, x.sum(1, keepdim=True) * (1 + rank)


def together(parts) -> list[torch.Tensor]:
    """[(x, y) of each rank] -> x and y of one process that has the data of all ranks."""
    return [torch.cat(same) for same in zip(*parts)]


def linear(seed: int, inputs: int = 2, outputs: int = 1) -> nn.Module:
    """A linear model in float64 whose weights are drawn from the seed."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).double()


def batchnorm_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def secret_seed() -> int:
    """A new number in each run, the same on all ranks: no answer can know the case beforehand."""
    seed = [random.SystemRandom().randrange(10**6)]
    dist.broadcast_object_list(seed, src=0)
    return seed[0]


# ---------------------------------------------------------------- what a rank has done


class Recorder(nn.Module):
    """A linear model that notes the inputs of each backward pass that trains it: `seen`."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen = []

    def forward(self, x):
        out = self.linear(x * 1e-3)
        if self.training and out.requires_grad:
            numbers = [int(number) for number in x[:, 0]]
            out.register_hook(lambda grad: self.seen.append(numbers) if grad.any() else None)
        return out


class Watch:
    """Notes the parameters of a model before each forward pass, and the rows it is given."""

    def __init__(self, model: nn.Module):
        self.model, self.steps, self.rows = model, [], 0
        model.register_forward_pre_hook(self.note)

    def note(self, model, inputs):
        self.steps.append(parameters(model))
        self.rows += len(inputs[0])

    def found(self) -> dict:
        return {"steps": [*self.steps, parameters(self.model)], "rows": self.rows}


def parameters(model: nn.Module) -> torch.Tensor:
    """A copy of the parameters: one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Collectives:
    """Notes every collective that Python code starts on this rank: `calls`, as (name, bytes).

    They are noted below torch.distributed's functions, in the methods of ProcessGroup, where all
    functions and `group.WORLD.allreduce` end: hence the names, such as allreduce. The bytes are
    those of the larger side, what is given or what is received. Those that DistributedDataParallel
    starts itself are not seen: they are started in C++.
    """

    METHODS = re.compile("_?(all|broadcast|reduce|gather|scatter|barrier|send|recv)")

    def __init__(self):
        self.calls = []
        torch.futures.wait_all = lambda futures: [future.wait() for future in futures]
        for name in filter(self.METHODS.match, dir(dist.ProcessGroup)):
            noting = self.noting(name.strip("_"), getattr(dist.ProcessGroup, name))
            setattr(dist.ProcessGroup, name, noting)

    def noting(self, name, original):
        def call(group, *args, **kwargs):
            size = max((nbytes(value) for value in (*args, *kwargs.values())), default=0)
            self.calls.append((name, size))
            return self.started(name, size, original(group, *args, **kwargs))

        return call

    def started(self, name, size, work):
        """What the caller gets: a place for who wants to know when it is waited for."""
        return work


class Waited:
    """The work or the future of a call; calls `told` when it has been waited for."""

    def __init__(self, work, told):
        self.work, self.told = work, told

    def __getattr__(self, name):
        def call(*args, **kwargs):
            result = getattr(self.work, name)(*args, **kwargs)
            if name in ("get_future", "then"):
                return Waited(result, self.told)
            if name in ("wait", "is_completed", "done") and result is not False:
                self.told()
            return result

        return call


POINT_TO_POINT = {"send", "recv", "recv_anysource"}  # isend, irecv, batch_isend_irecv: these, too


def nbytes(value) -> int:
    """Of a tensor, or of all tensors in lists of them."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    return value.nbytes if torch.is_tensor(value) else 0


# ---------------------------------------------------------------- what it is compared with


def alone(
    model, batches, loss=F.mse_loss, lr=0.1, optimizer=torch.optim.SGD, trained=None, max_norm=None
) -> list[torch.Tensor]:
    """The parameters of one process before its first step, and after each step.

    Args:
        trained: the part of the model that is trained, if it is not all of it.
    """
    optimizer = optimizer((trained or model).parameters(), lr=lr)
    found = [parameters(model)]
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        found.append(parameters(model))
    return found


def first_difference(
    found: list[dict], wanted: list, unit: str = "step", rows: int | None = None
) -> str | None:
    """Where the "steps" of a rank, as Watch notes them, leave those of one process: in words.

    If they do not: has a rank computed the others' data as well, so that it had more rows?
    """
    ranks = [rank["steps"] for rank in found]
    for number, steps in enumerate(ranks):
        if len(steps) != len(wanted):
            times = f"{len(steps) - 1} times, not {len(wanted) - 1}"
            return f"rank {number} called the model {times}"
    for step, right in enumerate(wanted):
        for number, steps in enumerate(ranks):
            if not close(steps[step], right):
                when = f"after {unit} {step}" if step else f"before the first {unit}"
                at = ~torch.isclose(steps[step], right, rtol=1e-6, atol=1e-8)
                few = digits(steps[step][at]) == digits(right[at])
                shown = [digits(r[step][at], 10 if few else 4) for r in [*ranks, wanted]]
                each = "; ".join(f"rank {n} has {one}" for n, one in enumerate(shown[:-1]))
                return (
                    f"the weights {when}, where they differ: {each}. One process with the data of "
                    f"all ranks has {shown[-1]}{how_far(number, steps, wanted, step)}"
                )
    for number, rank in enumerate(found):
        if rows is not None and rank["rows"] > rows:
            return (
                f"the result is right, but the model of rank {number} was given {rank['rows']} "
                f"rows in all; with its own data alone they are {rows}"
            )
    return None


def how_far(number: int, steps: list, wanted: list, step: int) -> str:
    """If a step went the right way, but not as far: how far it went."""
    if step == 0:
        return ""
    change, right = steps[step] - steps[step - 1], wanted[step] - wanted[step - 1]
    factor = (change @ right / (right @ right)).item() if right.any() else 1.0
    if not close(change, factor * right):
        return ""
    return f": rank {number} moved {factor:.2f} times as far"


def close(one, other) -> bool:
    """Equal up to rounding; a count may have been float32."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------- words


def some(values, most: int = 6) -> str:
    """The first of some values, as text: '3, 17, 4, ...'."""
    values = list(values)
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")


def digits(tensor, count: int = 4) -> str:
    """The first numbers of a tensor, as text: '[0.1234, -1.5]'."""
    return f"[{some([f'{number:.{count}g}' for number in tensor.flatten().tolist()], 4)}]"

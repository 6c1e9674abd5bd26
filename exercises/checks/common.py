"""What the checks share: data, and what a rank has done with it."""

import re
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises.checks import ranks
from exercises.checks.judge import MOST

ROWS = f"the rows given to the model of each rank{MOST}"


def numbered(count: int) -> TensorDataset:
    """A data set of (input, label) whose input i is [i, 1.0]: a model can see which one it gets."""
    numbers = torch.arange(count, dtype=torch.float32)
    return TensorDataset(torch.stack([numbers, torch.ones(count)], dim=1), torch.zeros(count, 1))


def rank_data(rank: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, 2) and y (rows, 1) of a rank, in float64; each rank's y has another slope."""
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.rand(rows, 2, dtype=torch.float64, generator=generator)
    return x, x.sum(1, keepdim=True) * (1 + rank)


def linear(seed: int, inputs: int = 2, outputs: int = 1) -> nn.Module:
    """A linear model in float64 whose weights are drawn from the seed."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).double()


def batchnorm_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def secret(*case) -> torch.Generator:
    """Draws other numbers in each run, the same for both files: no answer can know them."""
    return torch.Generator().manual_seed(hash((ranks.SEED, *case)) % 2**63)


# ---------------------------------------------------------------- what a rank has done


class Recorder(nn.Module):
    """A linear model that notes its inputs and its weights in each backward pass that trains it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen, self.weights = [], []

    def forward(self, x):
        out = self.linear(x * 1e-3)
        if self.training and out.requires_grad:
            numbers = [int(number) for number in x[:, 0]]
            out.register_hook(lambda grad: self.note(numbers) if grad.any() else None)
        return out

    def note(self, numbers):
        self.seen.append(numbers)
        self.weights.append(parameters(self))


class Watch:
    """Notes the parameters of a model before each forward pass, and the rows it is given."""

    def __init__(self, model: nn.Module):
        self.model, self.states, self.rows = model, [], 0
        model.register_forward_pre_hook(self.note)

    def note(self, model, inputs):
        self.states.append(parameters(model))
        self.rows += len(inputs[0]) if inputs else 0

    def facts(self) -> dict:
        """What each step has added to the weights. A pass without a step after it is no step."""
        states = [*self.states, parameters(self.model)]
        steps = [b - a for a, b in pairwise(states) if not torch.equal(a, b)]
        found = {"the weights before the first step": states[0]}
        found |= {f"what step {n} adds to the weights": step for n, step in enumerate(steps, 1)}
        return found | {"the number of steps": len(steps)}


def parameters(model: nn.Module) -> torch.Tensor:
    """A copy of the parameters: one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Collectives:
    """Notes every collective that Python code starts on this rank: `calls`, as (name, bytes).

    They are noted in the methods of ProcessGroup, which all functions of torch.distributed call:
    hence the names, such as allreduce. The bytes are those that are given or received, whichever
    are more. Those that DistributedDataParallel starts itself, in C++, are not seen.
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
    """The work or the future of a call; calls `when_done` after it has been waited for."""

    def __init__(self, work, when_done):
        self.work, self.when_done = work, when_done

    def __getattr__(self, name):
        def call(*args, **kwargs):
            result = getattr(self.work, name)(*args, **kwargs)
            if name in ("get_future", "then"):
                return Waited(result, self.when_done)
            if name in ("wait", "is_completed", "done") and result is not False:
                self.when_done()
            return result

        return call


def nbytes(value) -> int:
    """Of a tensor, or of all tensors in lists of them."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    return value.nbytes if torch.is_tensor(value) else 0


def close(one, other) -> bool:
    """Equal up to rounding; a count may have been float32."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-8)

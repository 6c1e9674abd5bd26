"""What the checks share: data, and what a rank has done with it."""

import re
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises import ranks
from exercises.verdict import MOST

ROWS = f"the rows given to the model of each rank{MOST}"


def numbered(count: int) -> TensorDataset:
    """A data set of (input, label) whose input i is [i, 1.0]: a model can see which one it gets."""
    numbers = torch.arange(count, dtype=torch.float32)
    inputs = torch.stack([numbers, torch.ones(count)], dim=1)
    labels = torch.zeros(count, 1)
    return TensorDataset(inputs, labels)


def rank_data(rank: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x (6, 2) and y (6, 1) of a rank, in float64; each rank's y has another slope.

    With a large scale, the norm of a gradient is above 1. Otherwise nobody would see a
    clip_grad_norm_ that the exercise does not ask for.
    """
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.rand(6, 2, dtype=torch.float64, generator=generator)
    y = x.sum(1, keepdim=True) * (1 + rank) * scale
    return x, y


def linear(seed: int, inputs: int = 2, outputs: int = 1) -> nn.Module:
    """A linear model in float64 whose weights are drawn from the seed."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).double()


def batchnorm_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def secret(*case) -> torch.Generator:
    """Draws other numbers in each run, the same for both files: no answer can know them."""
    seed = hash((ranks.SEED, *case)) % 2**63
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- what a rank has done


class Recorder(nn.Module):
    """A linear model that notes its inputs and its weights in each backward pass that trains it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen = []
        self.weights = []

    def forward(self, x):
        out = self.linear(x * 1e-3)
        if self.training and out.requires_grad:
            numbers = [int(number) for number in x[:, 0]]

            def note(gradient):
                if gradient.any():
                    self.seen.append(numbers)
                    self.weights.append(parameters(self))

            out.register_hook(note)
        return out


class Watch:
    """Notes the parameters of a model before each forward pass, and the rows it is given."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.states = []
        self.rows = 0
        model.register_forward_pre_hook(self.note)

    def note(self, model, inputs):
        self.states.append(parameters(model))
        if inputs:
            self.rows += len(inputs[0])

    def facts(self) -> dict:
        """What each step has added to the weights. A pass without a step after it is no step."""
        states = [*self.states, parameters(self.model)]
        found = {"the weights before the first step": states[0]}
        count = 0
        for before, after in pairwise(states):
            if not torch.equal(before, after):
                count += 1
                found[f"what step {count} adds to the weights"] = after - before
        found["the number of steps"] = count
        return found


def parameters(model: nn.Module) -> torch.Tensor:
    """A copy of the parameters: one vector."""
    parts = [parameter.detach().flatten() for parameter in model.parameters()]
    return torch.cat(parts)


# ---------------------------------------------------------------- which collectives it starts


class Collectives:
    """Notes every collective that Python code starts on this rank: `calls`, as (name, bytes).

    They are noted in the methods of ProcessGroup, which all functions of torch.distributed call:
    hence the names, such as allreduce. The bytes are those that are given or received, whichever
    are more. Those that DistributedDataParallel starts itself, in C++, are not seen.
    """

    METHODS = re.compile("_?(all|broadcast|reduce|gather|scatter|barrier|send|recv)")

    def __init__(self):
        self.calls = []

    def listen(self):
        """From now on, every call on this rank is noted."""
        for name in dir(dist.ProcessGroup):
            if self.METHODS.match(name):
                original = getattr(dist.ProcessGroup, name)
                setattr(dist.ProcessGroup, name, self.noting(name.strip("_"), original))
        return self

    def noting(self, name, original):
        def call(group, *args, **kwargs):
            given = [*args, *kwargs.values()]
            size = max(map(nbytes, given), default=0)
            self.calls.append((name, size))
            work = original(group, *args, **kwargs)
            return self.started(name, size, work, given)

        return call

    def started(self, name, size, work, given):
        """What the caller gets: a place for who wants to know when it is waited for."""
        return work


class Waited:
    """The work or the future of a call; calls `when_done` after it has been waited for.

    Until then it holds the tensors of the call, as the library that sends them does.
    """

    SAME_CALL = ("get_future", "then")
    WAITS = ("wait", "is_completed", "done")

    def __init__(self, work, when_done, tensors=()):
        self.work = work
        self.when_done = when_done
        self.tensors = tensors

    def __getattr__(self, name):
        def call(*args, **kwargs):
            result = getattr(self.work, name)(*args, **kwargs)
            if name in self.SAME_CALL:
                return Waited(result, self.over)
            if name in self.WAITS and result is not False:
                self.over()
            return result

        return call

    def over(self):
        self.tensors = ()
        self.when_done()


real_collect_all = torch.futures.collect_all


def wait_all(futures):
    """Stands in for torch.futures.wait_all, which cannot wait for a Waited."""
    return [future.wait() for future in futures]


def collect_all(futures):
    """Stands in for torch.futures.collect_all: one future for all of them."""
    futures = list(futures)
    inner = [future.work if isinstance(future, Waited) else future for future in futures]

    def when_done():
        for future in futures:
            if isinstance(future, Waited):
                future.over()

    return Waited(real_collect_all(inner), when_done)


def let_futures_be_waited_for():
    """From now on, the functions of torch.futures accept what `Collectives.started` returns."""
    torch.futures.wait_all = wait_all
    torch.futures.collect_all = collect_all


def nbytes(value) -> int:
    """Of a tensor, or of all tensors in lists of them."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    return value.nbytes if torch.is_tensor(value) else 0


def close(one, other) -> bool:
    """Equal up to rounding; a count may have been float32."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-8)

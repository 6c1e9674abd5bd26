"""What the checks share: data and models that show what a rank has seen."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import TensorDataset


def numbered(count: int) -> TensorDataset:
    """A data set of (input, label) whose input i is [i, 1.0]: a model can see which one it gets."""
    numbers = torch.arange(count, dtype=torch.float32)
    return TensorDataset(torch.stack([numbers, torch.ones(count)], dim=1), torch.zeros(count, 1))


class Recorder(nn.Module):
    """A linear model that notes the numbers of the inputs of each backward pass: `seen`."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen = []

    def forward(self, x):
        out = self.linear(x * 1e-3)
        if self.training and out.requires_grad:
            numbers = [int(number) for number in x[:, 0]]
            out.register_hook(lambda _: self.seen.append(numbers))
        return out


def some(numbers, most: int = 6) -> str:
    """The first of some numbers, as text: '3, 17, 4, ...'."""
    numbers = list(numbers)
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


def number(value):
    """A float if the value is a number or a tensor of one; otherwise its text."""
    if torch.is_tensor(value) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else repr(value)


class Collectives:
    """Notes every collective that Python code starts on this rank: `calls`, as (name, bytes).

    Those that DistributedDataParallel starts itself are not seen: they are started in C++.
    """

    NAMES = "all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter gather "
    NAMES += "reduce_scatter_tensor scatter barrier send recv isend irecv broadcast_object_list "
    NAMES += "all_gather_object batch_isend_irecv all_to_all_single"

    def __init__(self):
        self.calls = []
        for name in self.NAMES.split():
            original = getattr(dist, name)
            noting = self.noting(name, original)
            setattr(dist, name, noting)
            for module in list(sys.modules.values()):  # from torch.distributed import all_reduce
                if not module.__name__.startswith("torch") and vars(module).get(name) is original:
                    setattr(module, name, noting)

    def noting(self, name, original):
        def call(*args, **kwargs):
            tensors = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value)]
            self.calls.append((name, sum(t.numel() * t.element_size() for t in tensors[-1:])))
            return original(*args, **kwargs)

        return call


def weights(model: nn.Module) -> dict:
    """A copy of the parameters: {name: tensor}."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def note_weights(model: nn.Module) -> list:
    """A list that gets a copy of the parameters before each forward pass of the model."""
    notes = []
    model.register_forward_pre_hook(lambda *_: notes.append(weights(model)))
    return notes


def parameters(model: nn.Module) -> torch.Tensor:
    """A copy of the parameters: one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def note_rows(model: nn.Module) -> list:
    """A list that gets the number of rows of each batch that the model is given."""
    rows = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return rows


def too_many_rows(ranks: list, most: int) -> str | None:
    """Has a rank computed the others' data as well? Its "rows" are what note_rows has noted."""
    for number, rank in enumerate(ranks):
        if (given := sum(rank["rows"])) > most:
            return (
                f"the result is right, but the model of rank {number} was given {given} rows in "
                f"all; with its own data alone they are {most}"
            )
    return None


def digits(tensor) -> str:
    """The numbers of a small tensor, as text: '0.1234, -1.5'."""
    return ", ".join(f"{number:.4g}" for number in tensor.flatten().tolist())

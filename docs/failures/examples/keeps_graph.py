"""What keeps the activations of earlier steps alive: a loss or an output that still has its graph.

python docs/failures/examples/keeps_graph.py
"""

import contextlib
import weakref

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

STEPS = 10
LIVE = weakref.WeakSet()


class Kept:
    """One tensor that a graph keeps for its backward pass. It lives as long as the graph does."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()  # With its graph, the tensor would keep itself alive.
        LIVE.add(self)


def megabytes(model):
    """Return how many MB all graphs keep now, without the weights of the model."""
    storages = {}
    for kept in LIVE:
        storage = kept.tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()  # A tensor of two graphs counts once.
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values()) / 1e6


def loop(forward, backward, keep):
    """Take ten steps -> the megabytes that are still kept after the last step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 10))
    total_loss = 0.0
    outputs = []
    for _ in range(STEPS):
        x = torch.rand(128, 1, 28, 28)
        y = torch.randint(10, (128,))
        with forward():
            output = model(x)
            loss = cross_entropy(output, y)
        if backward:
            loss.backward()
            model.zero_grad()
        if keep == "loss":
            total_loss += loss
        elif keep == "number":
            total_loss += loss.item()
        elif keep == "output":
            outputs.append(output)
        elif keep == "detached output":
            outputs.append(output.detach())
    del output, loss  # The graph of the last step is not a leak.
    return megabytes(model)


def main():
    graph = contextlib.nullcontext
    cases = [
        ("training: total_loss += loss.item()", graph, True, "number"),
        ("training: total_loss += loss, after backward", graph, True, "loss"),
        ("evaluation: total_loss += loss.item()", graph, False, "number"),
        ("evaluation: total_loss += loss", graph, False, "loss"),
        ("evaluation: outputs.append(output)", graph, False, "output"),
        ("evaluation: outputs.append(output.detach())", graph, False, "detached output"),
        ("evaluation: total_loss += loss, under no_grad", torch.no_grad, False, "loss"),
    ]
    print("activations that are kept after ten steps, MB")
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        for name, forward, backward, keep in cases:
            print(f"{name:<46} {loop(forward, backward, keep):6.1f}")


if __name__ == "__main__":
    main()

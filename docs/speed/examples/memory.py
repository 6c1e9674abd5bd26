"""What one device holds to train the ConvNet of the stages: bytes per parameter, and activations.

python docs/speed/examples/memory.py
"""

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def convnet():
    """As in the stages: 29,034 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip


def held(dtype):
    """Yield the bytes of parameters, gradients and Adam's state (without its step counters)."""
    model = convnet().to(dtype)
    adam = torch.optim.Adam(model.parameters())
    cross_entropy(model(torch.rand(8, 1, 28, 28, dtype=dtype)), torch.zeros(8).long()).backward()
    adam.step()
    parameters = list(model.parameters())
    state = [adam.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq")]
    for tensors in (parameters, [p.grad for p in parameters], state):
        yield sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def activations(images, autocast=False, checkpoints=False):
    """Bytes that the forward pass keeps for the backward pass."""
    model = convnet()
    kept = {}
    x = torch.rand(images, 1, 28, 28)
    y = torch.zeros(images).long()

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for block in (model[:4], model[4:8]):
                # A checkpoint keeps only its input. Backward computes the block once more.
                x = checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)
            x = model[8:](x)
        cross_entropy(x, y)
    for tensor in [*model.parameters(), *model.buffers()]:  # The device holds these anyway.
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def main():
    number = sum(parameter.numel() for parameter in convnet().parameters())
    print("bytes per parameter  parameter  gradient  Adam's state   sum")
    for name, dtype in (("all in fp32", torch.float32), ("all in bf16", torch.bfloat16)):
        one, gradient, state = (size / number for size in held(dtype))
        print(f"{name:19}{one:11.0f}{gradient:10.0f}{state:14.0f}{one + gradient + state:6.0f}")
    own = sum(held(torch.float32))
    print("ConvNet, MB   parameters, gradients, state  activations  autocast  checkpoints")
    for images in (1, 120, 240):
        ways = {}, {"autocast": True}, {"checkpoints": True}
        plain, autocast, checkpoints = (activations(images, **way) / 1e6 for way in ways)
        row = f"{own / 1e6:27.2f}{plain:13.2f}{autocast:10.2f}{checkpoints:13.2f}"
        print(f"batch of {images:<6}{row}")


if __name__ == "__main__":
    main()

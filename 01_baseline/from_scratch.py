"""Stage 1 from scratch: why a batch can be split, and the three ways to get it wrong.

The loss of a batch is the mean of the losses of its images, and taking gradients is linear. So the
gradient of the batch is the mean of the gradients of its images. If each of K devices takes a K-th
of the images, the average of the K gradients is the gradient that one device finds for the whole
batch. All data parallelism rests on this.

    python 01_baseline/from_scratch.py
"""

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def gradient(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """The gradient of the cross-entropy of one batch, all parameters in one vector [P].

    x: images [B, 1, 28, 28]; y: labels [B]; reduction: over the images, "mean" or "sum".
    """
    loss = F.cross_entropy(model(x), y, reduction=reduction)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def shard_gradients(
    model: nn.Module, x: Tensor, y: Tensor, sizes: list[int], reduction: str = "mean"
) -> Tensor:
    """Split a batch among K devices -> the gradient that each device finds for its shard, [K, P].

    sizes: images in each of the K shards. Raises ValueError if they do not add up to the batch.
    """
    if min(sizes, default=0) < 1 or sum(sizes) != len(x):
        raise ValueError(f"shards of {sizes} images do not make a batch of {len(x)}")
    shards = zip(x.split(sizes), y.split(sizes))
    return torch.stack([gradient(model, *shard, reduction) for shard in shards])


# ---------------------------------------------------------------- the proof


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # 16 digits: rounding cannot be taken for a mistake
    x = torch.rand(12, 1, 28, 28)
    y = torch.randint(10, (12,))
    model = small_net(nn.Identity())
    whole = gradient(model, x, y)
    print("A batch of 12 images, a net with", len(whole), "parameters, float64.")
    print("Each line compares a gradient that is made from shards with that of the whole batch.")
    print("The number is the largest difference, relative to the largest number.\n")

    equal = shard_gradients(model, x, y, [3] * 4)
    far = distance(equal.mean(0), whole)
    claim(far < 1e-12, f"4 shards of 3 images, averaged: right, up to {far:.0e}")

    print("\nFirst way to get it wrong: shards of unequal size.")
    sizes = [6, 3, 2, 1]
    unequal = shard_gradients(model, x, y, sizes)
    far = distance(unequal.mean(0), whole)
    text = f"shards of 6, 3, 2 and 1 images, averaged: wrong by {far:.2f}"
    claim(far > 0.01, f"{text}, because every shard counts the same")
    weights = torch.tensor(sizes) / len(x)
    far = distance(weights @ unequal, whole)
    claim(far < 1e-12, f"the same with weights 6/12, 3/12, 2/12, 1/12: right, up to {far:.0e}")

    print("\nSecond way: a loss that is summed over the images instead of averaged.")
    summed = shard_gradients(model, x, y, [3] * 4, "sum")
    whole_sum = gradient(model, x, y, "sum")
    far = distance(summed.mean(0), whole_sum)
    text = f"4 shards, averaged: wrong by {far:.2f}, because the result is a quarter of it"
    claim(abs(far - 3 / 4) < 1e-12, text)
    far = distance(summed.sum(0), whole_sum)
    claim(far < 1e-12, f"4 shards, added up: right, up to {far:.0e}")

    print("\nThird way: BatchNorm, which lets an image's output depend on the rest of its batch.")
    normed = small_net(nn.BatchNorm2d(4))
    far = distance(shard_gradients(normed, x, y, [3] * 4).mean(0), gradient(normed, x, y))
    claim(far > 0.01, f"4 shards, each normalized by its own statistics: wrong by {far:.2f}")
    normed.eval()
    far = distance(shard_gradients(normed, x, y, [3] * 4).mean(0), gradient(normed, x, y))
    claim(far < 1e-12, f"the same with fixed statistics (eval mode): right, up to {far:.0e}")


def small_net(norm: nn.Module) -> nn.Module:
    """Convolution with 4 channels, `norm`, linear layer: [B, 1, 28, 28] -> [B, 10]."""
    convolution = nn.Conv2d(1, 4, kernel_size=5, stride=2)
    return nn.Sequential(convolution, norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12 * 12, 10))


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference between two vectors, relative to the largest number in the second."""
    return ((a - b).abs().max() / b.abs().max()).item()


def claim(held: bool, text: str) -> None:
    """Print what was found; if it is not what this script claims, end with exit code 1."""
    print("ok    " if held else "FAILED", text)
    if not held:
        sys.exit(1)


if __name__ == "__main__":
    main()

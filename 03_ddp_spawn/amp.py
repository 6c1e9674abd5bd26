"""Mixed precision in numbers: what 16 bits lose, what the scaler saves, and in which order to clip.

fp16 has 11 bits for the digits and only 5 for the exponent, so a number of at most 3e-8 becomes 0.
For this reason the loss is multiplied before backward (scale), and the gradients are divided after
backward (unscale). bf16 has the range of fp32, with only 8 bits for the digits, and needs no scale.

    python 03_ddp_spawn/amp.py
"""

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

SCALE = 2.0**16  # what GradScaler begins with


def losses(dtype: torch.dtype | None, steps: int = 10) -> tuple[list[float], float]:
    """Train the ConvNet with autocast to a type, or without -> the losses, and the last scale.

    The step is that of stage 3: a GradScaler, which does nothing unless the type is fp16.
    """
    from train import make_model

    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    x, y = torch.rand(16, 1, 28, 28), torch.randint(10, (16,))
    found = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # divides the gradients; skips the step if one of them is infinite
        scaler.update()
        found.append(loss.item())
    return found, scaler.get_scale()


def lost_in_fp16(gradients: Tensor, scale: float = 1) -> float:
    """The share of the numbers other than 0 that become 0 in fp16, after they were multiplied."""
    lost = (gradients != 0) & ((gradients * scale).half() == 0)
    return (lost.sum() / (gradients != 0).sum()).item()


def clipped_norm(unscale_first: bool, limit: float = 1.0) -> float:
    """The norm of the gradients that the optimizer gets, if they are clipped to a limit."""
    torch.manual_seed(0)
    model = nn.Linear(28 * 28, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    loss = 10 * F.cross_entropy(model(torch.rand(16, 28 * 28)), torch.randint(10, (16,)))
    scaler.scale(loss).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)  # divides by the scale, unless unscale_ has done so
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    torch.set_num_threads(1)
    print("The ConvNet, 10 steps on one batch of 16 random images. Loss in the first and the last:")
    fp32, _ = losses(None)
    print(f"       float32   {fp32[0]:.4f} {fp32[-1]:.4f}")
    for dtype, limit in ((torch.float16, 0.005), (torch.bfloat16, 0.05)):
        found, scale = losses(dtype)
        far = max(abs(a - b) for a, b in zip(found, fp32))
        text = f"{str(dtype)[6:]:9} {found[0]:.4f} {found[-1]:.4f}, at most {far:.4f} from float32"
        claim(all(map(torch.isfinite, map(torch.tensor, found))) and far < limit, text)
        if dtype == torch.float16:
            claim(scale > 1, f"          the scaler multiplied the loss by {scale:,.0f}")

    print("\nA million gradients between 1e-10 and 1e-3, in fp16:")
    torch.manual_seed(0)
    gradients = 10 ** (-10 + 7 * torch.rand(1_000_000, dtype=torch.float64))
    without, scaled = lost_in_fp16(gradients), lost_in_fp16(gradients, SCALE)
    claim(without > 0.3, f"{without:.0%} become 0")
    claim(scaled < 0.001, f"{scaled:.0%} become 0 if they are first multiplied by {SCALE:,.0f}")
    claim((gradients.bfloat16() != 0).all().item(), "0% become 0 in bf16, without any scaling")

    print("\nThe gradients of a scaled loss are clipped to a norm of 1. The norm at the optimizer:")
    right, wrong = clipped_norm(unscale_first=True), clipped_norm(unscale_first=False)
    claim(abs(right - 1) < 1e-3, f"scale, backward, unscale, clip, step: {right:.3f}")
    text = f"scale, backward, clip, step:          {wrong:.2e}; step divides what was clipped"
    claim(abs(wrong * SCALE - 1) < 1e-3, text)


def claim(held: bool, text: str) -> None:
    """Print what was found; if it is not what this script claims, end with exit code 1."""
    print("ok    " if held else "FAILED", text)
    if not held:
        sys.exit(1)


if __name__ == "__main__":
    main()

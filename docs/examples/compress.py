"""DDP's hooks that all-reduce gradients in 16 bits: how many bytes they save, and what they lose.

torchrun --standalone --nproc-per-node 2 docs/examples/compress.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

HOOKS = {
    "no hook": default_hooks.allreduce_hook,  # does what DDP does without a hook
    "fp16_compress_hook": default_hooks.fp16_compress_hook,
    "bf16_compress_hook": default_hooks.bf16_compress_hook,
}
all_reduce = dist.all_reduce
reduced = []  # the tensors that the hooks have given to all_reduce


def noting_all_reduce(tensor, *args, **kwargs):
    reduced.append(tensor)
    return all_reduce(tensor, *args, **kwargs)


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")  # on CPUs, even if there are GPUs: what is counted is the same
    dist.all_reduce = noting_all_reduce  # the hooks call dist.all_reduce
    torch.manual_seed(dist.get_rank())
    x, y = torch.randn(64, 100), torch.randint(10, (64,))
    report = print if dist.get_rank() == 0 else lambda line: None

    report("hook                loss times    reduced    bytes  median error  became 0  infinite")
    for hook in HOOKS:
        for factor in (1, 1e-5, 1e7):
            report(f"{hook:18}{factor:12.0e}  {one_step(x, y, hook, factor)}")
    report("\nin bf16             the gradient  reduced    bytes")
    for name, autocast, dtype in (
        ("autocast", True, torch.float32),
        ("autocast and hook", True, torch.float32),
        ("model.bfloat16()", False, torch.bfloat16),
    ):
        hook = "bf16_compress_hook" if "hook" in name else "no hook"
        gradients, _ = average(x.to(dtype), y, hook, 1, autocast, dtype)
        report(f"{name:20}{str(gradients.dtype)[6:]:>12}  {sent()}")


def one_step(x, y, hook, factor):
    """Gradients averaged with a hook, compared with their average in float64 -> a line."""
    gradients, local = average(x, y, hook, factor)
    what = sent()
    exact = local.double()
    all_reduce(exact)
    exact /= dist.get_world_size()
    finite, counted = gradients.isfinite(), exact != 0
    error = ((gradients - exact).abs() / exact.abs())[finite & counted].median()
    became_0 = ((gradients == 0) & counted).sum() / counted.sum()
    infinite = 1 - finite.double().mean()
    return f"{what}{error:14.0e}{became_0:10.0%}{infinite:10.0%}"


def average(x, y, hook, factor, autocast=False, dtype=torch.float32):
    """One backward pass -> the gradients that DDP has averaged, and this rank's own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10)).to(dtype)
    ddp_model = DistributedDataParallel(model)
    ddp_model.register_comm_hook(None, HOOKS[hook])
    reduced.clear()
    found = []
    for module in (ddp_model, model):  # the wrapper averages, the bare model does not
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(module(x), y) * factor
        loss.backward()
        found.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    return found


def sent():
    bytes_sent = sum(tensor.nbytes for tensor in reduced)
    return f"{str(reduced[0].dtype)[6:]:>9}{bytes_sent:9,}"


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

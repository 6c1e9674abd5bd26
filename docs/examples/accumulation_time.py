"""Gradient accumulation under DDP: the time of an optimizer step with and without no_sync.

torchrun --standalone --nproc-per-node 2 docs/examples/accumulation_time.py
"""

import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ROUNDS, SAMPLES = 10, 16  # SAMPLES: in one micro-batch of one rank


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024)).to(device)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(SAMPLES, 1024, device=device)
    if dist.get_rank() == 0:
        mib = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
        print(f"{mib:.0f} MiB of gradients, {SAMPLES} samples per micro-batch and rank")
        print(f"ms per optimizer step, min to max of {ROUNDS}")
        print(f"micro-batches {'with no_sync':>20} {'without no_sync':>20}")
    for number in (1, 2, 4, 8):
        step(ddp_model, optimizer, x, number, no_sync=False)  # the first one fills caches
        seconds = {True: [], False: []}
        for _ in range(ROUNDS):
            for no_sync in seconds:  # in turns: both meet the same noise
                started = time.perf_counter()
                step(ddp_model, optimizer, x, number, no_sync)
                seconds[no_sync].append(time.perf_counter() - started)
        cells = [f"{1000 * min(own):.1f} to {1000 * max(own):.1f}" for own in seconds.values()]
        if dist.get_rank() == 0:
            print(f"{number:13} {cells[0]:>20} {cells[1]:>20}")


def step(ddp_model, optimizer, x, number, no_sync):
    """One optimizer step of so many micro-batches."""
    optimizer.zero_grad()
    for i in range(number):
        with ddp_model.no_sync() if no_sync and i < number - 1 else nullcontext():
            (F.mse_loss(ddp_model(x), x) / number).backward()
    optimizer.step()
    next(ddp_model.parameters())[0, 0].item()  # waits until a GPU has computed it


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # when DDP has gone with the function that holds it

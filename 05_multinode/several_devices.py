r"""DistributedDataParallel around a model that is too large for one device.

In all other scripts a process owns one device, and has the whole model on this device. Here a
process owns all devices of its machine. The first block of the model is on the first device, the
rest is on the last device, and the activations are copied between them. DDP wraps the model without
device_ids, and averages the gradients over the machines. While one GPU computes, the other one
waits. So this saves memory, and no time.

Run this command on each of two nodes. To try it on one machine, run it in two terminals:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint 127.0.0.1:29500 05_multinode/several_devices.py

Without a GPU both devices are the CPU. With one GPU both devices are this GPU.
"""

import argparse
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

BATCH = 24  # images over all processes
EXACT = torch.float64  # in it a sum in another order differs by 1e-16, and an error by far more


class SpreadModel(nn.Module):
    """The network of minimal.py over two devices: [B, 1, 28, 28] on any -> [B, 10] on the last.

    It has no BatchNorm, because half a batch has other statistics than a whole one.
    """

    def __init__(self, first: torch.device, last: torch.device):
        super().__init__()
        self.first = first
        self.last = last
        self.first_block = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        self.rest = nn.Sequential(
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(7 * 7 * 32, 10),
        )  # fmt: skip
        self.first_block.to(first, EXACT)
        self.rest.to(last, EXACT)

    def forward(self, x):
        x = self.first_block(x.to(self.first))
        return self.rest(x.to(self.last))  # Autograd brings the gradient back the same way.


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, as --help shows")
    if os.environ["LOCAL_WORLD_SIZE"] != "1":
        parser.error("one process has all devices of its machine: --nproc-per-node 1")
    first = last = torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus > 0:
        first = torch.device("cuda", 0)
        last = torch.device("cuda", gpus - 1)
    # gloo also connects two processes that share a GPU. NCCL does not, but it is faster.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    compare(first, last)
    dist.destroy_process_group()  # This comes last, because DDP uses the group in compare.


def compare(first: torch.device, last: torch.device) -> None:
    """Every process with its shard of a batch, and one process with all of it."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    if rank == 0:
        devices = f"the first block on {first}, the rest on {last}"
        print(f"{world_size} processes, {devices}, {dist.get_backend()}", flush=True)
    torch.manual_seed(0)
    alone = SpreadModel(first, last)
    torch.manual_seed(rank)  # other weights on every rank: DDP sends those of rank 0 to all
    model = SpreadModel(first, last)
    ddp_model = DistributedDataParallel(model)  # no device_ids: the model knows its devices
    torch.manual_seed(2)
    x = torch.rand(BATCH, 1, 28, 28, dtype=EXACT)
    y = torch.randint(10, (BATCH,))
    F.cross_entropy(alone(x), y.to(last)).backward()
    F.cross_entropy(ddp_model(x[rank::world_size]), y[rank::world_size].to(last)).backward()
    ours = gradients(model)
    theirs = gradients(alone)
    off = (ours - theirs).abs().max()
    largest = theirs.abs().max()
    right = off < 1e-12 < largest
    text = f"gradients of {len(ours):,} numbers: within {off:.0e} of alone"
    if rank == 0 or not right:
        print("ok    " if right else "FAILED", text, flush=True)
    if not right:
        sys.exit(1)


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.cpu().flatten() for parameter in model.parameters()])


if __name__ == "__main__":
    main()

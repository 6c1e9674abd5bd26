r"""DistributedDataParallel around a model that is too large for one device.

Everywhere else a process owns one device, and has the whole model on it. Here a process owns all
devices of its machine: the first block lies on the first, the rest on the last, and activations
travel between them. DDP goes around it without device_ids, and averages over the machines. A GPU
idles while another one computes: do this for the memory, not for speed.

The same line on each of two hosts; to rehearse on one machine, run it in two terminals:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint 127.0.0.1:29500 05_multinode/several_devices.py

Without a GPU both "devices" are the CPU, with one both are that one. Processes that share a GPU
need --backend gloo.
"""

import argparse
import os
import signal
import sys
import traceback
from datetime import timedelta

if __name__ == "__main__":  # a rank: Ctrl-C just ends it, torchrun tells the reader
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: it would keep that, and gloo's threads alive
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

BATCH = 24  # images over all processes
PATIENCE = timedelta(seconds=60)
EXACT = torch.float64  # in it a sum in another order differs by 1e-16, and an error by far more


class SpreadConvNet(nn.Module):
    """A ConvNet over two devices: [B, 1, 28, 28] on any device -> [B, 10] on the last.

    It has no BatchNorm: with that, half a batch has other statistics than a whole one.
    """

    def __init__(self, first: torch.device, last: torch.device):
        super().__init__()
        self.first, self.last = first, last
        block1 = [nn.Conv2d(1, 16, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        block2 = [nn.Conv2d(16, 32, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        self.block1 = nn.Sequential(*block1).to(first, EXACT)
        self.rest = nn.Sequential(*block2, nn.Flatten(), nn.Linear(7 * 7 * 32, 10)).to(last, EXACT)

    def forward(self, x):
        x = self.block1(x.to(self.first))
        return self.rest(x.to(self.last))  # autograd brings the gradient back the same way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="nccl on GPUs, gloo on a CPU")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop("start it with torchrun, as its first lines show")
    if os.environ["LOCAL_WORLD_SIZE"] != "1":
        stop("one process has all devices of its machine: --nproc-per-node 1")
    if BATCH % int(os.environ["WORLD_SIZE"]):
        stop(f"{BATCH} images do not divide by {os.environ['WORLD_SIZE']} processes")
    gpus = torch.cuda.device_count()
    if args.backend == "nccl" and not gpus:
        stop("--backend nccl: PyTorch sees no GPU")
    first, last = ("cuda:0", f"cuda:{gpus - 1}") if gpus else ("cpu", "cpu")
    dist.init_process_group(args.backend or ("nccl" if gpus else "gloo"), timeout=PATIENCE)
    try:
        compare(torch.device(first), torch.device(last))
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # or DDP outlives the group: see train.py
        raise
    finally:
        dist.destroy_process_group()


def compare(first: torch.device, last: torch.device) -> None:
    """Every process with its share of a batch, and one process with all of it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        devices = f"block1 on {first}, the rest on {last}"
        print(f"{world_size} processes, {devices}, {dist.get_backend()}", flush=True)
    torch.manual_seed(0)
    alone = SpreadConvNet(first, last)
    torch.manual_seed(rank)  # other weights on every rank: DDP sends those of rank 0 to all
    model = SpreadConvNet(first, last)
    refuse_device_ids(model)
    ddp_model = DistributedDataParallel(model)  # no device_ids: the model knows its devices
    torch.manual_seed(2)
    x, y = torch.rand(BATCH, 1, 28, 28, dtype=EXACT), torch.randint(10, (BATCH,))
    F.cross_entropy(alone(x), y.to(last)).backward()
    F.cross_entropy(ddp_model(x[rank::world_size]), y[rank::world_size].to(last)).backward()
    ours, theirs = gradients(model), gradients(alone)
    off, largest = ((ours - theirs).abs().max(), theirs.abs().max())
    claim(off < 1e-12 < largest, f"gradients of {len(ours):,} numbers: within {off:.0e} of alone")


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.cpu().flatten() for parameter in model.parameters()])


def refuse_device_ids(model: nn.Module) -> None:
    """device_ids are for a model on one GPU, and then for that GPU. What DDP says otherwise:"""
    one_gpu = {parameter.device for parameter in model.parameters()} == {torch.device("cuda", 0)}
    ids = [0, 1] if one_gpu else [0]
    try:
        DistributedDataParallel(model, device_ids=ids)
        told = None
    except ValueError as error:
        told = str(error).partition(", but got")[0]
    claim(told is not None, f"device_ids={ids} is refused: {told}")


def claim(held: bool, text: str) -> None:
    """Say what was found; if any process found it otherwise, all end with exit code 1."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, held)
    if dist.get_rank() == 0:
        print("ok    " if all(found) else "FAILED", text, flush=True)
    if not all(found):
        sys.exit(1)


def stop(message: str) -> None:
    print(f"several_devices: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()

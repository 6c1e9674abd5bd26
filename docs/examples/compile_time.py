"""What torch.compile costs in the first step under DDP, and how near the trained weights are.

torchrun --standalone --nproc-per-node 2 docs/examples/compile_time.py
"""

import os
import shutil
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    if not shutil.which(os.environ.get("CXX", "g++")):
        raise SystemExit("inductor needs a C++ compiler: install g++, or name one in CXX")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    with tempfile.TemporaryDirectory() as folder:
        cache = [folder]
        dist.broadcast_object_list(cache)  # as by default, the ranks of a node have one cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache[0]  # empty: nothing was compiled before
        weights = [train(device, compiled) for compiled in (False, True)]
        dist.barrier()  # rank 0 removes the folder when no rank needs it
    if dist.get_rank() == 0:
        difference = (weights[0] - weights[1]).abs().max() / weights[0].abs().max()
        print(f"largest difference of a weight / largest weight, after 20 steps: {difference:.0e}")


def train(device, compiled):
    """Twenty steps -> the weights."""
    torch.manual_seed(dist.get_rank())
    model = Net().to(device)
    if compiled:
        model.compile()
    ddp_model = DistributedDataParallel(model)  # broadcasts rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        x = torch.rand(64, 512, device=device)
        loss = (ddp_model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        name = "compiled" if compiled else "not compiled"
        later = 1000 * statistics.median(seconds[1:])
        print(f"{name:12}  first step {seconds[0]:6.2f} s, later steps {later:5.1f} ms")
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

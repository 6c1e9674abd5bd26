"""What find_unused_parameters and static_graph cost where every step uses all parameters.

torchrun --standalone --nproc-per-node 2 docs/examples/unused_parameters_cost.py
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

WAYS = {
    "no flag": {},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "static_graph=True": {"static_graph": True},
}
LAYERS, WARM_UP, ROUNDS, STEPS = 300, 5, 10, 5


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    ddp_models = {}
    for way, flags in WAYS.items():
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(32, 32), nn.ReLU())]
        ddp_models[way] = DistributedDataParallel(nn.Sequential(*layers).to(device), **flags)
        milliseconds_per_step(ddp_models[way], WARM_UP, device)
    times = {way: [] for way in WAYS}
    for _ in range(ROUNDS):  # in turn: what else the machine does meets all ways alike
        for way, ddp_model in ddp_models.items():
            times[way].append(milliseconds_per_step(ddp_model, STEPS, device))
    if dist.get_rank() == 0:
        print(f"{2 * LAYERS} parameters, all used: milliseconds per step, {ROUNDS} rounds")
        print("                               median     min     max")
        for way, values in times.items():
            figures = (statistics.median(values), min(values), max(values))
            print(f"{way:<29} {'  '.join(f'{value:6.2f}' for value in figures)}")


def milliseconds_per_step(ddp_model, steps, device):
    x = torch.ones(16, 32, device=device)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        ddp_model.zero_grad()
        ddp_model(x).sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / steps


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

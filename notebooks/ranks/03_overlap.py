"""How long is communication exposed, with one bucket and with several? 03_ddp_spawn runs this.

Each of eight layers sleeps in backward, as if a GPU computed. While it sleeps, the CPU is free to
move the gradients of the layers before it.
"""

import time
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from notebooks.lesson import give


class ComputesElsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.008)  # A GPU would compute now.
        return gradient


class Layer(torch.nn.Linear):
    def forward(self, x):
        return ComputesElsewhere.apply(super().forward(x))


def make_model(cap):
    layers = [Layer(724, 724, bias=False) for _ in range(8)]  # 2.1 MB each
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap)


def step(ddp_model):
    """-> milliseconds until the last gradient is ready, and from there to the end of backward."""
    loss = ddp_model(torch.randn(1, 724)).sum()
    moments = []
    first_weight = next(ddp_model.parameters())
    hook = first_weight.register_hook(lambda gradient: moments.append(time.perf_counter()))
    dist.barrier()
    moments.append(time.perf_counter())
    loss.backward()
    moments.append(time.perf_counter())
    hook.remove()
    start, last_gradient, end = moments
    return 1000 * (last_gradient - start), 1000 * (end - last_gradient)


def measure():
    models = {"1": make_model(1024), "2": make_model(7), "4": make_model(3), "8": make_model(1)}
    times = {number: [] for number in models}
    for _ in range(12):
        for number, ddp_model in models.items():  # Interleaved: noise affects all alike.
            times[number].append(step(ddp_model))
    for number, steps in times.items():
        steady = steps[2:]  # After the first step DDP forms its buckets again.
        before = median(until_last for until_last, _ in steady)
        exposed = median(rest for _, rest in steady)
        give(**{number: [before, exposed]})


if __name__ == "__main__":
    dist.init_process_group("gloo")
    measure()
    dist.destroy_process_group()

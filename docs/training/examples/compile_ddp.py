"""torch.compile with DDP: three orders, their keys, the number of graphs, and when buckets leave.

torchrun --standalone --nproc-per-node 2 docs/training/examples/compile_ddp.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

ORDERS = ("model.compile(), DDP(model)", "DDP(torch.compile(model))", "torch.compile(DDP(model))")
graphs = []  # the number of layers in each compiled graph
events = []  # what happened in a step, in order


class Net(nn.Module):
    """Eight linear layers of 1 MiB each, in a module that has a forward of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential()
        for _ in range(8):
            self.layers += nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")  # The counts are the same with NCCL.
    report = print if dist.get_rank() == 0 else lambda line: None
    report(f"{'order':29}{'keys of state_dict begin with':31}graphs  of an nn.Sequential")
    for order in ORDERS:
        key = three_steps(order, Net()).partition("layers")[0]
        of_net = len(graphs)
        three_steps(order, Net().layers)
        report(f"{order:29}{key:31}{of_net:6}{len(graphs):18}")
    report("\nB7: backward of a graph of 7 layers, A7: all-reduce of a bucket of 7 MiB")
    report("bucket_cap_mb  optimize_ddp  graphs  one step")
    for cap in (None, 25, 4, 2, 1):
        for optimize in (True, False):
            three_steps(ORDERS[0], Net(), cap, optimize)
            report(f"{cap or 'default':>13}{optimize!s:>14}{len(graphs):8}  {' '.join(events)}")
    three_steps(ORDERS[0], Net(), batches=(4, 3, 2))
    report(f"\nthree steps with batches of 4, 3 and 2 samples: {len(graphs)} graphs")


def three_steps(order, model, cap=None, optimize=True, batches=(4, 4, 4)):
    """Compile and wrap a model, train it for three steps -> the first key of its state_dict."""
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = optimize
    graphs.clear()
    if order == ORDERS[0]:
        model.compile(backend=counting)
    elif order == ORDERS[1]:
        model = torch.compile(model, backend=counting)
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap)
    ddp_model.register_comm_hook(None, noting_hook)
    if order == ORDERS[2]:
        ddp_model = torch.compile(ddp_model, backend=counting)
    for samples in batches:  # From the second step on DDP uses its final buckets.
        events.clear()
        ddp_model(torch.rand(samples, 512)).sum().backward()
    return next(iter(ddp_model.state_dict()))


def counting(graph, inputs):
    """A backend that optimizes nothing. It notes each graph, and each run of its backward."""
    layers = sum(isinstance(value, nn.Parameter) for value in inputs)
    graphs.append(layers)

    def forward_compiler(code, _):
        return make_boxed_func(code)

    def backward_compiler(code, _):
        def backward(*values):
            events.append(f"B{layers}")
            return code(*values)

        return make_boxed_func(backward)

    backend = aot_autograd(fw_compiler=forward_compiler, bw_compiler=backward_compiler)
    return backend(graph, inputs)


def noting_hook(state, bucket):
    events.append(f"A{bucket.buffer().nbytes >> 20}")
    return allreduce_hook(state, bucket)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

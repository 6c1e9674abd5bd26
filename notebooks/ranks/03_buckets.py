"""When is each gradient ready, and when is each bucket sent? The notebook 03_ddp_spawn runs this.

The ranks use PyTorch's own DDP. A hook on every parameter notes when its gradient is ready. DDP
calls a communication hook in place of its own all-reduce. This hook notes every bucket and averages
it as DDP does.
"""

from functools import partial
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from_scratch = import_module("03_ddp_spawn.from_scratch")  # before there is a process group

Event = tuple[str, list[int]]  # ("gradient", [its parameter]) or ("bucket", its parameters)


def look(cases: list[tuple[str, int, float | None]]) -> list[list[list[Event]]]:
    """A rank runs all cases -> for each case, what happened in each of three backward passes.

    cases: ("ConvNet", times its channels, bucket_cap_mb) or ("wide_net", 1, bucket_cap_mb).
    """
    return [backward_passes(make(net, width), cap) for net, width, cap in cases]


def make(net: str, width: int) -> nn.Module:
    if net == "wide_net":
        return from_scratch.wide_net()
    return import_module("benchmarks.common").wider_net(width)


def sizes(net: str, width: int = 1) -> list[int]:
    """Bytes of each parameter of a net."""
    return [parameter.nbytes for parameter in make(net, width).parameters()]


def backward_passes(model: nn.Module, cap: float | None, times: int = 3) -> list[list[Event]]:
    events, parameters = [], list(model.parameters())
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap)
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(note_gradient, events, index))
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
    ddp_model.register_comm_hook((events, index_of), note_bucket)
    seen = []
    for _ in range(times):
        F.cross_entropy(ddp_model(torch.rand(2, 1, 28, 28)), torch.tensor([3, 7])).backward()
        seen.append(list(events))
        events.clear()
    return seen


def note_gradient(events: list[Event], index: int, parameter: Tensor) -> None:
    events.append(("gradient", [index]))


def note_bucket(notes: tuple, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    events, index_of = notes
    events.append(("bucket", [index_of[id(parameter)] for parameter in bucket.parameters()]))
    gradients = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(gradients, async_op=True).get_future().then(lambda all: all.value()[0])

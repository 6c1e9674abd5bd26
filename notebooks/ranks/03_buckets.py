"""When is each gradient complete, and when is each bucket sent? Notebook 3 runs this.

The ranks use PyTorch's own DDP. A hook on every parameter notes when its gradient is complete. DDP
calls a communication hook in place of its own all-reduce. This hook notes every bucket and averages
it as DDP does.
"""

from functools import partial
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

stage = import_module("03_ddp_spawn.train")

Event = tuple[str, list[int]]  # ("gradient", [its parameter]) or ("bucket", its parameters)


def look(cap: float) -> list[list[Event]]:
    """Run two backward passes on a rank, in its group -> what happened in each of them.

    cap: bucket_cap_mb.
    """
    model = stage.make_model()
    parameters = list(model.parameters())
    events = []
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap)
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(note_gradient, events, index))
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
    ddp_model.register_comm_hook((events, index_of), note_bucket)
    seen = []
    for _ in range(2):
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

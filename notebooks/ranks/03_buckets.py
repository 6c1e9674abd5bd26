"""When is each gradient complete, and when is each bucket averaged?

The notebook 03_inside_backward runs this. The ranks use PyTorch's own DDP. A hook on every
parameter notes when its gradient is complete. DDP calls a communication hook in place of its own
all-reduce. This hook notes when a bucket is sent and when its average is there, and averages it as
DDP does.
"""

import time
from functools import partial
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

stage = import_module("03_ddp_spawn.train")

# What happened: "gradient" with its parameter, or "sent" or "averaged" with those of a bucket, and
# the milliseconds since the beginning of backward.
Event = tuple[str, list[int], float]


def look(cap: float, passes: int = 100, images: int = 32) -> list[list[Event]]:
    """Run some backward passes on a rank, in its group -> what happened in each of them.

    cap: bucket_cap_mb.
    """
    model = stage.make_model()
    parameters = list(model.parameters())
    notes = Notes()
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap)
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(note_gradient, notes, index))
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
    ddp_model.register_comm_hook((notes, index_of), average)
    seen = []
    for _ in range(passes):
        x = torch.rand(images, 1, 28, 28)
        loss = F.cross_entropy(ddp_model(x), torch.zeros(images, dtype=torch.long))
        dist.barrier()  # All ranks begin at the same time.
        notes.begin()
        loss.backward()
        seen.append(notes.events)
    return seen


class Notes:
    """The events of one backward pass."""

    def begin(self) -> None:
        self.events: list[Event] = []
        self.started = time.perf_counter()

    def add(self, kind: str, parameters: list[int]) -> None:
        milliseconds = 1000 * (time.perf_counter() - self.started)
        self.events.append((kind, parameters, milliseconds))


def note_gradient(notes: Notes, index: int, parameter: Tensor) -> None:
    notes.add("gradient", [index])


def average(state: tuple, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    notes, index_of = state
    parameters = [index_of[id(parameter)] for parameter in bucket.parameters()]
    notes.add("sent", parameters)
    gradients = bucket.buffer() / dist.get_world_size()

    def arrived(sums: torch.futures.Future[list[Tensor]]) -> Tensor:
        notes.add("averaged", parameters)
        return sums.value()[0]

    return dist.all_reduce(gradients, async_op=True).get_future().then(arrived)

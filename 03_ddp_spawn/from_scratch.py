"""Stage 3 from scratch: DistributedDataParallel out of hooks, buckets and all-reduce.

There are two versions. NaiveDDP waits until backward is over, and then all-reduces one gradient
after the other. BucketedDDP does what PyTorch's DDP does: it puts the gradients into buckets in the
order in which they arrive, and all-reduces a full bucket while backward computes the other
gradients. The script shows on two ranks that both versions give the gradients of PyTorch's DDP, and
that BucketedDDP has the same buckets as PyTorch's DDP.

    python 03_ddp_spawn/from_scratch.py
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import chain, repeat

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

MIB = 2**20


class NaiveDDP(nn.Module):
    """Averages gradients over the ranks: after backward, one gradient after the other.

    module: the model of this rank. All ranks need parameters of the same shapes and types.
    Otherwise all ranks raise ValueError. Each parameter must get a gradient in every backward.
    Otherwise the next forward raises RuntimeError.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.arrived = []  # The parameters that have a gradient in this backward, in order.
        self.wanted = True  # The method no_sync sets this to False.
        # Each forward copies `wanted` into `averaging`. If it is False, backward does not average.
        self.averaging = True
        check_same_model(self.trained)
        for tensor in chain(module.parameters(), module.buffers()):
            dist.broadcast(tensor.detach(), src=0)  # All ranks begin with the values of rank 0.
        for index, parameter in enumerate(self.trained):
            # Autograd calls the hook when it has put the whole gradient into parameter.grad.
            parameter.register_post_accumulate_grad_hook(partial(self.on_gradient, index))

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.arrived:
            missing = len(self.trained) - len(self.arrived)
            raise RuntimeError(f"{missing} parameters got no gradient in the last backward")
        self.averaging = self.wanted
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """If the forward pass runs inside this context, its backward pass does not average."""
        self.wanted = False
        try:
            yield
        finally:
            self.wanted = True

    def on_gradient(self, index: int, parameter: Tensor) -> None:
        if self.averaging:
            self.arrived.append(index)
            self.take(index, parameter.grad)
            if len(self.arrived) == len(self.trained):  # Backward is over.
                self.finish()
                self.arrived = []

    def take(self, index: int, gradient: Tensor) -> None:
        """React to a gradient that has arrived. The naive way does nothing yet."""

    def finish(self) -> None:
        for parameter in self.trained:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


class BucketedDDP(NaiveDDP):
    """Averages gradients bucket by bucket, while backward goes on: what DDP does.

    bucket_cap_mb: the size in MiB at which a bucket is full. All ranks need the same number. The
    value None stands for DDP's default: 1 MiB for the first bucket, so that it is sent early, and
    25 MiB for the other buckets.
    """

    def __init__(self, module: nn.Module, bucket_cap_mb: float | None = None):
        super().__init__(module)
        self.caps = (1 * MIB, 25 * MIB) if bucket_cap_mb is None else (bucket_cap_mb * MIB,) * 2
        self.rebuilt = False
        self.fill([list(range(len(self.trained)))])  # At first one bucket has all parameters.

    def fill(self, indices: list[list[int]]) -> None:
        """Make a bucket of each list of parameters."""
        self.indices = indices
        self.buckets = [Bucket([self.trained[i] for i in bucket]) for bucket in indices]
        self.place_of = {
            i: (number, place)
            for number, bucket in enumerate(indices)
            for place, i in enumerate(bucket)
        }
        self.launched = 0

    def take(self, index: int, gradient: Tensor) -> None:
        number, place = self.place_of[index]
        self.buckets[number].add(place, gradient)
        # All ranks must send the buckets in the same order, so a bucket that is full too early
        # waits until the buckets before it have been sent.
        while self.launched < len(self.buckets) and self.buckets[self.launched].full():
            self.buckets[self.launched].launch()
            self.launched += 1

    def finish(self) -> None:
        for bucket in self.buckets:
            bucket.wait_and_write_back()
        self.launched = 0
        if not self.rebuilt:  # The first backward pass has shown the order of the gradients.
            order = torch.tensor(self.arrived, device=self.trained[0].device)
            dist.broadcast(order, src=0)  # All ranks need the same buckets.
            sizes = [parameter.nbytes for parameter in self.trained]
            self.fill(assign(order.tolist(), sizes, *self.caps))
            self.rebuilt = True


class Bucket:
    """One flat tensor, with a place for the gradient of each of its parameters."""

    def __init__(self, parameters: list[Tensor]):
        self.parameters = parameters
        self.flat = parameters[0].new_zeros(sum(p.numel() for p in parameters))
        self.places = []
        start = 0
        for p in parameters:
            self.places.append(self.flat.as_strided(p.size(), p.stride(), start))
            start += p.numel()
        self.missing = len(parameters)
        self.work = None

    def add(self, place: int, gradient: Tensor) -> None:
        torch.div(gradient, dist.get_world_size(), out=self.places[place])
        self.missing -= 1

    def full(self) -> bool:
        return self.missing == 0

    def launch(self) -> None:
        self.work = dist.all_reduce(self.flat, async_op=True)  # returns at once

    def wait_and_write_back(self) -> None:
        self.work.wait()
        for parameter, averaged in zip(self.parameters, self.places):
            parameter.grad.copy_(averaged)
        self.missing = len(self.parameters)
        self.work = None


def assign(order: list[int], sizes: list[int], first: float, cap: float) -> list[list[int]]:
    """Fill buckets with parameters in the given order; a bucket that has reached its cap is closed.

    order: indices of parameters. sizes: bytes of each parameter, by index. first: the first
    bucket is closed when it has this many bytes. cap: the same for all later buckets. A tensor is
    never split, so a bucket may exceed its cap.

    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp.
    """
    caps = chain([first], repeat(cap))
    buckets = [[]]
    limit = next(caps)
    for index in order:
        if buckets[-1] and sum(sizes[i] for i in buckets[-1]) >= limit:
            buckets.append([])
            limit = next(caps)
        buckets[-1].append(index)
    return buckets


def check_same_model(parameters: list[Tensor]) -> None:
    """Raise ValueError on every rank if the ranks have different parameters, or none."""
    models = [None] * dist.get_world_size()
    dist.all_gather_object(models, [(tuple(p.shape), str(p.dtype)) for p in parameters])
    if not models[0] or any(model != models[0] for model in models):
        raise ValueError(f"the ranks need the same parameters to train, they have {models}")


# ---------------------------------------------------------------- the proof


def prove() -> None:
    """Check all claims of this script. Every rank calls this function."""
    from train import make_model

    say("Two ranks train on different images, with PyTorch's DDP and with the two classes above.\n")
    compare("ConvNet", make_model, 0.01)
    compare("ConvNet", make_model, None)
    compare("wide net", wide_net, 1)
    compare("wide net", wide_net, None)

    say("\nWhen are buckets sent? The wide net with bucket_cap_mb=1:")
    model = BucketedDDP(wide_net(), 1)
    claim(departures(model) == [16], "1st backward: one bucket, after the last gradient")
    first, *others = departures(model)
    claim(first == 4, f"2nd backward: bucket 0 is sent when {first} of 16 gradients are ready")
    say(f"       the other buckets are sent when {', '.join(map(str, others))} are ready")

    say("\nno_sync: the gradients of three batches add up. Only the third backward averages them.")
    for wrap in (BucketedDDP, NaiveDDP):
        # eval() freezes BatchNorm's statistics. Otherwise they would depend on the batch.
        model = wrap(make_model().double().eval())
        micro = [batch(dtype=torch.double) for _ in range(3)]
        found = accumulate(model, micro)
        whole = gradients_of(model, *map(torch.cat, zip(*micro)))
        far = max((a - b).abs().max().item() for a, b in zip(found, whole))
        text = f"{wrap.__name__}: the gradients are those of one batch of 24, up to {far:.0e}"
        claim(far < 1e-12, text)


def compare(name: str, make: Callable[[], nn.Module], cap: float | None, steps: int = 4) -> None:
    """Claim equal gradients, step after step, and equal buckets, for one net and one cap."""
    torch.manual_seed(dist.get_rank())  # DDP must replace these weights by rank 0's.
    model = make()
    ddp = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=cap)
    bucketed = BucketedDDP(copy.deepcopy(model), cap)
    naive = NaiveDDP(model)
    same = True
    for _ in range(steps):
        x, y = batch()
        expected = step(ddp, x, y)
        same &= all(map(torch.equal, step(bucketed, x, y), expected))
        same &= all(map(torch.equal, step(naive, x, y), expected))
    text = f"{name}, bucket_cap_mb={cap}: {steps} steps with equal gradients, bit for bit"
    claim(same, text)
    theirs = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]  # a private function
    ours = ", ".join(" ".join(map(str, bucket)) for bucket in bucketed.indices)
    claim(ours == theirs, f"    the same buckets as in DDP: {ours}")


def departures(model: BucketedDDP) -> list[int]:
    """Train one step -> how many gradients were ready when each bucket was sent."""
    left = []
    take = model.take

    def noted(index: int, gradient: Tensor) -> None:
        before = model.launched
        take(index, gradient)
        left.extend([len(model.arrived)] * (model.launched - before))

    model.take = noted
    step(model, *batch())
    del model.take
    return left


def step(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Take one step of plain gradient descent -> the gradients of this step."""
    gradients = gradients_of(model, x, y)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter -= 0.05 * gradient
    return gradients


def gradients_of(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def accumulate(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Add up the gradients of equal batches. Only the last batch averages them over the ranks."""
    model.zero_grad()
    for number, (x, y) in enumerate(batches, start=1):
        with model.no_sync() if number < len(batches) else nullcontext():
            (F.cross_entropy(model(x), y) / len(batches)).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def batch(size: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 1, 28, 28, dtype=dtype), torch.randint(10, (size,))


def wide_net() -> nn.Module:
    """A net of 28 MiB: enough for several buckets."""
    layers = [nn.Flatten(), nn.Linear(784, 1024)]
    for _ in range(6):
        layers += [nn.ReLU(), nn.Linear(1024, 1024)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(1024, 10))


def on_two_ranks(prove: Callable[[], None]) -> None:
    """Call `prove`, a function of this script or of another script of this stage, on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (f"file://{folder}/ranks", prove), nprocs=2, daemon=True)


def run_rank(rank: int, meeting_point: str, prove: Callable[[], None]) -> None:
    if not mp.parent_process().is_alive():
        sys.exit(1)  # The parent was killed while this rank was importing.
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=meeting_point,
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    prove()
    dist.destroy_process_group()  # This comes last, because DDP uses the group in prove.


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def claim(held: bool, text: str) -> None:
    """If the claim holds, rank 0 prints it. If it fails on a rank, this rank ends all ranks."""
    if held:
        say(f"ok     {text}")
    else:
        print(f"FAILED {text} (rank {dist.get_rank()})", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    on_two_ranks(prove)

"""What two ranks do in test_corrections.py: in its own file, since spawned processes import it.

Every experiment runs on both ranks in a process group of its own, and returns what its rank found.
"""

import contextlib
import os
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group, as in the stages
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

EXPERIMENTS = {}  # name -> (function, seconds that a rank waits for the other)
X = torch.arange(24, dtype=torch.float64).reshape(8, 3).sin()  # a batch of both ranks together
Y = X.sum(1, keepdim=True).cos()


def experiment(timeout):
    def add(function):
        EXPERIMENTS[function.__name__] = function, timeout
        return function

    return add


def run(rank, file, results):
    """Do all experiments, and put (rank, name, found) into the queue."""
    torch.set_num_threads(1)
    store = dist.FileStore(file, 2)
    for name, (function, timeout) in EXPERIMENTS.items():
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(name, store),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=timeout),
        )
        results.put((rank, name, function(rank, store)))
        dist.destroy_process_group()
    results.close()
    results.join_thread()


def outcome(collective):
    """Call a function -> "passed", or the first line of the error that it raised."""
    try:
        collective()
    except RuntimeError as error:
        traceback.clear_frames(error.__traceback__)
        return str(error).splitlines()[0]
    return "passed"


def rank_0_alone(rank, store, collective):
    """Only rank 0 calls the function; rank 1 waits in the store until it is over -> the outcome."""
    key = f"over {collective.__name__}"
    if rank == 0:
        found = outcome(collective)
        store.set(key, "")
        return found
    store.wait([key], timedelta(seconds=120))


def linear(wrap=True):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    return DistributedDataParallel(model) if wrap else model


def gradient(model, x, y, loss=F.mse_loss):
    model.zero_grad()
    loss(model(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).tolist()


# ---------------------------------------------------------------- who may test


@experiment(timeout=3)
def all_ranks_test(rank, store):
    counts = torch.tensor([4 + rank, 5])
    return outcome(lambda: dist.all_reduce(counts)), counts.tolist()


@experiment(timeout=3)
def only_rank_0_tests(rank, store):
    def test():
        dist.all_reduce(torch.tensor([4, 5]))

    return rank_0_alone(rank, store, test)


@experiment(timeout=3)
def only_rank_0_calls_the_wrapper(rank, store):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ddp_model = DistributedDataParallel(model).eval()

    def bare():
        ddp_model.module(torch.ones(2, 3))

    def wrapper():
        with torch.inference_mode():
            ddp_model(torch.ones(2, 3))

    return rank_0_alone(rank, store, bare), rank_0_alone(rank, store, wrapper)


# ---------------------------------------------------------------- gradients and weights


@experiment(timeout=60)
def seeds(rank, store):
    torch.manual_seed(rank)
    model = nn.Linear(3, 1)
    before = model.weight.tolist()
    DistributedDataParallel(model)
    return before, model.weight.tolist()


@experiment(timeout=60)
def gradients(rank, store):
    mine = slice(4 * rank, 4 * rank + 4)
    uneven = slice(0, 6) if rank == 0 else slice(6, 8)

    def squares(output, y):
        return F.mse_loss(output, y, reduction="sum")

    found = {
        "whole": gradient(linear(wrap=False), X, Y),
        "mean": gradient(linear(), X[mine], Y[mine]),
        "uneven": gradient(linear(), X[uneven], Y[uneven]),
        "whole, sum": gradient(linear(wrap=False), X, Y, squares),
        "sum": gradient(linear(), X[mine], Y[mine], squares),
    }
    share = len(X[uneven]) * 2 / len(X)

    def weighted(output, y):
        return share * F.mse_loss(output, y)

    return found | {"uneven, weighted": gradient(linear(), X[uneven], Y[uneven], weighted)}


@experiment(timeout=60)
def only_rank_0_steps(rank, store):
    ddp_model = linear()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    before = gradient(ddp_model, X[rank::2], Y[rank::2])
    if rank == 0:
        optimizer.step()
    return before


@experiment(timeout=60)
def same_rate(rank, store):
    trained = []
    for model, x, y in (linear(), X[rank::2], Y[rank::2]), (linear(wrap=False), X, Y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(20):
            gradient(model, x, y)
            optimizer.step()
        trained.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    return (trained[0] - trained[1]).abs().max().item()


@experiment(timeout=60)
def no_sync(rank, store):
    x, y = X[rank::2], Y[rank::2]
    found = {}
    for name in ("forward and backward", "backward only"):
        ddp_model = linear()
        forward = (
            ddp_model.no_sync() if name == "forward and backward" else contextlib.nullcontext()
        )
        with forward:
            loss = F.mse_loss(ddp_model(x), y)
            with ddp_model.no_sync():
                loss.backward()
        found[name] = ddp_model.module.weight.grad.tolist()
    return found


@experiment(timeout=60)
def two_losses(rank, store):
    """-> the gradient after two backward passes, by the order of the passes"""
    x = X[rank::2]

    def one_forward(ddp_model):
        output = ddp_model(x)
        output.square().mean().backward(retain_graph=True)
        output.abs().mean().backward()

    def forwards_first(ddp_model):
        outputs = ddp_model(x), ddp_model(x)
        outputs[0].square().mean().backward()
        outputs[1].abs().mean().backward()

    def in_turn(ddp_model):
        ddp_model(x).square().mean().backward()
        ddp_model(x).abs().mean().backward()

    def sum_of_losses(ddp_model):
        output = ddp_model(x)
        (output.square().mean() + output.abs().mean()).backward()

    found = {}
    for way in (one_forward, forwards_first, in_turn, sum_of_losses):
        ddp_model = linear()
        way(ddp_model)
        found[way.__name__] = ddp_model.module.weight.grad.flatten().tolist()
    return found


# ---------------------------------------------------------------- collectives


@experiment(timeout=60)
def without_a_barrier(rank, store):
    if rank == 1:
        time.sleep(0.5)
    number = torch.tensor(1.0 + rank)
    dist.all_reduce(number)
    return number.item()


@experiment(timeout=60)
def reduce(rank, store):
    number = torch.tensor(1.0 + rank)
    dist.reduce(number, dst=0)
    return number.item()


@experiment(timeout=60)
def another_order(rank, store):
    a, b = torch.tensor(1.0), torch.tensor(10.0)
    for number in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(number)
    return a.item(), b.item()


# ---------------------------------------------------------------- buckets, buffers, scalers


@experiment(timeout=60)
def buckets(rank, store):
    """-> the megabytes of each bucket, in the first and in the third step"""
    found = {}
    for name, options in {"default": {}, "bucket_cap_mb=25": {"bucket_cap_mb": 25}}.items():
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(6)))
        ddp_model = DistributedDataParallel(model, **options)
        sizes = []
        ddp_model.register_comm_hook(sizes, sizes_of_buckets)
        for _ in range(3):
            sizes.append([])
            ddp_model(torch.ones(1, 512)).sum().backward()
        found[name] = sizes[0], sizes[2]
    return found


def sizes_of_buckets(sizes, bucket):
    sizes[-1].append(bucket.buffer().numel() * 4 / 2**20)
    reduced = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return reduced.then(lambda future: future.value()[0])


@experiment(timeout=60)
def unused_parameters(rank, store):
    found = {}
    for flag in (False, True):
        ddp_model = DistributedDataParallel(linear(wrap=False), find_unused_parameters=flag)
        for _ in range(3):
            gradient(ddp_model, X, Y)
        found[flag] = ddp_model._get_ddp_logging_data()["has_rebuilt_buckets"]
    return found


@experiment(timeout=60)
def batchnorm(rank, store):
    """-> the running mean that each rank has before and after the forward that broadcasts it"""
    model = nn.BatchNorm1d(1, momentum=1.0)
    ddp_model = DistributedDataParallel(model)
    data = torch.full((4, 1), 10.0 * rank) + torch.tensor([[-1.0], [0.0], [0.0], [1.0]])
    ddp_model(data)
    before = model.running_mean.item()
    ddp_model.eval()
    ddp_model(data)
    return before, model.running_mean.item()


@experiment(timeout=60)
def scalers(rank, store):
    """Rank 1's loss is infinite in the first step -> scale and weight after it, and one step on"""
    ddp_model = linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    found = []
    for factor in (float("inf") if rank == 1 else 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(factor * F.mse_loss(ddp_model(X), Y)).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), ddp_model.module.weight.tolist()))
    return found


# ---------------------------------------------------------------- last: rank 1 does not survive


@experiment(timeout=120)
def a_rank_dies(rank, store):
    if rank == 1:
        store.set("rank 1 has gone", "")
        os._exit(1)
    return outcome(lambda: dist.all_reduce(torch.ones(1)))

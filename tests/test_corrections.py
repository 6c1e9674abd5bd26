"""The statements on docs/reference/corrections.md: what no other script or test shows is computed
here."""

import random
import re
import statistics
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from conftest import LINUX, ROOT
from provoke_messages import CASES
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks import run_all
from lib import records

PAGE = (ROOT / "docs/reference/corrections.md").read_text()


# ---------------------------------------------------------------- what two ranks do

X = torch.arange(24, dtype=torch.float64).reshape(8, 3).sin()  # a batch of both ranks together
Y = X.sum(1, keepdim=True).cos()


def linear(**options):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(3, 1).double(), **options)


def gradient(model, x, y):
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).tolist()


def without_a_barrier(rank):
    if rank == 1:
        time.sleep(0.5)
    number = torch.tensor(1.0 + rank)
    dist.all_reduce(number)
    return number.item()


def reduce(rank):
    number = torch.tensor(1.0 + rank)
    dist.reduce(number, dst=0)
    return number.item()


def only_rank_0_steps(rank):
    ddp_model = linear()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    before = gradient(ddp_model, X[rank::2], Y[rank::2])
    if rank == 0:
        optimizer.step()
    return before


def two_losses(rank):
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


def buckets(rank):
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


def unused_parameters(rank):
    found = {}
    for flag in (False, True):
        ddp_model = linear(find_unused_parameters=flag)
        for _ in range(3):
            gradient(ddp_model, X, Y)
        found[flag] = ddp_model._get_ddp_logging_data()["has_rebuilt_buckets"]
    return found


def experiments():
    """On a rank -> {name: what it found}"""
    functions = without_a_barrier, reduce, only_rank_0_steps, two_losses, buckets, unused_parameters
    return {function.__name__: function(dist.get_rank()) for function in functions}


@pytest.fixture(scope="module", params=[pytest.param("two ranks", marks=pytest.mark.slow)])
def found():
    """{experiment: {rank: what it found}}"""
    ranks = on_ranks(2, experiments)
    return {name: {rank: own[name] for rank, own in enumerate(ranks)} for name in ranks[0]}


def test_the_step_of_the_optimizer_does_not_communicate(found):
    assert found["only_rank_0_steps"][0] == found["only_rank_0_steps"][1], "equal before the step"
    assert len(found["only_rank_0_steps"]) == 2, "and rank 0 could step alone"


def test_a_second_backward_of_one_forward_is_not_averaged(found):
    first, second = found["two_losses"][0], found["two_losses"][1]
    assert first["one_forward"] != second["one_forward"], "the ranks drift apart"
    assert first["forwards_first"] != second["forwards_first"]
    assert first["in_turn"] == second["in_turn"]
    assert first["in_turn"] == pytest.approx(first["sum_of_losses"], rel=1e-12)


def test_an_all_reduce_needs_no_barrier(found):
    assert found["without_a_barrier"] == {0: 3.0, 1: 3.0}


def test_reduce_leaves_the_sum_on_one_rank(found):
    assert found["reduce"][0] == 3.0 and found["reduce"][1] != 3.0


def test_the_buckets_of_the_first_step_are_not_those_of_the_others(found):
    for by_rank in (found["buckets"][0], found["buckets"][1]):
        assert by_rank["default"] == ([6.0], [1.0, 5.0])
        assert by_rank["bucket_cap_mb=25"] == ([6.0], [6.0])


def test_buckets_are_not_rebuilt_where_unused_parameters_are_looked_for(found):
    assert found["unused_parameters"][0] == {False: 1, True: 0}


def test_averages_of_averages():
    correct, size = [5, 2], [6, 4]  # on two ranks
    means = statistics.mean(c / n for c, n in zip(correct, size))
    assert (f"{means:.3f}", f"{sum(correct) / sum(size):.3f}") == ("0.667", "0.700")
    assert "0.667" in PAGE and "0.700" in PAGE


def test_what_fp16_loses():
    least = 2.0**-25  # half the smallest number that fp16 has
    assert torch.tensor([least, 1.001 * least]).half().tolist() == [0.0, 2.0**-24]
    assert f"{least:.1e}" == "3.0e-08" and f"{2.0**-24:.1e}" == "6.0e-08"


class Seeds(Dataset):
    """What a loader worker draws: its seed, and a number of random and numpy."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        import numpy

        return torch.initial_seed(), random.random(), numpy.random.rand()


@LINUX
@pytest.mark.parametrize("persistent", [True, False])
def test_seeds_of_workers(persistent):
    """Two epochs, then two before which the main process gets the same seed."""
    loader = DataLoader(
        Seeds(), num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    epochs = []
    for seed in (1, 2, 5, 5):
        torch.manual_seed(seed)
        epochs.append([tuple(n.item() for n in row) for row in loader])
    first, second, third, fourth = epochs
    assert ([row[0] for row in first] == [row[0] for row in second]) == persistent
    assert len({row[1] for row in first}) == len({row[2] for row in first}) == 2, "all three seeded"
    assert (third == fourth) != persistent, "persistent workers get no new seed"


def test_seconds_of_ranks_are_not_added_up():
    for run in records.find(run_all.committed(), "03_ddp_spawn"):
        seconds = [sum(rank.values()) for rank in run["history"][-1]["phases"]]
        speed, by_sum = run["images"] / max(seconds), run["images"] / sum(seconds)
        assert speed / by_sum == pytest.approx(2, rel=0.03)


def test_the_steps_of_the_demo():
    steps = [3 * len(DataLoader(DistributedSampler(range(60_000), n, 0), 32)) for n in (1, 2)]
    assert steps == [5625, 2814]
    assert "5,625" in PAGE and "2,814" in PAGE


def test_every_row_names_a_proof_that_is_there():
    """A test, or a case of provoke_messages.py, which test_messages.py runs."""
    files = (path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    tests = {name for text in files for name in re.findall(r"^def (test_\w+)", text, re.M)}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named <= tests
    assert set(re.findall(r"provoke_messages.py (\w+)`", PAGE)) <= set(CASES)

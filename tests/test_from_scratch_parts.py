"""The functions of the from_scratch.py files on sizes and ranks that their own proofs leave out."""

import importlib

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_ranks

threads = importlib.import_module("02_dp.from_scratch")
batchnorm = importlib.import_module("03_ddp_spawn.batchnorm")
ddp = importlib.import_module("03_ddp_spawn.from_scratch")
seeds = importlib.import_module("03_ddp_spawn.shards_and_seeds")
ring = importlib.import_module("05_multinode.from_scratch")
CPU = torch.device("cpu")
FEW = settings(max_examples=30, deadline=None)


# ---------------------------------------------------------------- 02


@pytest.mark.parametrize("images", [2, 7])
def test_batches_that_do_not_fit_the_devices(images):
    model = nn.Linear(3, 2).double()
    parallel = threads.DataParallel(model, [CPU] * 3)
    x, y = torch.rand(images, 3, dtype=torch.double), torch.zeros(images, dtype=torch.long)
    outputs, gradients = threads.differences(parallel, model, x, y)
    assert outputs < 1e-12 and gradients < 1e-12
    shards = [len(shard) for shard in parallel.scatter(x)]
    assert shards == {2: [1, 1], 7: [3, 3, 1]}[images]


def test_an_error_on_a_thread_reaches_the_caller():
    parallel = threads.DataParallel(nn.Linear(3, 2), [CPU] * 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        parallel(torch.rand(4, 5))
    assert parallel(torch.rand(4, 3)).shape == (4, 2), "the threads have survived it"


# ---------------------------------------------------------------- 03


@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    first=st.integers(1, 200),
    cap=st.integers(1, 200),
)
@FEW
def test_buckets_are_closed_when_they_have_reached_their_cap(sizes, first, cap):
    order = list(reversed(range(len(sizes))))
    buckets = ddp.assign(order, sizes, first, cap)
    assert [index for bucket in buckets for index in bucket] == order
    for number, bucket in enumerate(buckets):
        limit = first if number == 0 else cap
        without_last = sum(sizes[index] for index in bucket[:-1])
        assert bucket and without_last < limit
        if bucket is not buckets[-1]:
            assert without_last + sizes[bucket[-1]] >= limit


def uneven_batchnorm():
    """-> how far the synchronized one is from one process: rank 0 has 5 images, the others 7."""
    torch.manual_seed(0)
    end = 5 + 7 * dist.get_rank()
    shard = slice(max(0, end - 7), end)
    x, weight = (torch.rand(19, 3, 4, 4, dtype=torch.double) for _ in range(2))
    whole, own = x.clone().requires_grad_(), x[shard].clone().requires_grad_()
    plain, synced = nn.BatchNorm2d(3).double(), batchnorm.SyncBatchNorm2d(3).double()
    expected, found = plain(whole), synced(own)
    (expected * weight).sum().backward()
    (found * weight[shard]).sum().backward()
    for parameter in synced.parameters():
        dist.all_reduce(parameter.grad)
    pairs = [(found, expected[shard]), (own.grad, whole.grad[shard])]
    pairs += [(a.grad, b.grad) for a, b in zip(synced.parameters(), plain.parameters())]
    pairs += list(zip(synced.buffers(), plain.buffers()))
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.slow
def test_synchronized_batchnorm_weighs_each_image_equally():
    assert max(on_ranks(3, uneven_batchnorm)) < 1e-10


@given(images=st.integers(1, 60), ranks=st.integers(1, 9))
@FEW
def test_padding_marks_what_is_there_twice(images, ranks):
    assigned = seeds.shards(images, ranks, shuffle=False)
    marks = seeds.padding(assigned)
    kept = [i for own, mark in zip(assigned, marks) for i, again in zip(own, mark) if not again]
    assert sorted(kept) == list(range(images))
    assert seeds.accuracies(images, ranks, {0})["exact"] == pytest.approx((images - 1) / images)


# ---------------------------------------------------------------- 05

RANKS, LENGTHS = st.integers(1, 16), st.integers(0, 1000)


@given(world_size=RANKS, length=LENGTHS)
@FEW
def test_the_ring_ends_with_the_sum_everywhere(world_size, length):
    vectors = [torch.arange(length) + 1000 * rank for rank in range(world_size)]
    states = list(ring.simulate(vectors))
    assert len(states) == 2 * (world_size - 1) + 1
    assert all(torch.equal(a, b) for a, b in zip(states[0], vectors))
    assert all(torch.equal(vector, sum(vectors)) for vector in states[-1])


@given(world_size=RANKS, length=LENGTHS)
@FEW
def test_what_the_ring_sends(world_size, length):
    cut = [c.stop - c.start for c in ring.chunks(length, world_size)]
    assert sum(cut) == length and max(cut) - min(cut) <= 1
    total = 0
    for rank in range(world_size):
        steps = ring.schedule(rank, world_size)
        left = ring.schedule((rank - 1) % world_size, world_size)
        assert [step.receive for step in steps] == [step.send for step in left]
        for phase in ("reduce-scatter", "all-gather"):
            sent = [step.send for step in steps if step.phase == phase]
            assert len(sent) == len(set(sent)) == world_size - 1, "no chunk twice in a phase"
        own = sum(cut[step.send] for step in steps)
        assert abs(own - 2 * (world_size - 1) * length / world_size) <= max(2 * max(cut), 1)
        total += own
    assert total == 2 * (world_size - 1) * length

"""docs/training/uneven_inputs.md beyond what its script prints: test_docs.py runs and compares
that."""

import importlib
import math
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from conftest import ROOT
from ranks import on_ranks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

pytestmark = pytest.mark.slow

TORCHRUN = "torchrun --standalone --nproc-per-node 2"
PAGE = (ROOT / "docs/training/uneven_inputs.md").read_text()


def test_a_collective_of_ones_own_under_join_aborts(reader):
    result = reader.run(
        f"{TORCHRUN} docs/training/examples/uneven.py --way 'join, all_reduce'", timeout=170
    )
    assert result.code == 1 and "collective mismatch in your code?" in result.err, result


def steps_under_join(first, by_world_size):
    """On a rank: `first` takes one step, the other a second, alone -> gradient, running mean."""
    rank = dist.get_rank()
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1))
    ddp_model = DistributedDataParallel(model)
    with Join([ddp_model], divide_by_initial_world_size=by_world_size):
        for step in range(1 if rank == first else 2):
            x = torch.tensor([[-1.0], [1.0]]) + 10 * rank + step
            model.zero_grad()
            ddp_model(x).mean().backward()  # the gradient of the bias is 1
    return model[1].bias.grad.item(), model[0].running_mean.item()


@pytest.mark.parametrize(("first", "mean"), [(0, 11.0), (1, 1.0)])
@pytest.mark.parametrize(("by_world_size", "alone"), [(True, 0.5), (False, 1.0)])
def test_the_average_and_the_buffers_under_join(first, mean, by_world_size, alone):
    found = on_ranks(2, steps_under_join, first, by_world_size)
    assert found[first] == (1.0, mean) and found[1 - first] == (alone, mean)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_table_of_the_sampler(ranks, drop_last):
    shards = [
        list(DistributedSampler(range(1003), ranks, i, drop_last=drop_last)) for i in range(ranks)
    ]
    samples, seen = sum(shards, []), len(set().union(*shards))
    row = [ranks, drop_last, len(shards[0]), len(samples) - seen, 1003 - seen]
    assert re.search(r"\| +".join(rf"{value} *" for value in row), PAGE), row


@pytest.mark.parametrize(
    ("ranks", "workers", "batches"), [(2, 2, [12, 11]), (3, 2, [8, 8, 8]), (2, 0, [11, 10])]
)
def test_the_shards_of_the_stream(monkeypatch, ranks, workers, batches):
    stream = importlib.import_module("docs.training.examples.uneven").Stream()
    seen, counts = [], []
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        found = list(DataLoader(stream, batch_size=50, num_workers=workers))
        counts.append(len(found))
        seen += [tuple(sample.tolist()) for batch in found for sample in batch]
    assert counts == batches
    assert len(seen) == len(set(seen)) == 1003


class NotSplit(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_what_nothing_splits_is_seen_by_every_worker():
    assert sorted(DataLoader(NotSplit(), batch_size=None, num_workers=2)) == sorted(
        [*range(10)] * 2
    )
    with pytest.raises(ValueError, match="sampler"):
        DataLoader(NotSplit(), sampler=DistributedSampler(range(10), 2, 0))


def test_the_loaders_drop_last_is_per_rank_and_worker():
    assert len(DataLoader(range(502), batch_size=50, drop_last=True)) == 502 // 50
    stream = DataLoader(NotSplit(), batch_size=4, num_workers=2, drop_last=True)
    assert len(list(stream)) == 2 * (10 // 4) < math.ceil(20 / 4)

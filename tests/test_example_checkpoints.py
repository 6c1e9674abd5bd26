"""docs/training/checkpoints.md beyond what its scripts print: test_docs.py runs and compares
that."""

import argparse
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAGE = (ROOT / "docs/training/checkpoints.md").read_text()


@pytest.mark.parametrize(
    ("batch", "first", "twice", "never"), [(8, 25, 0, 0), (12, 25, 0, 300), (12, 600 // 36, 24, 0)]
)
def test_the_table_of_another_number_of_ranks(batch, first, twice, never):
    def taken(ranks, batch, first, last):
        shards = [list(DistributedSampler(range(960), ranks, rank)) for rank in range(ranks)]
        return {index for shard in shards for index in shard[first * batch : last * batch]}

    before, after = taken(2, 12, 0, 25), taken(3, batch, first, 960)
    assert (len(before & after), 960 - len(before | after)) == (twice, never)
    assert re.search(rf"\| 3 x {batch} +\| .*{first} +\| {twice} +\| {never} +\|", PAGE)


class Numbers(Dataset):
    """Sample i is (i, a random number that stands for an augmentation); counts what is read."""

    read = 0

    def __len__(self):
        return 1003

    def __getitem__(self, index):
        self.read += 1
        return index, torch.rand(1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_two_ways_to_a_position_in_the_epoch(workers):
    """Rank 0 of 2 goes on after batch 8 of 21, as an epoch without a stop does."""

    def loader(data, first=0):
        rest = list(DistributedSampler(data, num_replicas=2, rank=0))[25 * first :]
        return DataLoader(data, 25, sampler=rest, num_workers=workers)

    torch.manual_seed(0)
    at_start, whole = torch.get_rng_state(), iter(loader(Numbers()))
    for _ in range(8):
        next(whole)
    now, expected = torch.get_rng_state(), list(whole)
    skips, begins_later = Numbers(), Numbers()
    torch.set_rng_state(at_start)
    skipped = list(itertools.islice(loader(skips), 8, None))
    rest = iter(loader(begins_later, 8))
    torch.set_rng_state(now)  # after iter, which takes a random number
    for found, equal_numbers in ((skipped, True), (list(rest), workers == 0)):
        for (indices, numbers), (own, drawn) in zip(expected, found, strict=True):
            assert torch.equal(indices, own) and torch.equal(numbers, drawn) == equal_numbers
    if workers == 0:
        assert (skips.read, begins_later.read) == (502, 302)


# ---------------------------------------------------------------- keys, weights_only


def test_strict_false_loads_nothing_and_stripped_keys_load():
    model, state = nn.Linear(2, 2), nn.DataParallel(nn.Linear(2, 2)).state_dict()
    before = model.weight.clone()
    with pytest.raises(RuntimeError, match="module.weight"):
        model.load_state_dict(state)
    model.load_state_dict(state, strict=False)
    assert torch.equal(model.weight, before)
    consume_prefix_in_state_dict_if_present(state, "module.")
    model.load_state_dict(state)
    assert torch.equal(model.weight, state["weight"]) and not torch.equal(model.weight, before)


def loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file)


def test_what_torch_load_refuses():
    """Each of them, and what the page has saved instead."""
    pairs = [
        (argparse.Namespace(lr=0.1), vars),
        (Path("model.pt"), str),
        (np.zeros(2), torch.from_numpy),
        (np.float64(0.5), np.float64.item),
        (nn.Linear(1, 1), nn.Linear.state_dict),
    ]
    for thing, saved_instead in pairs:
        with pytest.raises(Exception, match="Weights only load failed"):
            loaded(thing)
        loaded(saved_instead(thing))

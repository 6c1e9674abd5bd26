"""docs/checkpoints.md beyond what its scripts print: test_docs.py runs and compares that."""

import argparse
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DistributedSampler

PAGE = (ROOT / "docs/checkpoints.md").read_text()


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

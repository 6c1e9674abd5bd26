"""docs/checkpoints.md: what the scripts print, and what the page says about it."""

import argparse
import importlib.util
import io
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT, Reader, docstring_commands
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DistributedSampler

SCRIPT = "docs/examples/checkpoints.py"
POSITION = "docs/examples/loader_position.py"
PAGE = (ROOT / "docs/checkpoints.md").read_text()
HAS_TORCHDATA = importlib.util.find_spec("torchdata") is not None


def run(reader, script):
    (command,) = docstring_commands(script)
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return result


@pytest.fixture(scope="module")
def printed(tmp_path_factory, small_data):
    reader = Reader(tmp_path_factory.mktemp("checkpoints"), small_data)
    return run(reader, SCRIPT), reader.folder


def differences(result, way):
    """(between the ranks, to the undisturbed run)"""
    (found,) = re.findall(rf"^{way} +(-|[\d.e+-]+) +(below \S+|\S+)$", result.out, re.MULTILINE)
    return found


@pytest.mark.slow
def test_what_all_ranks_have_read_resumes_as_if_nothing_had_happened(printed):
    for way in ("all ranks read the file", "rank 0 reads and broadcasts"):
        assert differences(printed[0], way) == ("0e+00", "0e+00")


@pytest.mark.slow
def test_what_only_rank_0_has_read_lets_the_ranks_drift_apart(printed):
    for way in ("rank 0 reads, DDP broadcasts", "rank 0 reads after wrapping"):
        between, to_undisturbed = map(float, differences(printed[0], way))
        assert between > 1e-2 and to_undisturbed > 1e-3


@pytest.mark.slow
def test_one_rank_goes_on_with_the_same_samples(printed):
    assert float(differences(printed[0], "1 rank resumes")[1]) > 1e-3
    assert differences(printed[0], "1 rank resumes, no dropout") == ("-", "below 1e-06")


@pytest.mark.slow
def test_the_file_is_whole_and_loads_with_the_default(printed):
    folder = printed[1]
    state = torch.load(folder / "checkpoint.pt")
    assert state.keys() == {"model", "optimizer", "schedule", "done", "random"}
    assert state["done"] == 25 and len(state["random"]) == 2
    assert not torch.equal(*state["random"])
    assert not any(name.startswith("module.") for name in state["model"])
    assert not list(folder.glob("*.tmp"))


@pytest.mark.slow
def test_the_page_shows_what_is_printed(printed, reader):
    _, *tables = re.findall(r"<!-- prints -->\n\n```\n(.+?)```", PAGE, re.DOTALL)
    assert len(tables) == 2
    assert tables[0] in printed[0].out
    position = run(reader, POSITION).out
    assert tables[1] in position
    assert ("is not installed: pip install torchdata" in position) == (not HAS_TORCHDATA)


# ---------------------------------------------------------------- position in the epoch


def test_ways_to_begin_within_an_epoch(called):
    result = called(POSITION)
    rows = dict(re.findall(r"^(\w.+?) {2,}(\d+  (?:yes|no) .*)$", result.out, re.MULTILINE))
    found = {way: row.split() for way, row in rows.items()}
    assert found["skip the batches (islice)"] == ["502", "yes", "yes", "yes"], result
    assert found["begin the sampler later"] == ["302", "yes", "yes", "no"], result


@pytest.mark.skipif(not HAS_TORCHDATA, reason="pip install torchdata")
def test_the_stateful_loader_answers_as_the_sampler_does(called):
    result = called(POSITION)
    assert re.search(r"^StatefulDataLoader +302  yes +yes +no$", result.out, re.MULTILINE), result


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


def test_what_torch_load_accepts():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    parts = (model, optimizer, schedule, torch.amp.GradScaler("cpu"))
    loaded([part.state_dict() for part in parts])
    loaded([1, 0.5, "text", None, (1,), {"a": {1}}, torch.get_rng_state(), random.getstate()])


@pytest.mark.parametrize(
    ("thing", "saved_instead"),
    [
        (argparse.Namespace(lr=0.1), vars),
        (Path("model.pt"), str),
        (np.float64(0.5), np.float64.item),
        (np.random.get_state(), None),
        (nn.Linear(1, 1), nn.Linear.state_dict),
    ],
    ids=["Namespace", "Path", "np.float64", "np.random.get_state", "model"],
)
def test_what_torch_load_refuses(request, thing, saved_instead):
    with pytest.raises(Exception, match="Weights only load failed"):
        loaded(thing)
    if saved_instead:
        loaded(saved_instead(thing))
    name = request.node.callspec.id
    assert "a whole model" in PAGE if name == "model" else name in PAGE

"""docs/uneven_inputs.md: what the script prints, and what the page says about it."""

import importlib
import math
import re

import pytest
from conftest import ROOT, Reader, docstring_commands
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

pytestmark = pytest.mark.slow

SCRIPT = "docs/examples/uneven.py"
PAGE = (ROOT / "docs/uneven_inputs.md").read_text()
JOIN = """
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main(first, by_world_size):  # the other rank takes a second step, alone; a gradient is 1
    rank = dist.get_rank()
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1))
    ddp_model = DistributedDataParallel(model)
    with Join([ddp_model], divide_by_initial_world_size=by_world_size):
        for step in range(1 if rank == first else 2):
            x = torch.tensor([[-1.0], [1.0]]) + 10 * rank + step
            model.zero_grad()
            ddp_model(x).mean().backward()
    bias, mean = model[1].bias.grad.item(), model[0].running_mean.item()
    print(f"{first} first, {by_world_size}, rank {rank}: gradient {bias}, mean {mean}\\n", end="")


dist.init_process_group("gloo")
for first in (0, 1):
    main(first, by_world_size=True)
    main(first, by_world_size=False)
dist.destroy_process_group()
"""


def run(folder, data, command):
    reader = Reader(folder, data)
    return reader.run(command, timeout=170, OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def printed(tmp_path_factory, small_data):
    """What the first command of the docstring prints -> {way: [steps, samples, differ, ends]}"""
    result = run(tmp_path_factory.mktemp("uneven"), small_data, docstring_commands(SCRIPT)[0])
    assert result.code == 0, result
    row = re.compile(
        r"^(\w[\w, ]*?) +\((\d+), (\d+)\) +([\d,]+) +([-e+\d]+)  (\w+), (\w+)$", re.MULTILINE
    )
    return result, {name: rest for name, *rest in row.findall(result.out)}


def test_what_each_way_trains_on(printed):
    result, ways = printed
    assert {way: (a, b, samples) for way, (a, b, samples, *_) in ways.items()} == {
        "stop": ("22", "22", "1,996"),
        "repeat": ("24", "24", "2,106"),
        "join": ("24", "22", "2,006"),
        "join, broadcast": ("24", "22", "2,006"),
        "join, throw": ("22", "22", "1,996"),
        "bare": ("22", "22", "1,996"),
    }, result


def test_join_leaves_the_momentum_and_so_the_weights_different(printed):
    _, ways = printed
    differ = {way: float(values[3]) for way, values in ways.items() if way != "bare"}
    assert differ.pop("join") > 1e-2
    assert set(differ.values()) == {0.0}


def test_the_bare_loop_hangs_in_the_second_epoch(printed):
    result, ways = printed
    assert ways["bare"][4:] == ["RuntimeError", "ok"]
    (message,) = re.findall(r"rank 0, bare: (.+)", result.out)
    expected = ("Timed out waiting 5000ms for", "Application timeout caused pair closure")
    assert any(text in message for text in expected), message
    assert all(text in PAGE for text in expected), "a reader searches for it"
    assert "rank 1, bare" not in result.out


def test_throwing_ends_the_loop_on_all_ranks(printed):
    result, ways = printed
    assert ways["join, throw"][4:] == ["RuntimeError"] * 2
    assert result.out.count("rank 1, join, throw: Rank 1 exhausted all inputs.") == 2
    assert result.out.count("rank 0, join, throw: Detected at least one rank that exhausted") == 2


def test_the_page_shows_what_is_printed(printed):
    (rows,) = re.findall(r"<!-- prints -->\n\n```\n(.+?)```", PAGE, re.DOTALL)
    assert rows in printed[0].out


def test_a_collective_of_ones_own_under_join_aborts(tmp_path, small_data):
    assert "join, all_reduce" in docstring_commands(SCRIPT)[1]
    result = run(tmp_path, small_data, docstring_commands(SCRIPT)[1])
    assert result.code == 1 and "collective mismatch in your code?" in result.err, result


def test_the_average_and_the_buffers_under_join(reader):
    (reader.folder / "join.py").write_text(JOIN)
    result = reader.run("torchrun --standalone --nproc-per-node 2 join.py", OMP_NUM_THREADS="1")
    assert result.code == 0, result
    for first, last, mean in ((0, 1, "11.0"), (1, 0, "1.0")):
        for by_world_size, gradient in ((True, "0.5"), (False, "1.0")):
            start = f"{first} first, {by_world_size}, rank"
            assert f"{start} {last}: gradient {gradient}, mean {mean}" in result.out
            assert f"{start} {first}: gradient 1.0, mean {mean}" in result.out


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
    stream = importlib.import_module("docs.examples.uneven").Stream()
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

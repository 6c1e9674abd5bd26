"""docs/examples/accumulation.py, accumulation_time.py and loss_normalization.py on two ranks."""

import importlib
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: docs/backends.md says why
import torch.nn.functional as F
from conftest import docstring_commands
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common

pytestmark = pytest.mark.slow

RANKS, MICRO_BATCHES = 2, {"accumulation": 4, "loss_normalization": 3}


def start(reader, script):
    """Run a script of docs/examples as its docstring says -> the lines that it prints."""
    (command,) = docstring_commands(f"docs/examples/{script}.py")
    assert command == f"torchrun --standalone --nproc-per-node 2 docs/examples/{script}.py"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return result.out.splitlines()


def table(lines):
    """{the text before two spaces and a number: [the cells after it]}"""
    found = [re.fullmatch(r"(\S.*?)  +(\d.*)", line) for line in lines]
    return {row[1]: re.split(r"  +", row[2]) for row in found if row}


def test_no_sync_all_reduces_once_and_trains_the_same_weights(reader):
    ways = table(start(reader, "accumulation"))
    kib = 2 * (64 * 64 + 64) * 8 / 1024
    right = ["1.0", f"{kib:.1f}", "below 1e-15", "0"]
    wasteful = ["4.0", f"{MICRO_BATCHES['accumulation'] * kib:.1f}", "below 1e-15", "0"]
    assert ways.pop("no_sync for all but the last") == right
    assert ways.pop("without no_sync") == wasteful
    assert ways.pop("no_sync around backward only") == wasteful
    assert ways.pop("no_sync around forward only") == right, "forward decides"
    buckets, sent, *distances = ways.pop("no_sync for the last, too")
    assert float(buckets) == float(sent) == 0 and not ways
    assert all(float(distance) > 1e-4 for distance in distances), "the ranks drift apart"


@pytest.mark.slow
def test_steps_with_and_without_no_sync_are_timed(reader):
    lines = start(reader, "accumulation_time")
    assert [line.split()[0] for line in lines[-4:]] == ["1", "2", "4", "8"]
    assert all(line.count(" to ") == 2 for line in lines[-4:])


def test_only_the_tokens_of_all_ranks_and_micro_batches_give_the_right_gradient(reader):
    lines = start(reader, "loss_normalization")
    ways = table(lines)
    for name in ("sum * ranks / all tokens", "sum, later gradients * ranks / all tokens"):
        assert ways.pop(name) == ["1.000x", "1.000x", "below 1e-14", "0.0°"]
    numbers = {name: [float(cell.strip("x°")) for cell in ways[name]] for name in ways}
    equal, length, error, angle = numbers.pop("sum / all tokens")
    assert equal == length == error == 1 / RANKS and angle == 0
    factor = RANKS * MICRO_BATCHES["loss_normalization"]
    times = numbers.pop("mean * ranks")
    usual = numbers["mean / micro-batches"]
    assert times[0] == factor and times[1] == pytest.approx(factor * usual[1], rel=1e-3)
    assert times[3] == usual[3], "the factor does not change the direction"
    assert len(numbers) == 3
    for equal, _, error, angle in numbers.values():
        assert equal == 1 and error > 0.5 and angle > 30, "right for equal counts only"
    assert lines[-1] == "mean of a micro-batch without tokens: nan"


def gradient_of_unequally_many_micro_batches():
    """On a rank: three micro-batches on rank 0, one on rank 1 -> how far the gradient is off."""
    script = importlib.import_module("docs.examples.loss_normalization")
    cpu, tokens = torch.device("cpu"), ([40, 8, 3], [6])
    data = [script.draw(rank, own, cpu) for rank, own in enumerate(tokens)]
    model = torch.nn.Embedding(script.WORDS, script.WORDS).double()
    x, y = (torch.cat(parts) for parts in zip(*data[0], *data[1]))
    F.cross_entropy(model(x), y, ignore_index=script.PADDING).backward()
    expected, model.weight.grad = model.weight.grad, None
    script.accumulate(DistributedDataParallel(model), data[dist.get_rank()])
    return (model.weight.grad - expected).abs().max().item()


def test_ranks_may_have_unequally_many_micro_batches():
    torch.manual_seed(0)
    assert max(common.on_ranks(2, gradient_of_unequally_many_micro_batches)) < 1e-15

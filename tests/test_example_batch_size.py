"""docs/training/examples/batch_size.py, and the figures that its page shows."""

import importlib
import json
import re
import statistics

import pytest
import torch
from conftest import ROOT
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common, run_all
from lib import records

example = importlib.import_module("docs.training.examples.batch_size")

PAGE = ROOT / "docs/training/batch_size_and_learning_rate.md"
RESULTS = json.loads((ROOT / "benchmarks/results/batch_size.json").read_text())


# ---------------------------------------------------------------- the script


def weights_of(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def trained(ranks=1, rank=0, accumulate=1):
    """Weights after ten steps of 24 random images, in float64."""
    digits = common.digits(48)
    images, labels = digits.tensors
    images = images[:, None].double() / 255
    model = example.make_model(seed=1).double()
    optimizer = example.OPTIMIZERS["sgd"](model.parameters())
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    rates = example.schedule(0.01, 0.04, 10)
    example.train(wrapped, optimizer, rates, images, labels, 24, accumulate, rank, ranks)
    return weights_of(model)


def on_rank(accumulate):
    return trained(2, torch.distributed.get_rank(), accumulate)


@pytest.mark.slow
def test_only_the_effective_batch_matters_not_how_it_is_split():
    """24 images, 3 x 8 images, 2 ranks x 12 images, 2 ranks x 3 x 4 images: the same weights."""
    expected = trained()
    assert (trained(accumulate=3) - expected).abs().max() < 1e-14
    for accumulate in (1, 3):
        for weights in on_ranks(2, on_rank, accumulate):
            assert (weights - expected).abs().max() < 1e-14
    at_start = weights_of(example.make_model(seed=1).double())
    assert (expected - at_start).abs().max() > 1e-3, "the steps do something"


# ---------------------------------------------------------------- the page


def test_the_table_of_accuracies_on_the_page_is_that_of_the_results():
    page, lines = PAGE.read_text(), {}
    for row in RESULTS["settings"]:
        percent = [100 * value for value in row["accuracy"]]
        cell = f"{statistics.mean(percent):.1f} ({min(percent):.1f}-{max(percent):.1f})"
        lines.setdefault((row["optimizer"], row["rule"]), []).append(cell)
    shown = [key for key in lines if key[1] not in ("base", "other rate")]
    assert len(shown) == 7
    for optimizer, rule in shown:
        title = {"sgd": "SGD", "adam": "Adam"}[optimizer]
        cells = lines[optimizer, "base"] + lines[optimizer, rule]
        assert f"| {title}, {rule} | {' | '.join(cells)} |\n" in page


def test_weak_and_strong_scaling_on_the_page_are_those_of_the_records():
    page, rows = PAGE.read_text(), run_all.committed()
    one, two = (records.find(rows, name) for name in ("01_baseline", "03_ddp_spawn"))
    small = records.find(rows, "01_baseline", batch_size=120)
    pairs = {
        "strong, 240": (two, one),
        "strong, 120": (records.find(rows, "03_ddp_spawn", batch_size=120), small),
        "weak, 120": (two, small),
    }
    for name, (row, base) in pairs.items():
        found = records.ratios(row, base)
        middle = statistics.median(found)
        assert re.search(
            rf"\| {name}.*\| {middle:.2f} \({min(found):.2f} to {max(found):.2f}\) \|", page
        ), name

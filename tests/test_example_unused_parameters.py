"""docs/unused_parameters.md: what the scripts print, and what the page says about it."""

import importlib
import re

import pytest
import torch
import torch.nn as nn
from conftest import ROOT, Reader, docstring_commands

SCRIPT = "docs/examples/unused_parameters.py"
PAGE = (ROOT / "docs/unused_parameters.md").read_text()
ERROR = "Expected to have finished reduction in the prior iteration"
CHANGED = "Your training graph has changed in this iteration"


def command(script):
    (line,) = docstring_commands(script)
    return line


@pytest.fixture(scope="module")
def printed(tmp_path_factory, small_data):
    reader = Reader(tmp_path_factory.mktemp("unused"), small_data)
    result = reader.run(command(SCRIPT), timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "gradients", "numbers", "ends"),
    [
        ("no flag, only a", "1.0, 3.0", "0", "error in step 2, error in step 2"),
        ("no flag, all on rank 0", "-, 3.0", "4", "timeout in step 1, error in step 2"),
        ("find_unused_parameters", "2.5, 2.5", "4", "ok, ok"),
        ("static_graph", "2.5, 2.5", "4", "ok, ok"),
        ("static_graph, then b", "2.0, 2.0", "4", "error in step 2, error in step 2"),
        ("b, c frozen before DDP", "2.0, 2.0", "2", "ok, ok"),
        ("b, c frozen after DDP", "1.0, 3.0", "0", "error in step 2, error in step 2"),
    ],
)
def test_each_way(printed, way, gradients, numbers, ends):
    row = rf"^{way} {{2,}}{gradients} +{numbers} +{ends}$"
    assert re.search(row, printed.out, re.MULTILINE), printed


@pytest.mark.slow
def test_the_messages(printed):
    for rank in (0, 1):
        assert f"rank {rank}, no flag, only a: {ERROR}" in printed.out
        assert f"rank {rank}, b, c frozen after DDP: {ERROR}" in printed.out
        assert f"rank {rank}, static_graph, then b: {CHANGED}" in printed.out
    assert f"rank 1, no flag, all on rank 0: {ERROR}" in printed.out
    assert ERROR in " ".join(PAGE.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "own", "averaged"),
    [
        ("trunk", "2.0, 3.0", "2.5, 2.5"),
        ("a", "1.0, 3.0", "2.0, 2.0"),
        ("b", "1.0, None", "0.5, 0.5"),
        ("c", "None, None", "None, None"),
    ],
)
def test_the_gradient_is_the_sum_of_the_own_ones_by_the_world_size(printed, name, own, averaged):
    assert re.search(rf"^{name} +{own} +{averaged}$", printed.out, re.MULTILINE), printed
    assert "(world size): 0e+00" in printed.out


def test_one_process_with_the_whole_batch_computes_the_same():
    model = importlib.import_module("docs.examples.unused_parameters").Model()
    first, second = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    ((model(first, "ab") + model(second, "a")) / 2).backward()
    assert model.gradients() == [2.5, 2.0, 0.5, None]


def test_an_optimizer_skips_none_but_not_zeros():
    for gradient, moves in ((None, False), (torch.zeros(1), True)):
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = gradient
        torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1).step()
        assert (parameter.item() != 1.0) == moves


@pytest.mark.slow
def test_the_page_shows_what_is_printed(printed):
    tables = re.findall(r"<!-- prints -->\n\n```\n(.+?)```", PAGE, re.DOTALL)
    assert len(tables) == 2 and all(table in printed.out for table in tables), printed


@pytest.mark.slow
def test_the_cost_is_measured_for_the_three_ways(reader):
    script = "docs/examples/unused_parameters_cost.py"
    result = reader.run(command(script), timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    rows = re.findall(r"^(\S.*?) +([\d.]+) +([\d.]+) +([\d.]+)$", result.out, re.MULTILINE)
    assert [row[0] for row in rows] == [
        "no flag",
        "find_unused_parameters=True",
        "static_graph=True",
    ]
    for _, median, least, most in rows:
        assert 0 < float(least) <= float(median) <= float(most)
    assert all(name in PAGE for name, *_ in rows)

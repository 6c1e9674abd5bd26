"""The benchmarks run, and print the tables that their page shows. No time is tested."""

import sys

import pytest
from conftest import ROOT

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="ties threads to cores")


def bench(reader, command):
    result = reader.run(f"python {ROOT}/benchmarks/{command}")
    assert result.code == 0, result
    return [line.split("  ")[0].strip() for line in result.out.splitlines()]


def test_what_the_stopwatch_costs(reader):
    assert any("microseconds" in line for line in bench(reader, "stopwatch.py"))


@pytest.mark.slow
def test_the_demos_way_against_stage_1(reader):
    rows = bench(reader, f"demo_way.py --data {reader.env['MNIST_ROOT']} --repeats 1")
    assert [row.partition(":")[0] for row in rows] == ["run 1", "run 1", "medians"]


@pytest.mark.slow
def test_ddp_by_hand_against_ddp(reader):
    rows = bench(reader, "ddp_by_hand.py --rounds 1")
    assert [row.partition(",")[0] for row in rows[2:]] == ["ConvNet", *["wide_net"] * 3]


@pytest.mark.slow
@LINUX
def test_two_ranks_against_their_limit(reader):
    rows = bench(reader, "limit.py --batch-size 4 --rounds 2 --steps 2")
    page = (ROOT / "benchmarks/README.md").read_text()
    assert len(rows) == 9 and all(f"\n{row}" in page.replace("\n  ", "\n") for row in rows[2:])


@LINUX
@pytest.mark.parametrize(
    "flags", ["--batch-size 3", pytest.param("--rounds 1", marks=pytest.mark.slow)]
)
def test_bad_flags_of_a_benchmark(reader, flags):
    result = reader.run(f"python {ROOT}/benchmarks/limit.py {flags}")
    assert result.code == 2 and "has to be even" in result.err, result

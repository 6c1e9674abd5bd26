"""benchmarks/frameworks.py: all ways do equal work and are in its table. No time is tested."""

import json
from importlib.util import find_spec

import pytest

TINY = "--batch-size 4 --rounds 2 --steps 2"
NEEDS_BOTH = pytest.mark.skipif(
    not find_spec("accelerate") or not find_spec("lightning_fabric"),
    reason="pip install accelerate lightning-fabric",
)


@NEEDS_BOTH
@pytest.mark.slow
def test_all_ways_compute_the_same_and_are_in_the_table(reader):
    result = reader.run(f"python -m benchmarks.frameworks {TINY} --results results")
    assert result.code == 0, result
    about, equality, *table = result.out.splitlines()
    assert "accelerate 1." in about and "lightning-fabric 2." in about
    assert equality.startswith("all ways that communicate compute the same")
    results = json.loads((reader.folder / "results/frameworks.json").read_text())
    assert results["largest_difference"] < 1e-6 and len(results["seconds"]) == 8
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in results["seconds"].values())
    assert [line.split("  ")[0] for line in table[2:]] == list(results["seconds"])

"""benchmarks/frameworks.py: all ways do equal work and are in its tables. No time is tested."""

import json
from importlib.util import find_spec

import pytest
from conftest import ROOT

SCRIPT = ROOT / "benchmarks/frameworks.py"
TINY = "--batch-size 4 --rounds 2 --steps 2"
WAYS = ["no communication (upper bound)", "ours: stage 3", "ours, DDP as it comes"]
WAYS += ["Accelerate", "Accelerate, no buffers", "Fabric", "Fabric, no buffers", "ours again"]
NEEDS_BOTH = pytest.mark.skipif(
    not find_spec("accelerate") or not find_spec("lightning_fabric"),
    reason="pip install accelerate lightning-fabric",
)
TINY_WAYS = ["plain DDP", "ours: stage 3", "Accelerate", "Fabric"]
MUTANT = """
from benchmarks import frameworks

frameworks.WAYS["Fabric"] = frameworks.WAYS[frameworks.BOUND]
if __name__ == "__main__":
    frameworks.main()
"""


@NEEDS_BOTH
@pytest.mark.slow
def test_all_ways_compute_the_same_and_are_in_the_tables(reader):
    result = reader.run(f"python {SCRIPT} {TINY} --results results")
    assert result.code == 0, result
    assert not result.err, result  # neither framework has anything to warn of
    about, equality, *tables = result.out.splitlines()
    assert "accelerate 1." in about and "lightning-fabric 2." in about
    assert equality.startswith("all ways that communicate compute the same")
    rows = [line.split("  ")[0] for line in tables if line and not line.startswith(" ")]
    assert rows == [*WAYS, "microseconds per step", *TINY_WAYS]

    results = json.loads((reader.folder / "results/frameworks.json").read_text())
    assert results["largest_difference"] < 1e-6
    assert list(results["seconds"]) == WAYS and list(results["tiny_seconds"]) == TINY_WAYS
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in results["seconds"].values())


@NEEDS_BOTH
@pytest.mark.slow
def test_a_way_that_does_not_average_is_noticed(reader):
    (reader.folder / "mutant.py").write_text(MUTANT)
    result = reader.run(f"python mutant.py {TINY}", PYTHONPATH=str(ROOT))
    assert result.code == 1 and "do not compute the same" in result.err, result


@pytest.mark.parametrize("package", ["accelerate", "lightning_fabric"])
def test_a_missing_package(reader, package):
    (reader.folder / f"{package}.py").write_text("raise ImportError('not installed')")
    result = reader.run(f"python {SCRIPT}", PYTHONPATH=str(reader.folder))
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert "pip install accelerate lightning-fabric" in result.err


@NEEDS_BOTH
@pytest.mark.parametrize(
    "flags", ["--results a_file/folder", pytest.param("--rounds 1", marks=pytest.mark.slow)]
)
def test_bad_flags(reader, flags):
    (reader.folder / "a_file").touch()
    result = reader.run(f"python {SCRIPT} {flags}")
    assert result.code == 2 and flags.split()[0] in result.err.splitlines()[-1], result

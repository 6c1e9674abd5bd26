"""docs/which.md: its figures are those of the benchmark, and it has a row for each way."""

import json
import re
import statistics

from conftest import ROOT

PAGE = " ".join((ROOT / "docs/which.md").read_text().split())


def test_figures_of_the_frameworks():
    seconds = json.loads((ROOT / "benchmarks/results/frameworks.json").read_text())["seconds"]
    ours = seconds["ours: stage 3"]

    def times(way):
        return f"{statistics.median(a / b for a, b in zip(seconds[way], ours)):.2f}"

    as_they_come = f"Accelerate takes {times('Accelerate')} and Fabric {times('Fabric')} times"
    assert as_they_come in PAGE
    without = [times(f"{name}, no buffers") for name in ("Accelerate", "Fabric")]
    assert f"Without it they take {without[0]} and {without[1]}" in PAGE


def test_each_framework_has_its_own_documentation_as_source():
    rows = re.findall(r"\| (Accelerate|Lightning Fabric|Lightning|DeepSpeed|Ray Train) \|", PAGE)
    assert len(rows) == 5
    links = set(re.findall(r"\]\[([\w-]+)\]", PAGE))
    assert links == set(re.findall(r"\[([\w-]+)\]: https://", PAGE))

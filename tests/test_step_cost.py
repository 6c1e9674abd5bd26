"""What a step costs: the rows of the page, its formula bucket by bucket, and in JavaScript."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import at_scale, scaling

NODE = shutil.which("node")
PAGE = (ROOT / "docs/eight_gpus.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "docs/site/static/step_cost.js"
FIELD = (ROOT / "docs/site/static/step_cost_page.js").read_text(encoding="utf-8")
MB, MS = 1e6, 1e-3


def test_the_rows_of_the_page():
    for line in re.findall(r"^\| .* GB/s \| \d+ ms \| .*", PAGE, re.MULTILINE):
        algbw, all_reduces = re.search(r"\| (\d+) GB/s \| (\d+) ms", line).groups()
        busbw = float(algbw) * 1e9 * 2 * 7 / 8
        cost = scaling.step_cost(4 * 335 * MB, busbw, 8, 50 * MS, 100 * MS, 10 * MS)
        assert f"{cost.all_reduces / MS:.0f}" == all_reduces
        exposed = re.search(r"least (\d+) ms|bucket's ([\d.]+) ms", line)
        digits = 0 if exposed[1] else 1
        assert f"{cost.exposed / MS:.{digits}f}" == (exposed[1] or exposed[2])
        assert cost.step == pytest.approx(160 * MS + cost.exposed)
        assert cost.hidden + cost.exposed == pytest.approx(cost.all_reduces)
    assert PAGE.count("170 GB/s | 8 ms") == PAGE.count("5 GB/s | 268 ms") == 1


SIZES = st.floats(0.1 * MB, 1e4 * MB)
SECONDS = st.floats(0.001, 10)


@given(SIZES, st.floats(1e8, 1e12), st.integers(2, 1024), SECONDS)
def test_the_formula_is_that_of_buckets_that_backward_fills_evenly(size, busbw, ranks, backward):
    cost = scaling.step_cost(size, busbw, ranks, 0, backward, 0)
    buckets, rest = [min(scaling.FIRST_BUCKET, size)], size
    while (rest := rest - buckets[-1]) > 0:
        buckets.append(min(scaling.BUCKET, rest))
    full, averaging, filled = [], [], 0
    for bucket in buckets:
        filled += bucket
        full.append(backward * filled / size)
        averaging.append(scaling.ring(ranks, bucket, 0, busbw))
    assert cost.all_reduces == pytest.approx(sum(averaging))
    # Whole buckets: an all-reduce starts a bucket later, and the last bucket may be a small one.
    one = min(scaling.BUCKET, size)
    near = scaling.ring(ranks, one, 0, busbw) + backward * one / size
    assert scaling.overlapped(full, averaging) == pytest.approx(cost.step, abs=1.001 * near)


def test_limits():
    setting = (100 * MB, 10e9, 1, 0.1, 0.2, 0.01)
    assert scaling.step_cost(*setting) == (0, 0, 0, pytest.approx(0.31))
    assert scaling.speedup(*setting) == scaling.speedup(*setting, strong=True) == 1
    small = scaling.step_cost(1000, 10e9, 8, 0.1, 0.2, 0.01)
    assert small.hidden == 0, "one bucket"
    weak, strong = (scaling.speedup(100 * MB, 1e15, 8, 0.1, 0.2, 0, way) for way in (False, True))
    assert weak == pytest.approx(8, rel=1e-4) and strong == pytest.approx(8, rel=1e-4)
    assert scaling.speedup(100 * MB, 1e15, 1024, 0.1, 0.2, 0.3, strong=True) < 2, "the optimizer"


WRONG = {
    "ranks": [0, -1, 2.5],
    "gradients": [0, -1, 1e999],
    "busbw": [0, -1, 1e999],
    "backward": [0, -1, 1e999],
    "forward": [-1, 1e999],
    "optimizer": [-1, 1e999],
}
NAMES = ["gradients", "busbw", "ranks", "forward", "backward", "optimizer"]
RIGHT = dict(zip(NAMES, (100 * MB, 10e9, 8, 0.1, 0.2, 0.01)))


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=name):
            scaling.step_cost(**RIGHT | {name: value})


COMPUTE = """const { stepCost, speedup } = require(process.argv[1]);
const { right, wrong } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const fails = (setting) => { try { stepCost(setting); } catch (error) { return error.name; } };
const row = (one) => [...Object.values(stepCost(one)), speedup(one), speedup(one, true)];
console.log(JSON.stringify([right.map(row), wrong.map(fails)]));"""


@pytest.mark.skipif(NODE is None, reason="node")
def test_both_languages_compute_the_same():
    settings = []
    for size in (1e3, 20 * MB, 102 * MB, 2600 * MB):
        for busbw in (1.25e9, 12.5e9, 298e9):
            for ranks in (1, 2, 3, 8, 64, 1000, 1024):
                for seconds in ((0, 0.001, 0), (0.05, 0.1, 0.01), (1, 3, 0)):
                    settings.append(dict(zip(NAMES, (size, busbw, ranks, *seconds))))
    # JSON has no infinity: JavaScript gets one from 1e999.
    wrong = [RIGHT | {name: value} for name, values in WRONG.items() for value in values]
    text = json.dumps({"right": settings, "wrong": wrong}).replace("Infinity", "1e999")
    command = [NODE, "-e", COMPUTE, str(SCRIPT)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows, failed = json.loads(done.stdout)
    assert failed == ["RangeError"] * len(wrong)
    for setting, row in zip(settings, rows, strict=True):
        ways = [scaling.speedup(**setting, strong=strong) for strong in (False, True)]
        assert row == pytest.approx([*scaling.step_cost(**setting), *ways], rel=1e-12), setting


def test_the_menus_have_the_figures_of_the_pages():
    timings = (ROOT / "docs/reading_timings.md").read_text(encoding="utf-8")
    links = dict(re.findall(r'^  "(.+)": \{ busbw: ([\d.]+)', FIELD, re.MULTILINE))
    assert f"[{links['NVLink, 8 H200']} GB/s]" in timings
    assert f"[{links['nodes of 8 B200, 8 x 400 Gbit/s']} GB/s]" in timings
    for name, busbw in links.items():
        if rate := re.fullmatch(r"\w+, (\d+) Gbit/s", name):
            assert float(busbw) == int(rate[1]) / 8
    assert float(links["PCIe through host memory, say"]) * 8 / 14 == 5, "GB/s of algbw on the page"
    shares = []
    for row in re.findall(r"^\|.* SXM \|.*\| 100 / (.+?) % \|", timings, re.MULTILINE):
        shares += [int(share) / 100 for share in row.split(" / ")]
    least, most = map(float, re.search(r"published: \[([\d.]+), ([\d.]+)\]", FIELD).groups())
    assert (least, most) == (min(shares), max(shares))
    shapes, _ = at_scale.count("resnet50")
    millions = sum(shape.numel() for shape in shapes) / MB
    assert f'"ResNet-50": {millions:.1f},' in FIELD

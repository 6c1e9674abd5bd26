"""The prediction: its fits. Its formulas are compared with what ranks send by notebook 05_ring."""

import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

scaling = importlib.import_module("benchmarks.scaling")


@settings(deadline=None)
@given(st.floats(0, 10), st.floats(1e-9, 10))
def test_a_line_is_found_again(a, b):
    xs = [1.0, 10.0, 100.0, 1000.0]
    found = scaling.fit_line(xs, [a + b * x for x in xs])
    assert found == (pytest.approx(a, abs=1e-6), pytest.approx(b, rel=1e-4, abs=1e-9))


def test_ranks_that_share_cores_take_turns():
    computing = {images: images / 1000 for images in scaling.FIT_IMAGES}
    averaging = {size: 0.002 + size / 1e9 for size in scaling.FIT_BYTES}
    together = 0.002 + scaling.MODEL_BYTES / 1e9
    batches = (2 * scaling.MIDDLE, *scaling.BATCHES)
    step = {batch: batch / 2 / 1000 + together + 0.001 for batch in batches}
    run = {"computing": computing, "averaging": averaging, "step": step}
    more = {"averaging": averaging, "step": step | {4 * scaling.MIDDLE: 2 * scaling.MIDDLE / 1000}}
    two, four = (scaling.fit(n, {2: run, 4: more}, cores=2) for n in (2, 4))
    assert (two["alpha"], two["beta"]) == (pytest.approx(0.001), pytest.approx(1e9))
    assert [row["error"] for row in two["rows"]] == pytest.approx([0] * 5)
    assert [row["around"] for row in two["rows"]] == pytest.approx([0.001] * 5)
    # Four ranks on two cores: half the images each, but two of them on a core.
    computing_of_four = [row["computing"] for row in four["rows"]]
    assert computing_of_four == pytest.approx([row["computing"] for row in two["rows"]])


def test_computing_is_not_measured_for_the_batches_that_are_predicted():
    assert not {batch / 2 for batch in scaling.BATCHES} & {*scaling.FIT_IMAGES, scaling.MIDDLE}

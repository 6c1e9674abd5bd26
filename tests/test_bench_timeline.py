"""benchmarks/timeline.py: what it measures can be so, and how it ends. No time is tested."""

import json
import os
import signal
from itertools import chain

import pytest
from conftest import LINUX, ranks_of, wait_for

from benchmarks import timeline

pytestmark = pytest.mark.slow


def test_what_is_measured_can_be_so(reader):
    flags = "--rounds 2 --steps 2 --batch-size 12 --width 2 --bucket-cap-mb 0.1"
    command = f"python -m benchmarks.timeline {flags} --results found --traces traces"
    result = reader.run(command, timeout=170)
    assert result.code == 0, result
    results = json.loads((reader.folder / "found/buckets.json").read_text())
    printed = f"{results['about']}\n{timeline.report(results)}\n"
    assert printed == result.out, "the file has all that was printed"
    assert len(list((reader.folder / "traces").glob("rank-*.json"))) == 2
    net = timeline.make_net(2)
    assert sum(results["bucket_bytes"]) == sum(p.nbytes for p in net.parameters())
    assert list(results["rounds"]) == [timeline.ALONE, timeline.ONE, timeline.PLAIN, timeline.DRAWN]
    for way, ranks in results["rounds"].items():
        assert len(ranks) == 2 and all(len(rounds) == 2 for rounds in ranks)
        for steps in zip(*map(chain.from_iterable, ranks)):
            check_step(steps, len(results["bucket_bytes"]) if way == timeline.DRAWN else 0)


def check_step(steps, buckets):
    """The same step on all ranks: nothing comes before what it waits for."""
    for step in steps:
        laps = step["laps"]
        assert len(laps) == 6 and laps == sorted(laps) and len(step["all_reduces"]) == buckets
        leaving = [left for left, _, _ in step["all_reduces"]]
        assert leaving == sorted(leaving)
        for left, joined, done in step["all_reduces"]:
            assert laps[2] < left <= joined < done
        if buckets:  # the last bucket has the last gradient
            assert leaving[-1] > laps[3]


@LINUX
@pytest.mark.parametrize(
    ("whose", "stop", "code"),
    [("rank", signal.SIGKILL, 1), ("parent", signal.SIGTERM, 143), ("parent", signal.SIGKILL, -9)],
)
def test_a_killed_process_ends_the_run_and_leaves_none_behind(reader, whose, stop, code):
    """So it is in every benchmark that starts its ranks by on_ranks."""
    process = reader.start("python -m benchmarks.timeline --rounds 1000")
    wait_for(lambda: len(ranks_of(process)) == 2)
    os.kill(ranks_of(process)[0] if whose == "rank" else process.pid, stop)
    result = reader.finish(process)
    assert result.code == code and (whose == "parent" or "SIGKILL" in result.err), result

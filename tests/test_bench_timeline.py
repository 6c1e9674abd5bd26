"""benchmarks/timeline.py: what it measures can be so, and how it ends. No time is tested."""

import argparse
import json
import os
import signal
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from conftest import LINUX, ROOT, ranks_of, wait_for_line

from benchmarks import common, timeline

SMALL = "--rounds 2 --steps 2 --batch-size 12 --results found"


@pytest.mark.parametrize(
    ("flags", "ranks", "buckets", "says"),
    [
        ("", 2, 1, "One bucket: 0% of its all-reduce is hidden"),
        pytest.param(
            *("--slow 1 --name late", 2, 1, "Rank 1 sleeps 10 ms per batch: rank 0 waits"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("--world-size 3 --width 2 --bucket-cap-mb 0.1", 3, 3, "3 buckets: "),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_measured_can_be_so(reader, flags, ranks, buckets, says):
    result = reader.run(f"python {ROOT}/benchmarks/timeline.py {SMALL} {flags}")
    assert result.code == 0 and not result.err, result
    name = "late" if "late" in flags else "timeline"
    files = sorted(path.name for path in (reader.folder / "found").iterdir())
    assert files == [f"{name}.json", f"{name}.png"]
    results = json.loads((reader.folder / f"found/{name}.json").read_text())
    # The file has all that was printed.
    assert f"{timeline.about(results)}\n{timeline.report(results)}\n" == result.out
    assert timeline.title(results).startswith(says)
    net = timeline.make_net(results["width"])
    assert sum(results["bucket_bytes"]) == sum(p.nbytes for p in net.parameters())
    assert len(results["bucket_bytes"]) == buckets and len(results["rounds"]) == 3 + (buckets > 1)
    for way, of_ranks in results["rounds"].items():
        assert len(of_ranks) == ranks and all(len(rounds) == 2 for rounds in of_ranks)
        for steps in zip(*map(chain.from_iterable, of_ranks)):
            check_step(steps, buckets if way == timeline.DRAWN else 0)


def check_step(steps, buckets):
    """The same step on all ranks: nothing comes before what it waits for."""
    for step in steps:
        laps = step["laps"]
        assert len(laps) == 6 and laps == sorted(laps) and len(step["all_reduces"]) == buckets
        lengths = [timeline.length(step, phase) for phase in timeline.PHASES]
        assert sum(lengths) == pytest.approx(timeline.length(step, "total"))
        leaving = [left for left, _, _ in step["all_reduces"]]
        assert leaving == sorted(leaving)
        for left, joined, done in step["all_reduces"]:  # from forward's end to the averages' use
            assert laps[2] < left <= joined < done < laps[4]
        if buckets:  # the last bucket has the gradient that ends backward
            assert leaving[-1] > laps[3]
    for bucket in zip(*(step["all_reduces"] for step in steps)):
        assert {max(left for left, _, _ in bucket)} == {joined for _, joined, _ in bucket}


def test_the_picture_is_a_whole_png_as_wide_as_a_page(tmp_path):
    timeline.draw(made_up(), tmp_path / "picture")
    data = (tmp_path / "picture").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") <= 880


def made_up(late=0.0):
    """Results of two ranks, two rounds of one step; the second rank's clock is late."""
    args = argparse.Namespace(world_size=2, batch_size=2, width=1, slow=None)
    args.device_name, args.cores, args.torch = "a computer", 2, "2"
    ranks = []
    for rank, clock in enumerate((0.0, late)):
        rounds = []
        for _ in range(2):
            laps = [clock + moment for moment in (0.0, 1.0, 2.0, 5.0, 9.0, 10.0)]
            travels = [
                [clock + left, clock + done] for left, done in ((3.0, 6.0), (5.0 + rank, 8.0))
            ]
            rounds.append([{"laps": laps, "all_reduces": travels}])
        rounds = {way: rounds for way in (timeline.ONE, timeline.PLAIN, timeline.DRAWN)}
        ranks.append({"rounds": json.loads(json.dumps(rounds)), "bucket_bytes": [8, 4]})
        ranks[-1]["equal"] = True
    return timeline.assemble(args, ranks)


def test_time_in_flight_is_not_counted_twice():
    results = made_up()
    (first,), (second,) = (rounds[0] for rounds in results["rounds"][timeline.DRAWN])
    assert timeline.travel_and_hidden(first) == (5.0, 2.0)  # 3 to 6 and 5 to 8; backward ends at 5
    assert timeline.waits_for_others(first) == 1.0 and timeline.waits_for_others(second) == 1.0
    assert [timeline.figures(results, rank)["last"] for rank in (0, 1)] == [0, 1]


def test_clocks_that_differ_are_noticed():
    with pytest.raises(SystemExit, match="clocks differ"):
        made_up(late=100.0)


def honest_and_other_hooks():
    """On a rank: do the hook, and two that are wrong, pass for plain DDP?"""
    args = argparse.Namespace(width=1, bucket_cap_mb=0.01)
    found, honest = [], timeline.average_and_note
    for hook in (honest, sum_only, stay_at_home):
        timeline.average_and_note = hook
        found.append(timeline.equals_ddp(args))
    return found


def sum_only(notes, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def stay_at_home(notes, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def test_a_hook_that_changes_the_gradients_is_found_out():
    found = common.on_ranks(3, honest_and_other_hooks)  # 1/3 is no binary fraction
    assert found == [[True, False, False]] * 3


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--batch-size 3", "--batch-size 3 is not divisible by 2 ranks"),
        ("--slow 2", "--slow 2: the ranks are 0 to 1"),
        ("--name a/b", "--name a/b: a file name"),
        ("--world-size 1", "--world-size 1: at least 2"),
        ("--bucket-cap-mb 0", "--bucket-cap-mb 0.0: at least 0.001"),
        ("--steps 0", "--steps 0: at least 1"),
        (f"--results {__file__}", "File exists"),
    ],
)
def test_bad_flags(called, flags, says):
    result = called("benchmarks/timeline.py", flags)
    assert result.code == 2 and says in result.err, result


@LINUX
@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_leaves_no_process_behind(reader):
    process = reader.start(f"python {ROOT}/benchmarks/timeline.py --rounds 1000")
    wait_for_line(process, start="2 ranks")
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    result = reader.finish(process, timeout=30)
    assert result.code == 1 and "SIGKILL" in result.err, result

"""When is each bucket all-reduced, and how much of that is hidden behind backward? A timeline.

Two ranks take steps of DDP under torch.profiler. `record_function` names the parts of a step; the
all-reduces are in the trace by themselves ("gloo:all_reduce", with NCCL "nccl:all_reduce"). You can
do the same in a script of your own: --traces writes a file per rank that https://ui.perfetto.dev
opens. The ranks of one machine share its clock, so their traces can be laid side by side.

In the same rounds run, by turns, the same steps without communication, with all gradients in one
bucket (no overlap), and with DDP as it is, without the profiler: what overlap brings, and what
recording costs. The notebook of stage 3 draws the round whose time is nearest to the median.

    python -m benchmarks.timeline
    python -m benchmarks.timeline --width 1 --batch-size 120 --traces traces
"""

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")

PHASES = ("data", "forward", "backward", "exposed", "optimizer")
ALONE, ONE, PLAIN, DRAWN = "no communication", "DDP, one bucket", "DDP", "DDP, recorded"
ALL_REDUCE, LAST = "gloo:all_reduce", "last gradient"


def main() -> None:
    parser = common.flags(__doc__, batch_size=24, rounds=15, steps=3)
    add = parser.add_argument
    add("--width", type=int, default=4, help="times the ConvNet's channels (4)")
    add("--bucket-cap-mb", type=float, default=0.2, help="MiB that fill a bucket (0.2)")
    add("--traces", type=Path, metavar="FOLDER", help="write the last round's traces there")
    least = {"batch_size": 2, "rounds": 2, "steps": 1, "width": 1, "bucket_cap_mb": 0.001}
    args = common.parse(parser, **least)
    if args.batch_size % 2:
        parser.error("--batch-size has to be even")
    if args.traces:
        try:
            args.traces.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--traces {args.traces}: {error.strerror}")
    about = f"2 ranks, {args.batch_size} images per step, ConvNet with {args.width} times the "
    about += f"channels, {common.about()}"
    results = {"about": about} | assemble(common.on_ranks(2, measure, args))
    common.show(args, "buckets", results, report, indent=None)


# ---------------------------------------------------------------- on a rank


def measure(args: argparse.Namespace) -> dict:
    """On a rank -> {"rounds": {way: [[step, ...] of each round]}, "bucket_bytes": [...]}

    A step is {"laps": [its start, and the end of each phase], "all_reduces": [[left, done] of each
    bucket]}, in milliseconds. The first step of a round follows a barrier, and is left out.
    """
    loader = common.batches(1 + args.steps, args.batch_size // 2, seed=dist.get_rank())
    caps = {ALONE: None, ONE: 1024, PLAIN: args.bucket_cap_mb, DRAWN: args.bucket_cap_mb}
    ways = {}
    for way, cap in caps.items():
        model = make_net(args.width)
        optimizer = common.scheduled_sgd(model, 0.01, (2 + args.rounds) * len(loader))
        if way != ALONE:
            model = common.ddp(model, bucket_cap_mb=cap)
        take_steps(model, optimizer, loader)  # DDP fills its buckets anew in the second step
        how = partial(recorded, args.traces) if way == DRAWN else timed
        ways[way] = partial(how, model, optimizer, loader)
    returned = common.in_turns(args.rounds, ways)
    _, bucket_bytes = returned[DRAWN][-1]
    rounds = {way: [steps[1:] for steps, _ in own] for way, own in returned.items()}
    return {"rounds": rounds, "bucket_bytes": bucket_bytes}


def make_net(width: int) -> common.WiderNet:
    """The ConvNet, the same every time, with `width` times its channels."""
    torch.manual_seed(0)
    return common.WiderNet(width).to(memory_format=torch.channels_last)


def take_steps(model, optimizer, loader) -> stage3.Stopwatch:
    """One step per batch, its parts named for the profiler and timed by the stopwatch."""
    watch = stage3.Stopwatch(common.CPU)

    def mark(gradient):  # of the first layer: backward has computed all, and only waits
        with record_function(LAST):
            watch.lap("backward")

    hook = next(model.parameters()).register_hook(mark)
    dist.barrier()
    for images, labels in loader:
        with record_function("data"):
            x, y = stage3.to_device(images, labels, common.CPU)
            watch.lap("data")
        with record_function("forward"):
            loss = F.cross_entropy(model(x), y)
            watch.lap("forward")
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
            watch.lap("exposed")
        with record_function("optimizer"):
            optimizer.step()
            watch.lap("optimizer")
    hook.remove()
    return watch


def timed(model, optimizer, loader) -> tuple[list[dict], list[int]]:
    """Take steps without the profiler -> the steps, whose all-reduces nobody has seen."""
    moments = [1000 * moment for _, moment in take_steps(model, optimizer, loader).laps]
    phases = len(PHASES)  # a step begins where the one before it ended
    starts = range(0, phases * len(loader), phases)
    return [{"laps": moments[i : i + phases + 1], "all_reduces": []} for i in starts], []


def recorded(folder: Path | None, model, optimizer, loader) -> tuple[list[dict], list[int]]:
    """Take steps under the profiler -> the steps, and the bytes of each bucket."""
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        take_steps(model, optimizer, loader)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(folder or temporary, f"rank-{dist.get_rank()}.json")
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text()))


def read_trace(trace: dict) -> tuple[list[dict], list[int]]:
    """What export_chrome_trace has written -> the steps, and the bytes of each bucket."""
    spans = {name: [] for name in ("data", "forward", "backward", LAST, "optimizer", ALL_REDUCE)}
    for event in sorted(trace["traceEvents"], key=lambda event: event.get("ts", 0)):
        if event["name"] in spans:
            start = event["ts"] / 1000
            spans[event["name"]].append((start, start + event["dur"] / 1000, event["args"]))
    steps = []
    names = ("data", "forward", LAST, "backward", "optimizer")
    for data, forward, last, backward, optimizer in zip(*(spans[name] for name in names)):
        inside = [span for span in spans[ALL_REDUCE] if data[0] <= span[0] <= optimizer[1]]
        laps = [data[0], data[1], forward[1], last[0], backward[1], optimizer[1]]
        steps.append({"laps": laps, "all_reduces": [[left, done] for left, done, _ in inside]})
    return steps, [4 * args["Input Dims"][0][0] for _, _, args in inside]  # fp32


# ---------------------------------------------------------------- what was found


def assemble(ranks: list[dict]) -> dict:
    """What the ranks measured -> {"rounds": {way: [rank][round][step]}, "bucket_bytes", ...}.

    Each all-reduce becomes [left, joined, done]: joined is when the last rank's bucket left. Ends
    the program if one was done on a rank before that: the clocks would differ.
    """
    rounds = {way: [rank["rounds"][way] for rank in ranks] for way in ranks[0]["rounds"]}
    for steps in zip(*map(chain.from_iterable, rounds[DRAWN])):
        for bucket in zip(*(step["all_reduces"] for step in steps)):
            joined = max(left for left, _ in bucket)
            if joined > min(done for _, done in bucket):
                sys.exit("timeline: an all-reduce has ended before it began: the clocks differ")
            for travel in bucket:
                travel.insert(1, joined)
    totals = per_round(rounds[DRAWN], 0, 5, max)
    distances = [abs(total - statistics.median(totals)) for total in totals]
    shown = {"shown_round": distances.index(min(distances))}
    return {"bucket_bytes": ranks[0]["bucket_bytes"], "rounds": rounds} | shown


def per_round(ranks: list, first: int, last: int, over_ranks) -> list[float]:
    """Milliseconds from one lap of a step to another: mean over the steps, then over the ranks."""
    return [
        over_ranks(
            statistics.mean(s["laps"][last] - s["laps"][first] for s in steps) for steps in own
        )
        for own in zip(*ranks)
    ]


def report(results: dict) -> str:
    """The ways side by side, and the buckets."""
    rows = []
    for way, ranks in results["rounds"].items():
        backward, exposed = (per_round(ranks, lap, lap + 1, statistics.mean) for lap in (2, 3))
        total = common.deciles(per_round(ranks, 0, 5, max))
        rows.append([way, *(f"{statistics.median(ms):.2f}" for ms in (backward, exposed)), total])
    titles = ["ms per step", "backward", "exposed", "total, slower rank"]
    lines = [results["about"], common.table(titles, rows), ""]
    rows = []
    steps = list(chain.from_iterable(chain.from_iterable(results["rounds"][DRAWN])))
    for number, size in enumerate(results["bucket_bytes"]):
        travels = [(step["laps"][3], *step["all_reduces"][number]) for step in steps]
        leaves = statistics.median(left - ready for ready, left, _, _ in travels)
        takes = common.deciles([done - joined for _, _, joined, done in travels])
        rows.append([f"{number}", f"{size / 1000:.0f}", f"{leaves:+.2f}", takes])
    titles = ["bucket", "KB", "leaves, ms after the last gradient", "ms once all ranks are there"]
    return "\n".join([*lines, common.table(titles, rows), "", finding(results)])


def finding(results: dict) -> str:
    """What of the all-reduces backward hides, and what the buckets change in the whole step."""
    hidden = travel = 0.0
    for step in chain.from_iterable(chain.from_iterable(results["rounds"][DRAWN])):
        for left, _, done in step["all_reduces"]:
            travel += done - left
            hidden += max(0.0, min(done, step["laps"][3]) - left)
    several, one = (per_round(results["rounds"][way], 0, 5, max) for way in (PLAIN, ONE))
    ratio = common.deciles([a / b for a, b in zip(several, one)])
    return (
        f"{hidden / travel:.0%} of the all-reduces' time lies before the last gradient.\n"
        f"A step takes {ratio} times as long as with one bucket."
    )


if __name__ == "__main__":
    main()

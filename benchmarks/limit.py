"""How near do two ranks come to the upper bound, and where does each millisecond go?

The upper bound is the same two processes with the same steps, but without communication. Every
version runs stage 3's own `train_epoch` over batches in memory. A share of the bound is the bound's
time over the version's in the same round.

The milliseconds of a step are split by the times of both ranks (one machine, one clock): computing,
waiting until the slower rank has its last gradient too, and averaging from then on.

At last the averaging alone: how long does an all-reduce take if both ranks call it at once?

    python -m benchmarks.limit
    python -m benchmarks.limit --batch-size 60
"""

import importlib
import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")
from_scratch = importlib.import_module("03_ddp_spawn.from_scratch")

BOUND = "no communication (upper bound)"
OURS = "DDP, default options"  # as in the stages
DDP = DistributedDataParallel
VERSIONS = {  # name -> how the model is wrapped
    BOUND: lambda model: model,
    OURS: DDP,
    "forward_sync_buffers=False": lambda model: DDP(model, forward_sync_buffers=False),
    "gradient_as_bucket_view=True": lambda model: DDP(model, gradient_as_bucket_view=True),
    "static_graph=True": lambda model: DDP(model, static_graph=True),
    "buckets from scratch": from_scratch.BucketedDDP,
    "naive from scratch": from_scratch.NaiveDDP,
}
PARTS = ("computing", "waiting", "averaging")
Laps = list[tuple[str, float]]  # of an epoch: phase, and the seconds at which it ended


def main():
    parser = common.flags(__doc__, batch_size=240, rounds=12, steps=40)
    args = common.parse(parser, batch_size=2, rounds=2, steps=2)
    if args.batch_size % 2:
        parser.error("--batch-size has to be even")
    first, second = common.on_ranks(2, measure, args)
    alone = common.on_ranks(2, all_reduces, 500)[0]
    versions = {name: analyse(first[name], second[name]) for name in VERSIONS}
    about = f"2 ranks, {args.batch_size} images per step, {common.about()}"
    results = {"about": about, "steps": args.steps, "versions": versions, "alone": alone}
    common.show(args, f"limit-{args.batch_size}", results, report)


# ---------------------------------------------------------------- on the ranks


def measure(args) -> dict[str, list[Laps]]:
    """On a rank -> {version: the laps of its epoch in each round}.

    Their times are of time.perf_counter, a clock that all processes of a machine share.
    """
    loader = common.batches(args.steps, args.batch_size // 2, seed=dist.get_rank())
    common.evaluate_once()
    ways = {}
    for name, wrap in VERSIONS.items():
        model, optimizer, schedule = prepare(wrap, args)
        ways[name] = partial(common.train_epoch, model, loader, optimizer, schedule)
    laps = {}
    for name, watches in common.in_turns(args.rounds, ways).items():
        laps[name] = [watch.laps for watch in watches]
    return laps


def prepare(wrap, args):
    """-> wrapped model, optimizer and schedule, as stage 3 makes them"""
    torch.manual_seed(0)
    model = stage3.make_model().to(memory_format=torch.channels_last)
    steps = args.steps * (args.rounds + 1)  # in_turns adds a round that does not count
    optimizer, schedule = common.scheduled_sgd(model, 0.01, steps)
    return wrap(model), optimizer, schedule


def all_reduces(rounds: int) -> dict[str, float]:
    """On a rank -> {bytes: median milliseconds of an all-reduce, right after a barrier}"""
    gradients = sum(parameter.nbytes for parameter in stage3.make_model().parameters())
    found = {}
    for nbytes in (4, gradients):
        numbers = torch.zeros(nbytes // 4)
        times = []
        for _ in range(rounds):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(numbers)
            times.append(time.perf_counter() - began)
        found[str(nbytes)] = 1000 * statistics.median(times)
    return found


# ---------------------------------------------------------------- what came out


def analyse(*ranks: list[Laps]) -> dict[str, list[float]]:
    """Laps per rank and round -> {part: [mean milliseconds of a step, for each round]}.

    The lap "backward" ends when a rank's last gradient is there, "exposed" when the gradients are
    averaged. "total" is the time of the slower rank; the parts are means over the ranks.
    """
    rounds = {part: [] for part in ("total", *PARTS)}
    for laps in zip(*ranks):
        ready = ends_of("backward", laps)
        averaged = ends_of("exposed", laps)
        epoch = ends_of("optimizer", laps)[:, -1] - ends_of("start", laps)[:, 0]
        whole = epoch / ready.shape[1]  # of each rank, the seconds of a step
        all_ready = ready.max(dim=0).values
        seconds = {
            "total": whole.max(),
            "waiting": (all_ready - ready).mean(),
            "averaging": (averaged - all_ready).mean(),
        }
        seconds["computing"] = whole.mean() - seconds["waiting"] - seconds["averaging"]
        for part, value in seconds.items():
            rounds[part].append(1000 * value.item())
    return rounds


def ends_of(phase: str, laps: tuple[Laps, ...]) -> torch.Tensor:
    """Each rank's laps -> the seconds at which those of the phase ended, [rank, step]."""
    ends = []
    for of_rank in laps:
        ends.append([now for name, now in of_rank if name == phase])
    return torch.tensor(ends, dtype=torch.float64)


def report(results: dict) -> str:
    """Medians over the rounds, a line per version."""
    versions = results["versions"]
    bounds = versions[BOUND]["total"]
    ours = versions[OURS]["total"]
    rows = []
    for name, rounds in versions.items():
        row = [name]
        for part in ("total", *PARTS):
            if name == BOUND and part in ("waiting", "averaging"):
                row.append("-")  # no rank waits for another
            else:
                row.append(f"{statistics.median(rounds[part]):.2f}")
        row.append(common.deciles([bound / own for own, bound in zip(rounds["total"], bounds)]))
        row.append(common.deciles([own / other for own, other in zip(rounds["total"], ours)]))
        rows.append(row)
    titles = ["ms per step", "total", *PARTS, "of the bound", "x the stages"]
    alone = []
    for nbytes, milliseconds in results["alone"].items():
        alone.append(f"{milliseconds:.2f} ms for {int(nbytes):,} bytes")
    text = f"{results['about']}\n{common.table(titles, rows)}"
    return f"{text}\nAn all-reduce without a step around it takes {' and '.join(alone)}."


if __name__ == "__main__":
    main()

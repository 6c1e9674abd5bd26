"""How near do two ranks come to the upper bound, and where does each millisecond go?

The upper bound is the same two processes with the same steps, but without communication. Every
version runs stage 3's own `train_epoch` over batches in memory. In every round each version takes
its steps in turn, so that all meet the same noise; a share of the bound is the bound's time over
the version's in the same round. Printed are the median and the quarter and three-quarter marks.

The milliseconds of a step are split by the times of both ranks (one machine, one clock): computing,
waiting until the slower rank has its last gradient too, and averaging from then on.

    python benchmarks/limit.py
    python benchmarks/limit.py --batch-size 120
"""

import argparse
import importlib
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")
from_scratch = importlib.import_module("03_ddp_spawn.from_scratch")

BOUND = "no communication (upper bound)"
VERSIONS = {  # name -> how the model is wrapped; indented: beside broadcast_buffers=False
    BOUND: lambda model: model,
    "DDP, as it comes": DistributedDataParallel,
    "broadcast_buffers=False": lambda model: ddp(model),
    "  gradient_as_bucket_view": lambda model: ddp(model, gradient_as_bucket_view=True),
    "  static_graph": lambda model: ddp(model, static_graph=True),
    "  CPU affinity (pinning)": lambda model: ddp(model),
    "  busy waiting": lambda model: wait_busily(ddp(model)),
    "  both": lambda model: wait_busily(ddp(model)),
    "buckets from scratch": from_scratch.BucketedDDP,
}
PINNED = {"  CPU affinity (pinning)", "  both"}
PARTS = ("computing", "waiting", "averaging")
Laps = list[tuple[str, float]]  # of an epoch: phase, and the seconds at which it ended


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=240, help="images per step, both ranks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each version in each round")
    parser.add_argument("--results", type=Path, help="folder for limit-<batch size>.json")
    args = common.parse(parser, batch_size=2, rounds=2, steps=2)
    if not hasattr(os, "sched_setaffinity"):
        parser.error("it pins threads to cores, which needs Linux")
    if args.batch_size % 2:
        parser.error("--batch-size has to be even")
    about = f"2 ranks, {args.batch_size} images per step, {common.device_name()}, "
    about += f"torch {torch.__version__}"
    laps = dict(zip(VERSIONS, zip(*common.on_ranks(2, measure, args))))
    results = {version: analyse(*ranks) for version, ranks in laps.items()}
    print(about)
    print(table(results))
    if args.results:
        found = {"about": about, "steps": args.steps, "versions": results}
        common.write_json(args.results / f"limit-{args.batch_size}.json", found)


# ---------------------------------------------------------------- on the ranks


def measure(args) -> list[list[Laps]]:
    """On a rank -> for each version, for each round: the laps of its epoch.

    Their times are of time.perf_counter, a clock that all processes of a machine share.
    """
    loader = common.batches(args.steps, args.batch_size // 2, seed=dist.get_rank())
    everywhere = os.sched_getaffinity(0)
    one_core = {sorted(everywhere)[dist.get_rank() % len(everywhere)]}
    common.evaluate_once()
    runs = {name: prepare(wrap, args) for name, wrap in VERSIONS.items()}
    laps = {name: [] for name in VERSIONS}
    for _ in range(args.rounds + 1):
        for name, (model, optimizer, scaler) in runs.items():
            pin_threads_to(one_core if name in PINNED else everywhere)
            dist.barrier()
            _, watch = stage3.train_epoch(model, loader, optimizer, scaler, common.CPU, "off")
            laps[name].append(watch.laps)
    return [rounds[1:] for rounds in laps.values()]  # the first warms up


def prepare(wrap, args):
    """-> wrapped model, optimizer, scaler, as stage 3 makes them"""
    torch.manual_seed(0)
    model = stage3.ConvNet().to(memory_format=torch.channels_last)
    optimizer = common.scheduled_sgd(model, 0.01, args.steps * (args.rounds + 1))
    return wrap(model), optimizer, torch.amp.GradScaler("cpu", enabled=False)


def ddp(model, **options):
    return DistributedDataParallel(model, broadcast_buffers=False, **options)


def wait_busily(ddp_model):
    """Busy waiting: ask again and again whether the all-reduce is done, instead of sleeping.

    An idle core goes to sleep, and on a virtual machine the hypervisor has to wake it: that can
    take longer than the all-reduce. Between two questions other threads may have the core.
    """

    def all_reduce(group, bucket):
        tensor = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            os.sched_yield()
        return work.get_future().then(lambda future: future.value()[0])

    ddp_model.register_comm_hook(None, all_reduce)
    return ddp_model


def pin_threads_to(cores):
    """Let all threads of this process, gloo's too, run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


# ---------------------------------------------------------------- what came out


def analyse(*ranks: list[Laps]) -> dict[str, list[float]]:
    """Laps per rank and round -> {part: [mean milliseconds of a step, for each round]}.

    The lap "backward" ends when a rank's last gradient is there, "exposed" when the gradients are
    averaged. "total" is the time of the slower rank; the parts are means over the ranks.
    """
    rounds = {part: [] for part in ("total", *PARTS)}
    for laps in zip(*ranks):
        ready, averaged = ends_of("backward", laps), ends_of("exposed", laps)
        whole = ends_of("optimizer", laps)[:, -1] - ends_of("start", laps)[:, 0]
        whole /= ready.shape[1]
        all_ready = ready.max(dim=0).values
        milliseconds = {
            "total": whole.max(),
            "waiting": (all_ready - ready).mean(),
            "averaging": (averaged - all_ready).mean(),
        }
        parts = milliseconds["waiting"] + milliseconds["averaging"]
        milliseconds["computing"] = whole.mean() - parts
        for part, seconds in milliseconds.items():
            rounds[part].append(1000 * seconds.item())
    return rounds


def ends_of(phase: str, laps: tuple[Laps, ...]) -> torch.Tensor:
    """Each rank's laps -> the seconds at which those of the phase ended, [rank, step]."""
    ends = [[now for name, now in own if name == phase] for own in laps]
    return torch.tensor(ends, dtype=torch.float64)


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Medians over the rounds as text, a line per version."""
    lines = [f"{'':30}{'ms per step':>12}" + "".join(f"{part:>11}" for part in PARTS)]
    lines[0] += f"{'share of the bound':>24}"
    for version, rounds in results.items():
        shares = [bound / own for bound, own in zip(results[BOUND]["total"], rounds["total"])]
        low, middle, high = statistics.quantiles(shares, n=4)
        cells = [f"{statistics.median(rounds[part]):11.2f}" for part in PARTS]
        if version == BOUND:  # no rank waits for another
            cells[1:] = [f"{'-':>11}"] * 2
        total = statistics.median(rounds["total"])
        share = f"{middle:12.2f} ({low:.2f}-{high:.2f})"
        lines.append(f"{version:30}{total:12.2f}{''.join(cells)}{share}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""How near do two ranks come to the limit, and where does each millisecond go?

The limit is a twin: the same two processes, the same steps, but nobody talks to anybody. Every
version runs stage 3's own `train_epoch` over batches in memory. In every round each version takes
its steps in turn, so that all meet the same noise; a share is the twin's time over the version's in
the same round. Printed are the median of the shares and the quarter and three-quarter marks.

The milliseconds of a step are cut where both ranks' clocks say so (one machine, one clock):
computing, waiting until the slower rank has its last gradient too, and averaging from then on.

    python benchmarks/limit.py
    python benchmarks/limit.py --batch-size 240
"""

import argparse
import importlib
import json
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
stage3 = importlib.import_module("03_ddp_spawn.train")
by_hand = importlib.import_module("03_ddp_spawn.by_hand")

CPU = torch.device("cpu")
TWIN = "twin: no communication"
VERSIONS = {  # name -> how the model is wrapped; indented: beside broadcast_buffers=False
    TWIN: lambda model: model,
    "DDP, as it comes": DistributedDataParallel,
    "broadcast_buffers=False": lambda model: ddp(model),
    "  gradient_as_bucket_view": lambda model: ddp(model, gradient_as_bucket_view=True),
    "  static_graph": lambda model: ddp(model, static_graph=True),
    "  each rank on its core": lambda model: ddp(model),
    "  awake while it waits": lambda model: wait_awake(ddp(model)),
    "  both": lambda model: wait_awake(ddp(model)),
    "buckets by hand": by_hand.BucketedDDP,
}
ON_ITS_CORE = {"  each rank on its core", "  both"}
PARTS = ("computing", "waiting", "averaging")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=120, help="images per step, both ranks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each version in each round")
    parser.add_argument("--results", type=Path, help="folder for limit-<batch size>.json")
    args = parser.parse_args()
    if not hasattr(os, "sched_setaffinity"):
        parser.error("it ties threads to cores, which only Linux lets it do")
    if args.batch_size < 2 or args.batch_size % 2 or min(args.rounds, args.steps) < 2:
        parser.error("--batch-size has to be even, --rounds and --steps at least 2")
    name = stage3.device_name("cpu")
    about = f"2 ranks, {args.batch_size} images per step, {name}, torch {torch.__version__}"
    laps = dict(zip(VERSIONS, zip(*by_hand.on_ranks(2, measure, args))))
    results = {version: analyse(*ranks) for version, ranks in laps.items()}
    print(about)
    print(table(results))
    if args.results:
        text = json.dumps({"about": about, "steps": args.steps, "versions": results}, indent=1)
        path = args.results / f"limit-{args.batch_size}.json"
        stage3.write_whole(path, lambda temp: temp.write_text(text))


# ---------------------------------------------------------------- on the ranks


def measure(args) -> list[list[list[float]]]:
    """On a rank -> for each version a row per round: the times of all laps of all its steps."""
    args.amp = "off"
    random = torch.Generator().manual_seed(dist.get_rank())
    shape = (args.steps, args.batch_size // 2, 28, 28)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    labels = torch.randint(10, shape[:2], generator=random)
    loader = list(zip(images, labels))
    everywhere = os.sched_getaffinity(0)
    one_core = {sorted(everywhere)[dist.get_rank() % len(everywhere)]}
    stage3.Stopwatch = KeptStopwatch
    runs = {name: prepare(wrap, args) for name, wrap in VERSIONS.items()}
    laps = {name: [] for name in VERSIONS}
    for _ in range(args.rounds + 1):
        for name, (model, *others) in runs.items():
            tie_threads_to(one_core if name in ON_ITS_CORE else everywhere)
            dist.barrier()
            stage3.train_epoch(model, loader, *others, CPU, args)
            laps[name].append([moment for _, moment in KeptStopwatch.last.laps])
    return [rounds[1:] for rounds in laps.values()]  # the first warms up


class KeptStopwatch(stage3.Stopwatch):
    """The stage's stopwatch, kept after its epoch. Its times are of the clock all ranks share."""

    def __init__(self, device):
        super().__init__(device)
        KeptStopwatch.last = self


def prepare(wrap, args):
    """-> wrapped model, optimizer, schedule, scaler, as stage 3 makes them"""
    torch.manual_seed(0)
    model = stage3.ConvNet().to(memory_format=torch.channels_last)
    images = torch.zeros(1000, 28, 28, dtype=torch.uint8)
    # The stage evaluates between epochs. Its large tensors teach malloc to keep what is freed,
    # which spares every later step thousands of page faults.
    stage3.evaluate(model, stage3_set(images), CPU)
    steps = args.steps * (args.rounds + 1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return (wrap(model), *stage3.sgd_one_cycle(model, 0.01, steps), scaler)


def stage3_set(images):
    """Images as the stage's data set, with labels that do not matter."""
    test_set = stage3.MNIST.__new__(stage3.MNIST)
    test_set.data, test_set.targets = images, torch.zeros(len(images), dtype=torch.int64)
    return test_set


def ddp(model, **options):
    return DistributedDataParallel(model, broadcast_buffers=False, **options)


def wait_awake(ddp_model):
    """Ask again and again whether the all-reduce is done, instead of sleeping until it is.

    A core with nothing to do falls asleep, and on a virtual machine it is the host that wakes it:
    that can take longer than the all-reduce. Between two questions others may have the core.
    """

    def all_reduce_awake(group, bucket):
        tensor = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            os.sched_yield()
        return work.get_future().then(lambda future: future.value()[0])

    ddp_model.register_comm_hook(None, all_reduce_awake)
    return ddp_model


def tie_threads_to(cores):
    """Let all threads of this process, gloo's too, run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


# ---------------------------------------------------------------- what came out


def analyse(*ranks: list[list[float]]) -> dict[str, list[float]]:
    """Times of all laps per rank and round -> {part: [mean milliseconds of a step, per round]}.

    The laps of a step are data, forward, backward (the last gradient is there), exposed (averaged)
    and step. "total" is the time of the slower rank; the parts are means over the ranks.
    """
    rounds = {part: [] for part in ("total", *PARTS)}
    for laps in zip(*ranks):
        moments = torch.tensor(laps, dtype=torch.float64)  # [rank, 1 + 5 per step]
        ready, averaged = moments[:, 3::5], moments[:, 4::5]
        steps = ready.shape[1]
        all_ready = ready.max(dim=0).values
        milliseconds = {
            "total": (moments[:, -1] - moments[:, 0]).max() / steps,
            "waiting": (all_ready - ready).mean(),
            "averaging": (averaged - all_ready).mean(),
        }
        whole = (moments[:, -1] - moments[:, 0]).mean() / steps
        milliseconds["computing"] = whole - milliseconds["waiting"] - milliseconds["averaging"]
        for part, seconds in milliseconds.items():
            rounds[part].append(1000 * seconds.item())
    return rounds


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Medians over the rounds as text, a line per version."""
    lines = [f"{'':26}{'ms per step':>12}" + "".join(f"{part:>11}" for part in PARTS)]
    lines[0] += f"{'share of the limit':>24}"
    for version, rounds in results.items():
        shares = [twin / own for twin, own in zip(results[TWIN]["total"], rounds["total"])]
        low, middle, high = statistics.quantiles(shares, n=4)
        cells = [f"{statistics.median(rounds[part]):11.2f}" for part in PARTS]
        if version == TWIN:  # nobody waits for anybody in it
            cells[1:] = [f"{'-':>11}"] * 2
        total = statistics.median(rounds["total"])
        share = f"{middle:12.2f} ({low:.2f}-{high:.2f})"
        lines.append(f"{version:26}{total:12.2f}{''.join(cells)}{share}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""How fast would N ranks be? Predict a step, measure it, then look ahead to 1,024 ranks.

A step is modelled as computing, then the part of the all-reduce that backward did not hide, then
what DDP adds around it:

    computing    = what a batch of that size takes the slowest rank; where ranks share a core they
                   take turns, and it all takes N / cores times as long
    ring         = 2 (N - 1) alpha + 2 (N - 1) / N * bytes / beta
    tree         = 2 ceil(log2 N) (alpha + bytes / beta)
    star         = 2 alpha + 2 (N - 1) * bytes / beta, a naive all-reduce through rank 0
    around       = a constant: filling the bucket, waking the threads, ranks that are not in step

This is the alpha-beta model: alpha is the latency, the seconds that a message takes however short
it is, and beta the bandwidth in bytes per second. Both are fitted to all-reduces of many sizes.
Computing is measured for batches that no prediction is made for, without averaging; in between it
is read off straight lines. "around" is what is missing at one such batch. Then the same formulas
are applied to other networks: that part is a projection, not a measurement.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --ranks 2 --rounds 20 --results timings

It runs on CPUs. Source of the ring and tree costs: R. Thakur, R. Rabenseifner, W. Gropp,
Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19
(2005); of the ring also P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69 (2009).
"""

import argparse
import bisect
import importlib
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

if __name__ == "__mp_main__":  # a spawned rank: Ctrl-C just ends it, and its parent reports that
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

train = importlib.import_module("05_multinode.train")

CPU = common.CPU
MODEL_BYTES = 4 * sum(parameter.numel() for parameter in train.ConvNet().parameters())
FIT_IMAGES = [8, 20, 40, 80, 160, 320, 520]  # per rank; computing is measured for these
AMID = 80  # per rank; so many are computed before each all-reduce, and "around" is taken there
FIT_BYTES = [4 * 2**10, 32 * 2**10, 2**18, 2**20, 2**22]  # and the all-reduce to these
BATCHES = [60, 120, 240, 480, 960]  # over all ranks; these are predicted, then measured
MIB = 2**20
COLORS = ["#D55E00", "#E69F00", "#0072B2", "#009E73"]  # Okabe and Ito's, for the colour-blind


class Curve(NamedTuple):
    """Straight lines between points; beyond the last ones the outermost lines go on."""

    xs: list[float]
    ys: list[float]

    def __call__(self, x: float) -> float:
        right = min(max(bisect.bisect(self.xs, x), 1), len(self.xs) - 1)
        (x0, x1), (y0, y1) = self.xs[right - 1 : right + 1], self.ys[right - 1 : right + 1]
        return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


class Network(NamedTuple):
    alpha: float  # seconds for a message, however short
    beta: float  # bytes per second, one way
    source: str


A100 = Curve([0, 2600], [0.0, 1.0])  # seconds for images of ResNet-50, see project()
NETWORKS = {
    "1 Gb/s Ethernet, TCP": Network(75e-6, 0.125e9, "latency: half of 120 to 180 us there and "
        "back, appneta.com 2009, Why is 10G better for network latency"),
    "10 Gb/s Ethernet, TCP": Network(20e-6, 1.25e9, "latency: J. Hurwitz, W. Feng, Initial "
        "end-to-end performance evaluation of 10-Gigabit Ethernet, Hot Interconnects 2003"),
    "400 Gb/s InfiniBand": Network(14e-6, 50e9, "latency: NCCL's own table for a ring over a "
        "network, src/graph/tuning.cc; bandwidth: ConnectX-7 manual, NDR"),
    "NVLink 4": Network(3.4e-6, 450e9, "latency: NCCL's table, ring over NVLink; bandwidth: half "
        "of the 900 GB/s of both ways in NVIDIA's H100 data sheet; beyond 8 GPUs a thought "
        "experiment"),
}  # fmt: skip


def main() -> None:
    args = parse()
    runs = {n: common.on_ranks(n, measure, n <= args.cores, args)[0] for n in args.ranks}
    local = {n: fit(n, runs, args.cores) for n in args.ranks}
    results = {"device_name": common.device_name(), "torch": torch.__version__}
    results |= {"cores": args.cores, "bytes": MODEL_BYTES, "ranks": local}
    results["projection"] = project(Curve(*local[args.ranks[0]]["computing"]))
    print("\n".join([*measured_table(results), "", *projected_tables(results["projection"])]))
    if args.results:
        common.write_json(args.results / "scaling.json", results)
        draw(results, args.results / "scaling.png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[2, 4], help="how many to predict and measure")
    add("--rounds", type=int, default=8, help="of everything that is measured, by turns")
    add("--steps", type=int, default=12, help="of each kind in each round")
    add("--results", type=Path, help="folder for scaling.json and scaling.png")
    args = common.parse(parser, rounds=2, steps=2)
    args.cores = common.cores()
    if min(args.ranks) < 2 or any(batch % n for n in args.ranks for batch in BATCHES):
        parser.error(f"--ranks: at least 2, and each has to divide {BATCHES}")
    if min(args.ranks) > args.cores:
        parser.error(f"--ranks: computing is fitted to ranks with a core each, here {args.cores}")
    args.ranks = sorted(set(args.ranks))
    return args


# ---------------------------------------------------------------- the model


def ring(n: int, size: float, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce of size bytes over n ranks in a ring."""
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * size / beta


def tree(n: int, size: float, alpha: float, beta: float) -> float:
    """The same up a binary tree to one rank, and down again."""
    return 2 * math.ceil(math.log2(n)) * (alpha + size / beta)


def star(n: int, size: float, alpha: float, beta: float) -> float:
    """The same through one rank, whose line carries everything twice."""
    return 2 * alpha + 2 * (n - 1) * size / beta if n > 1 else 0.0


WAYS = {"ring": ring, "tree": tree, "star": star}


def exposed(backward: float, buckets: list[float], all_reduce: Callable[[float], float]) -> float:
    """Seconds for which averaging goes on after backward.

    backward: its seconds; the buckets, in bytes, are full at even distances in it and leave one
    after the other, as DDP's do. With one bucket nothing can overlap.
    """
    done = 0.0
    for number, size in enumerate(buckets, start=1):
        done = max(done, backward * number / len(buckets)) + all_reduce(size)
    return done - backward


def buckets_of(size: int) -> list[float]:
    """DDP's default buckets: 1 MiB to begin with, then 25 MiB each."""
    rest = max(0, size - MIB)
    full, last = divmod(rest, 25 * MIB)
    return [min(size, MIB), *[25 * MIB] * full, *([last] if last else [])]


def fit_line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """-> a and b of y = a + b x, with the least squares of the *relative* errors.

    So the small ones count as much as the large ones. Neither a nor b may be negative: where one
    comes out so it is 0, and the other is fitted alone.
    """
    y = torch.tensor(ys, dtype=torch.float64)
    columns = torch.stack([torch.ones_like(y), torch.tensor(xs, dtype=torch.float64)], dim=1)
    weighted, target = columns / y[:, None], torch.ones(len(ys), 1, dtype=torch.float64)
    a, b = torch.linalg.lstsq(weighted, target).solution.flatten().tolist()
    if a < 0:
        a, b = 0.0, torch.linalg.lstsq(weighted[:, 1:], target).solution.item()
    elif b < 0:
        a, b = torch.linalg.lstsq(weighted[:, :1], target).solution.item(), 0.0
    return a, b


def fit(n: int, runs: dict[int, dict], cores: int) -> dict:
    """From what was measured -> the fitted constants of n ranks, predictions beside measurements.

    Where the ranks have no core each, computing is that of the largest run in which they had.
    """
    fitted_on = n if n <= cores else max(m for m in runs if m <= cores)
    computing = Curve(FIT_IMAGES, [runs[fitted_on]["computing"][b] for b in FIT_IMAGES])
    fixed, each = fit_line(FIT_BYTES, [runs[n]["averaging"][size] for size in FIT_BYTES])
    averaging = fixed + each * MODEL_BYTES
    turns = max(1.0, n / cores)
    around = runs[n]["step"][AMID * n] - turns * computing(AMID) - averaging
    rows = []
    for batch in BATCHES:
        row = {"batch": batch, "measured": runs[n]["step"][batch]}
        row |= {"computing": turns * computing(batch / n), "averaging": averaging, "around": around}
        row["predicted"] = row["computing"] + averaging + around
        rows.append(row | {"error": row["predicted"] / row["measured"] - 1})
    found = {"alpha": fixed / (2 * (n - 1)), "beta": 2 * (n - 1) / n / each if each else math.inf}
    found |= {"computing": computing, "averaging": runs[n]["averaging"]}
    return found | {"rows": rows}


# ---------------------------------------------------------------- on the ranks


def measure(with_computing: bool, args: argparse.Namespace) -> dict[str, dict[int, float]]:
    """On every rank -> {"computing", "averaging", "step": {images, bytes or batch: seconds}}.

    Each is a median over the rounds; in a round everything has its turn, so that all meet the same
    noise. Of a round the mean counts, as in an epoch. Computing is DDP's step without averaging; in
    each step the slowest rank counts, since averaging would make the others wait for it.
    """
    n = dist.get_world_size()
    alone = {images: Trainee(images, args) for images in FIT_IMAGES}
    together = {batch: Trainee(batch // n, args) for batch in (AMID * n, *BATCHES)}
    seconds = {"computing": {}, "averaging": {}, "step": {}}
    for _ in range(args.rounds + 1):
        for images, trainee in alone.items() if with_computing else ():
            with trainee.model.no_sync():
                own = trainee.steps()
            seconds["computing"].setdefault(images, []).append(over_ranks("MAX", own).mean())
        for size in FIT_BYTES:
            own = all_reduces(alone[AMID], size, args.steps)
            seconds["averaging"].setdefault(size, []).append(over_ranks("MIN", own).mean())
        for batch, trainee in together.items():
            own = trainee.steps().mean()
            seconds["step"].setdefault(batch, []).append(over_ranks("MAX", own))
    return {
        kind: {x: statistics.median(map(float, rounds[1:])) for x, rounds in table.items()}
        for kind, table in seconds.items()
    }


class Trainee:
    """A model in DDP with batches in memory, trained by the stage's own train_epoch."""

    def __init__(self, images: int, args: argparse.Namespace):
        torch.manual_seed(0)
        model = train.ConvNet().to(memory_format=torch.channels_last)
        self.optimizer = common.scheduled_sgd(model, 0.01, (args.rounds + 1) * args.steps)
        self.model = DistributedDataParallel(model, broadcast_buffers=False)
        self.loader = common.batches(1, images) * args.steps

    def steps(self) -> torch.Tensor:
        """Train -> the seconds of each step on this rank, [steps]"""
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        dist.barrier()
        _, watch = train.train_epoch(self.model, self.loader, self.optimizer, scaler, CPU, "off")
        ends = [now for phase, now in watch.laps if phase in ("start", "optimizer")]
        return torch.tensor(ends, dtype=torch.float64).diff()


def over_ranks(which: str, seconds: torch.Tensor) -> torch.Tensor:
    """The longest ("MAX") or the shortest ("MIN") of what the ranks took, on every rank."""
    dist.all_reduce(seconds, getattr(dist.ReduceOp, which))
    return seconds


def all_reduces(trainee: Trainee, size: int, repeats: int) -> torch.Tensor:
    """Seconds of all-reduces of size bytes on this rank, each after computing as in a step.

    In a loop of nothing else they would be quicker: no core would have gone to sleep. The rank that
    comes last waits for no other, so of each all-reduce the shortest time of a rank is what counts.
    """
    tensor, seconds = torch.zeros(size // 4), torch.empty(repeats, dtype=torch.float64)
    images, labels = trainee.loader[0]
    for i in range(repeats):
        x, y = train.to_device(images, labels, CPU)
        F.cross_entropy(trainee.model.module(x), y).backward()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        seconds[i] = time.perf_counter() - started
    return seconds


# ---------------------------------------------------------------- the projection


class Job(NamedTuple):
    size: int  # bytes of gradients
    computing: Curve  # seconds of a step for so many images on one rank
    images_per_rank: int  # weak scaling: so many on each
    batch: int  # strong scaling: so many on all together
    source: str


def project(computing: Curve) -> dict:
    """-> {job: {network: {ranks: {"ring", "tree", "star", "weak", "strong"}}}}, and the sources."""
    a100 = "2,600 images/s: github.com/huggingface/pytorch-image-models/issues/1491; parameters: "
    a100 += "torchvision. Gradients in fp32"
    jobs = {
        "the ConvNet on this machine's cores": Job(
            MODEL_BYTES, computing, 120, 320, "computing as measured above"
        ),
        "ResNet-50 on A100s": Job(4 * 25_557_032, A100, 256, 8192, a100),
    }
    found = {"jobs": {name: job._asdict() for name, job in jobs.items()}, "figures": {}}
    found["networks"] = {name: network._asdict() for name, network in NETWORKS.items()}
    for name, job in jobs.items():
        found["figures"][name] = {
            network: {n: figures(job, n, *NETWORKS[network][:2]) for n in (8, 64, 1024)}
            for network in NETWORKS
        }
    return found


def figures(job: Job, n: int, alpha: float, beta: float) -> dict:
    """Seconds of each way, and the efficiency: [overlapped, not overlapped].

    Each bucket goes the way that is quickest for its size, as NCCL does it. Strong scaling is None
    where there are fewer images than ranks.
    """
    seconds = {way: cost(n, job.size, alpha, beta) for way, cost in WAYS.items()}

    def quickest(size: float) -> float:
        return min(cost(n, size, alpha, beta) for cost in WAYS.values())

    one_rank = job.computing(job.batch)
    for scaling, images in (("weak", job.images_per_rank), ("strong", job.batch / n)):
        computing = job.computing(images)
        ideal = computing if scaling == "weak" else one_rank / n
        ends = [
            computing + exposed(2 / 3 * computing, buckets, quickest)
            for buckets in (buckets_of(job.size), [job.size])
        ]  # backward is taken as two thirds of computing
        seconds[scaling] = [ideal / end for end in ends] if images >= 1 else None
    return seconds


# ---------------------------------------------------------------- what came out


def measured_table(results: dict) -> list[str]:
    lines = [
        f"ConvNet, {results['bytes']:,} bytes of gradients, {results['device_name']}, "
        f"{results['cores']} cores, torch {results['torch']}"
    ]
    for n, found in results["ranks"].items():
        points = zip(*found["computing"])
        points = ", ".join(f"{images}: {1e6 * s / images:.0f}" for images, s in points)
        shared = f", times {n / results['cores']:g} on shared cores" if n > results["cores"] else ""
        lines += [
            f"\n{n} ranks: latency {1e6 * found['alpha']:,.0f} us, "
            f"bandwidth {found['beta'] / 1e9:.2f} GB/s",
            f"computing in us per image, by images per rank: {points}{shared}",
            "   batch   computing + all-reduce +  around = predicted   measured    error",
        ]
        lines += [
            f"{row['batch']:8}{1000 * row['computing']:9.2f} ms{1000 * row['averaging']:10.2f} ms"
            f"{1000 * row['around']:7.2f} ms{1000 * row['predicted']:9.2f} ms"
            f"{1000 * row['measured']:8.2f} ms{row['error']:+9.1%}"
            for row in found["rows"]
        ]
        lines.append(f"largest error: {max(abs(row['error']) for row in found['rows']):.1%}")
    return lines


def projected_tables(projection: dict) -> list[str]:
    lines = ["PROJECTION by the same formulas. None of what follows has been measured."]
    for name, figures in projection["figures"].items():
        job = projection["jobs"][name]
        lines += [
            f"\n{name}: {job['size'] / 1e6:,.1f} MB of gradients ({job['source']})",
            f"weak: {job['images_per_rank']} images per rank; strong: {job['batch']} on all "
            "together. Efficiency with overlap (without)",
            f"{'':24}{'ranks':>6}{'ring, ms':>12}{'tree, ms':>12}{'star, ms':>12}"
            f"{'weak':>14}{'strong':>14}",
        ]
        for network, by_ranks in figures.items():
            for n, row in by_ranks.items():
                ways = "".join(f"{milliseconds(row[way]):>12}" for way in WAYS)
                weak, strong = (
                    "{:.0%} ({:.0%})".format(*row[scaling]) if row[scaling] else "-"
                    for scaling in ("weak", "strong")
                )
                lines.append(f"{network:24}{n:>6,}{ways}{weak:>14}{strong:>14}")
                network = ""
    lines += ["", "Networks (nominal bandwidths):"]
    lines += [
        f"   {name}: latency {1e6 * network['alpha']:g} us, "
        f"bandwidth {network['beta'] / 1e9:g} GB/s; {network['source']}"
        for name, network in projection["networks"].items()
    ]
    return lines


def milliseconds(seconds: float) -> str:
    """With two digits after the point where there is none before it."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.2f}"


def draw(results: dict, path: Path) -> None:
    """Left what was predicted and measured here; right the projection."""
    import matplotlib

    matplotlib.use("Agg")  # draw into a file, also where there is no screen
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    worst = {}
    for color, (n, found) in zip(COLORS, results["ranks"].items()):
        batches, measured, predicted, errors = zip(
            *((r["batch"], r["measured"], r["predicted"], r["error"]) for r in found["rows"])
        )
        worst[n] = max(map(abs, errors))
        left.plot(
            batches, [1000 * s for s in predicted], color=color, label=f"{n} ranks, predicted"
        )
        left.plot(batches, [1000 * s for s in measured], "o", color=color, label="measured")
    left.set(xscale="log", yscale="log", xticks=batches, xticklabels=batches)
    left.set(xlabel="images per step, all ranks together", ylabel="milliseconds per step")
    within = ", ".join(f"{error:.0%} on {n} ranks" for n, error in worst.items())
    left.set_title(f"Predicted within {within} ({results['cores']} cores)", loc="left", fontsize=11)
    ranks = [2**i for i in range(11)]
    job = [Job(**job) for job in results["projection"]["jobs"].values()][-1]
    for color, (name, network) in zip(COLORS, NETWORKS.items()):
        steps = [figures(job._replace(computing=A100), n, *network[:2])["weak"] for n in ranks]
        right.plot(ranks, [overlapped for overlapped, _ in steps], color=color, label=name)
        right.plot(ranks, [alone for _, alone in steps], color=color, linestyle=":")
    right.plot([], [], ":", color="black", label="without overlap")
    right.set(xscale="log", xticks=ranks[::2], xticklabels=ranks[::2], ylim=(0, 1.05))
    right.set(xlabel=f"A100s, {job.images_per_rank} images each", ylabel="efficiency")
    right.set_title("PROJECTION, not measured: ResNet-50", loc="left", fontsize=11)
    for axes in (left, right):
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=9)
    right.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.64))
    figure.savefig(path, dpi=120, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nscaling.py: interrupted", file=sys.stderr)
        sys.exit(130)

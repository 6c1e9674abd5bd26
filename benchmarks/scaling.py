"""How long is a step of N ranks? Predict it from a few constants of the machine, then measure it.

A step is modelled as computing, then the all-reduce, then what DDP adds around it:

    computing    = what a batch of that size takes the slowest rank; where ranks share a core they
                   take turns, and it all takes N / cores times as long
    ring         = 2 (N - 1) latency + 2 (N - 1) / N * bytes / bandwidth
    tree         = 2 ceil(log2 N) (latency + bytes / bandwidth)
    naive        = 2 latency + 2 (N - 1) * bytes / bandwidth, the naive all-reduce through rank 0
    around       = a constant: filling the bucket, waking the threads, ranks that are not in step

This is the alpha-beta model: alpha is the latency, the seconds that a message takes however short
it is, and beta the bandwidth in bytes per second. Both are fitted to all-reduces of many sizes, as
those of a ring. Computing is measured for batches that no prediction is made for, without
averaging; in between it is read off straight lines. "around" is what is missing at one such batch.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --ranks 2 --rounds 20

It runs on CPUs. Source of the ring and tree costs: R. Thakur, R. Rabenseifner, W. Gropp,
Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19
(2005); of the ring also P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69 (2009).
"""

import argparse
import bisect
import importlib
import math
import statistics
import time
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import common

train = importlib.import_module("05_multinode.train")

CPU = common.CPU
MODEL_BYTES = sum(parameter.nbytes for parameter in train.make_model().parameters())
FIT_IMAGES = [8, 20, 40, 80, 160, 320, 520]  # per rank; computing is measured for these
MIDDLE = 80  # per rank; so many are computed before each all-reduce, and "around" is taken there
FIT_BYTES = [4 * 2**10, 32 * 2**10, 2**18, 2**20, 2**22]  # and the all-reduce to these
BATCHES = [60, 120, 240, 480, 960]  # over all ranks; these are predicted, then measured


class Curve(NamedTuple):
    """Straight lines between points; beyond the last ones the outermost lines go on."""

    xs: list[float]
    ys: list[float]

    def __call__(self, x: float) -> float:
        right = min(max(bisect.bisect(self.xs, x), 1), len(self.xs) - 1)
        x0, x1 = self.xs[right - 1 : right + 1]
        y0, y1 = self.ys[right - 1 : right + 1]
        return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def main() -> None:
    args = parse()
    runs = {n: common.on_ranks(n, measure, n <= args.cores, args)[0] for n in args.ranks}
    ranks = {n: fit(n, runs, args.cores) for n in args.ranks}
    results = {"about": common.about(), "cores": args.cores, "bytes": MODEL_BYTES, "ranks": ranks}
    common.show(args, "scaling", results, report)


def parse() -> argparse.Namespace:
    parser = common.flags(__doc__, rounds=8, steps=12)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 4], help="how many to predict and measure (2 4)"
    )
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


def naive(n: int, size: float, alpha: float, beta: float) -> float:
    """The same through one rank, whose line carries everything twice."""
    return 2 * alpha + 2 * (n - 1) * size / beta if n > 1 else 0.0


WAYS = {"ring": ring, "tree": tree, "naive": naive}


def overlapped(full: list[float], averaging: list[float]) -> float:
    """Seconds of a step in which buckets of gradients are averaged while backward goes on.

    full: of each bucket the seconds from the start of the step until backward has filled it.
    averaging: the seconds of its all-reduce, which starts when the bucket is full and the
    all-reduce before it is done.
    """
    end = 0.0
    for start, seconds in zip(full, averaging, strict=True):
        end = max(end, start) + seconds
    return end


class StepCost(NamedTuple):
    """Seconds of a step of ideal ranks: see step_cost."""

    all_reduces: float  # of all buckets, one after the other
    hidden: float  # what backward hides of them
    exposed: float
    step: float


FIRST_BUCKET = 2**20  # bytes: DDP's defaults
BUCKET = 25 * 2**20


def step_cost(
    gradients: float,
    busbw: float,
    ranks: int,
    forward: float,
    backward: float,
    optimizer: float,
) -> StepCost:
    """What a step costs according to the formula of docs/eight_gpus.md.

    gradients: bytes that DDP all-reduces, of all parameters.
    busbw: bytes per second, as nccl-tests prints it; algbw is busbw * N / (2 (N - 1)).
    ranks: N, from 1 on.
    forward, backward, optimizer: seconds on one GPU, without communication.

    It knows bytes and bandwidth only. It assumes that all ranks are equally fast, that an
    all-reduce has no latency and reaches the full bandwidth, that backward computes as many bytes
    of gradients in each second, and that communicating does not slow computing. A real step takes
    longer. docs/site/static/step_cost.js computes the same, and a test compares both.
    """
    seconds = (forward, backward, optimizer)
    if ranks < 1 or ranks != int(ranks):
        raise ValueError(f"ranks: a whole number from 1 on, not {ranks}")
    if not all(0 < one < math.inf for one in (gradients, busbw, backward)):
        raise ValueError("gradients, busbw and backward have to be above 0, and finite")
    if not all(0 <= one < math.inf for one in seconds):
        raise ValueError("forward and optimizer have to be 0 or more, and finite")
    # 1 / algbw: one rank sends nothing.
    per_byte = 2 * (ranks - 1) / ranks / busbw
    all_reduces = gradients * per_byte
    last = min(BUCKET, gradients) * per_byte
    after_the_first = backward * (1 - min(FIRST_BUCKET, gradients) / gradients)
    exposed = max(last, all_reduces - after_the_first)
    return StepCost(all_reduces, all_reduces - exposed, exposed, sum(seconds) + exposed)


def speedup(
    gradients: float,
    busbw: float,
    ranks: int,
    forward: float,
    backward: float,
    optimizer: float,
    strong: bool = False,
) -> float:
    """How many times as many samples per second as one GPU. By ranks, it is the efficiency.

    Weak scaling keeps the batch of each GPU. Strong scaling splits it, and here a part of 1/N takes
    1/N of the time, which real GPUs do not reach.
    """
    alone = forward + backward + optimizer
    parts = ranks if strong else 1
    cost = step_cost(gradients, busbw, ranks, forward / parts, backward / parts, optimizer)
    return alone / cost.step * ranks / parts


def fit_line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """-> a and b of y = a + b x, with the least squares of the *relative* errors.

    So the small ones count as much as the large ones. Neither a nor b may be negative: where one
    comes out so it is 0, and the other is fitted alone.
    """
    y = torch.tensor(ys, dtype=torch.float64)
    columns = torch.stack([torch.ones_like(y), torch.tensor(xs, dtype=torch.float64)], dim=1)
    weighted = columns / y[:, None]
    target = torch.ones(len(ys), 1, dtype=torch.float64)
    a, b = torch.linalg.lstsq(weighted, target).solution.flatten().tolist()
    if a < 0:
        a = 0.0
        b = torch.linalg.lstsq(weighted[:, 1:], target).solution.item()
    elif b < 0:
        a = torch.linalg.lstsq(weighted[:, :1], target).solution.item()
        b = 0.0
    return a, b


def fit(n: int, runs: dict[int, dict], cores: int) -> dict:
    """From what was measured -> the fitted constants of n ranks, predictions and measurements.

    Where the ranks have no core each, computing is that of the largest run in which they had.
    """
    measured = runs[n]
    fitted_on = n if n <= cores else max(m for m in runs if m <= cores)
    computing = Curve(FIT_IMAGES, [runs[fitted_on]["computing"][b] for b in FIT_IMAGES])
    fixed, each = fit_line(FIT_BYTES, [measured["averaging"][size] for size in FIT_BYTES])
    averaging = fixed + each * MODEL_BYTES
    turns = max(1.0, n / cores)
    around = measured["step"][MIDDLE * n] - turns * computing(MIDDLE) - averaging
    rows = []
    for batch in BATCHES:
        seconds = measured["step"][batch]
        computed = turns * computing(batch / n)
        predicted = computed + averaging + around
        row = {
            "batch": batch,
            "measured": seconds,
            "computing": computed,
            "averaging": averaging,
            "around": around,
            "predicted": predicted,
            "error": predicted / seconds - 1,
        }
        rows.append(row)
    return {
        "alpha": fixed / (2 * (n - 1)),
        "beta": 2 * (n - 1) / n / each if each else math.inf,
        "computing": computing,
        "averaging": measured["averaging"],
        "rows": rows,
    }


# ---------------------------------------------------------------- on the ranks


def measure(with_computing: bool, args: argparse.Namespace) -> dict[str, dict[int, float]]:
    """On every rank -> {"computing", "averaging", "step": {images, bytes or batch: seconds}}.

    Each is a median over the rounds; in a round everything has its turn, so that all meet the same
    noise. Of a round the mean counts, as in an epoch. Computing is DDP's step without averaging; in
    each step the slowest rank counts, since averaging would make the others wait for it.
    """
    n = dist.get_world_size()
    alone = {images: Trainee(images, args) for images in FIT_IMAGES}
    together = {batch: Trainee(batch // n, args) for batch in (MIDDLE * n, *BATCHES)}
    ways = {}
    if with_computing:
        for images, trainee in alone.items():
            ways["computing", images] = trainee.computing
    for size in FIT_BYTES:
        ways["averaging", size] = partial(all_reduces, alone[MIDDLE], size, args.steps)
    for batch, trainee in together.items():
        ways["step", batch] = trainee.whole_steps
    seconds = {"computing": {}, "averaging": {}, "step": {}}
    for (kind, x), rounds in common.in_turns(args.rounds, ways).items():
        seconds[kind][x] = statistics.median(rounds)
    return seconds


class Trainee:
    """A model in DDP with batches in memory, trained by the stage's own train_epoch."""

    def __init__(self, images: int, args: argparse.Namespace):
        torch.manual_seed(0)
        model = train.make_model().to(memory_format=torch.channels_last)
        steps = (args.rounds + 1) * args.steps  # in_turns adds a round that does not count
        self.optimizer, self.schedule = common.scheduled_sgd(model, 0.01, steps)
        self.model = common.ddp(model)
        self.loader = common.batches(1, images) * args.steps

    def steps(self) -> torch.Tensor:
        """Train -> the seconds of each step on this rank, [steps]"""
        watch = common.train_epoch(self.model, self.loader, self.optimizer, self.schedule)
        ends = [now for phase, now in watch.laps if phase in ("start", "optimizer")]
        return torch.tensor(ends, dtype=torch.float64).diff()

    def whole_steps(self) -> float:
        """Mean seconds of a step, of the slowest rank."""
        mean = self.steps().mean()
        dist.all_reduce(mean, dist.ReduceOp.MAX)
        return mean.item()

    def computing(self) -> float:
        """The same without averaging; in each step the slowest rank counts."""
        with self.model.no_sync():
            seconds = self.steps()
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.mean().item()


def all_reduces(trainee: Trainee, size: int, repeats: int) -> float:
    """Mean seconds of an all-reduce of size bytes, each after computing as in a step.

    In a loop of nothing else they would be quicker: no core would have gone to sleep. The rank that
    comes last waits for no other, so of each all-reduce the shortest time of a rank is what counts.
    """
    tensor = torch.zeros(size // 4)
    seconds = torch.empty(repeats, dtype=torch.float64)
    images, labels = trainee.loader[0]
    for i in range(repeats):
        x, y = train.to_device(images, labels, CPU)
        F.cross_entropy(trainee.model.module(x), y).backward()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        seconds[i] = time.perf_counter() - started
    dist.all_reduce(seconds, dist.ReduceOp.MIN)
    return seconds.mean().item()


# ---------------------------------------------------------------- what came out


def report(results: dict) -> str:
    """For each number of ranks its constants, and the prediction and the measurement."""
    lines = [f"ConvNet, {results['bytes']:,} bytes of gradients, {results['about']}"]
    parts = ("computing", "averaging", "around", "predicted", "measured")
    titles = ["images per step", "computing", "+ all-reduce", "+ around", "= predicted, ms"]
    for n, found in results["ranks"].items():
        n = int(n)  # it is a str in a file
        points = [f"{images}: {1e6 * s / images:.0f}" for images, s in zip(*found["computing"])]
        shared = ""
        if n > results["cores"]:
            shared = f", times {n / results['cores']:g} on shared cores"
        rows = []
        for row in found["rows"]:
            cells = [f"{1000 * row[part]:.2f}" for part in parts]
            rows.append([f"{row['batch']}", *cells, f"{row['error']:+.1%}"])
        lines += [
            f"\n{n} ranks: latency {1e6 * found['alpha']:,.0f} us, "
            f"bandwidth {found['beta'] / 1e9:.2f} GB/s",
            f"computing in us per image, by images per rank{shared}:\n{', '.join(points)}",
            common.table([*titles, "measured", "error"], rows),
            f"largest error: {max(abs(row['error']) for row in found['rows']):.1%}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Does the learning rate have to grow with the batch? Three rules, several seeds, on MNIST.

Trains as docs/examples/batch_size.py does, in one process: the number of ranks that split a batch
does not matter. Only batch and rate change; images, epochs and the form of the schedule stay. The
base batch is trained at other rates, too: a rule presumes that the base rate is a good one.

    python -m benchmarks.batch_size --data data
    python -m benchmarks.batch_size --seeds 1 --images 240 --factors 1 2
"""

import argparse
import functools
import importlib
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor

from benchmarks import common

example = importlib.import_module("docs.examples.batch_size")

BASE = 60  # images per step
RULES = {  # name -> rule, and whether the rate begins at the base rate and warms up
    "fixed": ("fixed", True),
    "sqrt, warm-up": ("sqrt", True),
    "linear, warm-up": ("linear", True),
    "linear, no warm-up": ("linear", False),
}
OTHER_RATES = (0.25, 0.5, 2, 4)  # times the base rate
TITLES = {"sgd": "SGD", "adam": "Adam"}


def main() -> None:
    parser = common.flags(__doc__, epochs=2)
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    add("--seeds", type=int, default=3, help="trainings of each setting (3)")
    add("--images", type=int, default=12_000, help="how many of the training set (12000)")
    add("--factors", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="times the base batch")
    args = common.parse(parser, epochs=1, seeds=1)
    if args.factors[0] != 1 or min(args.factors) < 1 or BASE * max(args.factors) > args.images:
        parser.error(f"--factors: 1 comes first, and {BASE} times each is at most --images")
    test_set = common.stage1.load_mnist(args.data)[1]
    results = {
        "about": f"{common.about()}, {args.seeds} seed(s)",
        "dataset": common.dataset_name(test_set),
        "images": args.images,
        "epochs": args.epochs,
        "settings": measure(args),
    }
    common.show(args, "batch_size", results, report)


# ---------------------------------------------------------------- training


def measure(args: argparse.Namespace) -> list[dict]:
    """Train each setting with each seed, one process per core -> the settings with accuracies."""
    settings = plan(args.factors)
    jobs = [(args, setting, seed) for setting in settings for seed in range(args.seeds)]
    context = multiprocessing.get_context("spawn")
    options = {"mp_context": context, "initializer": common.end_with_parent}
    with ProcessPoolExecutor(common.cores(), **options) as pool:
        accuracies = list(pool.map(train_once, *zip(*jobs)))
    for number, setting in enumerate(settings):
        setting["accuracy"] = accuracies[number * args.seeds : (number + 1) * args.seeds]
    return settings


def plan(factors: list[int]) -> list[dict]:
    """-> settings: the base batch, also at other rates, then each rule at each larger batch"""
    settings = []
    for optimizer, lr in example.RATES.items():
        for multiple in (1, *OTHER_RATES):
            rate, rule = lr * multiple, "base" if multiple == 1 else "other rate"
            settings.append(setting(optimizer, rule, 1, rate, rate))
        for factor in factors[1:]:
            for name in rules_of(optimizer):
                rule, warm_up = RULES[name]
                peak = example.scaled_rate(rule, lr, factor)
                settings.append(setting(optimizer, name, factor, lr if warm_up else peak, peak))
    return settings


def setting(optimizer: str, rule: str, factor: int, first: float, peak: float) -> dict:
    return {"optimizer": optimizer, "rule": rule, "factor": factor, "first": first, "peak": peak}


def rules_of(optimizer: str) -> list[str]:
    """Only SGD is trained without warm-up, too."""
    return list(RULES) if optimizer == "sgd" else list(RULES)[:3]


def train_once(args: argparse.Namespace, setting: dict, seed: int) -> float:
    """-> accuracy on the test set, from 0 to 1"""
    torch.set_num_threads(1)
    images, labels = load(args.data, True, args.images)
    batch_size = BASE * setting["factor"]
    steps = args.epochs * (len(images) // batch_size)
    model = example.make_model(seed)
    optimizer = example.OPTIMIZERS[setting["optimizer"]](model.parameters())
    rates = example.schedule(setting["first"], setting["peak"], steps)
    example.train(model, optimizer, rates, images, labels, batch_size)
    return example.accuracy(model, *load(args.data, False, 10_000))


@functools.cache
def load(data: Path, train: bool, count: int) -> tuple[Tensor, Tensor]:
    return example.load(data, train, count)


# ---------------------------------------------------------------- what came out


def report(results: dict) -> str:
    """The table of docs/batch_size_and_learning_rate.md, and the base batch at other rates."""
    images = f"{results['images']:,} images, {results['epochs']} epoch(s)"
    head = f"{results['dataset']}, {images}, {results['about']}, test accuracy in %"
    factors = sorted({row["factor"] for row in results["settings"]})
    steps = [results["epochs"] * (results["images"] // (BASE * factor)) for factor in factors]
    rows, others = [["steps", *steps]], []
    for optimizer, title in TITLES.items():
        of_one = [row for row in results["settings"] if row["optimizer"] == optimizer]
        for rule in rules_of(optimizer):
            own = [row for row in of_one if row["rule"] in ("base", rule)]
            rows.append([f"{title}, {rule}", *(spread(row["accuracy"]) for row in own)])
        for row in of_one:
            if row["factor"] == 1:
                others.append([f"{title}, rate {row['peak']:g}", spread(row["accuracy"])])
    titles = ["images per step", *(str(BASE * factor) for factor in factors)]
    tables = [tabulate(rows, titles, "pipe"), tabulate(others, ["other rates", BASE], "pipe")]
    return "\n\n".join([head, *tables])


def spread(values: list[float]) -> str:
    """In percent: the mean of the seeds (the smallest-the largest)."""
    mean, low, high = (100 * value for value in (statistics.mean(values), min(values), max(values)))
    return f"{mean:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    main()

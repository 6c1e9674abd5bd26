"""How long a step waits for its images: loaded one by one or a batch at a time, with more workers.

One by one is torchvision's own way, and that of most demos: an image becomes a PIL image, then a
tensor, and the loader puts a batch of them together. The ConvNet, the batch of 120 images and the
stopwatch are stage 1's, on one thread. Each way has the same 100 steps, after 10 that do not count;
the ways take turns. The quickest run of each is kept, because load only adds time.

    python -m benchmarks.loaders --data data
"""

import importlib
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import records
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

BATCH, WARM_UP, STEPS = 120, 10, 100
ONE_BY_ONE, WHOLE = "one by one", "whole batches"


def main() -> None:
    parser = common.flags(__doc__, rounds=4)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = common.parse(parser, rounds=1)
    torch.set_num_threads(1)
    train_set, test_set = stage1.load_mnist(args.data)
    ways = loaders(args.data, train_set)
    runs = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, (loader, prepare) in ways.items():
            runs[way].append(measure(loader, prepare))
    quickest = {way: min(own, key=lambda run: sum(run.values())) for way, own in runs.items()}
    results = {"about": common.about(), "dataset": records.dataset_name(test_set.data.numpy())}
    results |= {"batch": BATCH, "steps": STEPS, "rounds": args.rounds}
    common.show(args, "loaders", results | {"milliseconds_per_step": quickest}, report)


def report(results: dict) -> str:
    about, dataset, quickest = (results[k] for k in ("about", "dataset", "milliseconds_per_step"))
    rows = [[way, *run.values(), sum(run.values())] for way, run in quickest.items()]
    table = tabulate(rows, ["", *quickest[WHOLE], "step"], floatfmt=".2f")
    return f"milliseconds per step of {BATCH} images of {dataset}, one thread, {about}\n{table}"


def loaders(data: Path, train_set: stage1.MNIST) -> dict[str, tuple[DataLoader, Callable]]:
    """-> {way: (loader, what makes its batches ready for the model)}"""
    images = datasets.MNIST(data, transform=transforms.ToTensor())
    ways = {}
    for workers, ending in enumerate(("", ", 1 worker", ", 2 workers")):
        loader = DataLoader(images, batch_size=BATCH, shuffle=True, num_workers=workers)
        ways[ONE_BY_ONE + ending] = loader, lambda x, y, device: (x, y)
        if workers < 2:  # a second one would have nothing to do
            loader = common.make_loader(train_set, BATCH, workers)
            ways[WHOLE + ending] = loader, stage1.to_device
    return dict(sorted(ways.items()))


def measure(loader: Iterable, prepare: Callable) -> dict[str, float]:
    """Train for some steps from a fresh start -> milliseconds of a step in each phase."""
    torch.manual_seed(0)
    model = stage1.ConvNet().to(memory_format=torch.channels_last).train()
    optimizer = common.scheduled_sgd(model, 0.1, WARM_UP + STEPS)
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch, if there are few images
    for step in range(WARM_UP + STEPS):
        if step in (0, WARM_UP):  # what the first watch has seen is thrown away
            watch = stage1.Stopwatch(common.CPU)
        x, y = prepare(*next(batches), common.CPU)
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        loss.backward()
        watch.lap("backward")
        optimizer.step()
        watch.lap("optimizer")
    return {phase: 1000 * seconds / STEPS for phase, seconds in watch.seconds().items()}


if __name__ == "__main__":
    main()

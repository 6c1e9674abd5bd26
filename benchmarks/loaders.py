"""How long a step waits for its images: made one by one, taken from memory, with more workers.

One by one is torchvision's own way, and that of most demos: an image becomes a PIL image, then a
tensor, and the loader puts a batch of them together. From memory is the stages' way: the images are
rows of one tensor, in a TensorDataset, and the loader puts a batch of them together. Whole batches
are taken out of that tensor at once, because the sampler gives the loader all numbers of a batch.

The model, the batch of 120 images and the stopwatch are stage 1's, on one thread. Each way has the
same 100 steps, after 10 that do not count; the ways are interleaved. The quickest run of each is
kept, because load only adds time.

    python -m benchmarks.loaders --data data
"""

import importlib
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchvision import datasets, transforms

from benchmarks import common
from lib import records

stage1 = importlib.import_module("01_baseline.train")

BATCH = 120
WARM_UP = 10
STEPS = 100
ONE_BY_ONE = "one by one"
FROM_MEMORY = "from memory"
WHOLE = "whole batches"


def main() -> None:
    parser = common.flags(__doc__, rounds=4)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = common.parse(parser, rounds=1)
    torch.set_num_threads(1)
    stage1.download_mnist(args.data)
    train_set, _ = stage1.load_mnist(args.data)
    quickest = {}
    for _ in range(args.rounds):
        for way, (loader, prepare) in loaders(args.data, train_set).items():
            run = measure(loader, prepare)
            if way not in quickest or sum(run.values()) < sum(quickest[way].values()):
                quickest[way] = run
    results = {
        "about": common.about(),
        "dataset": "synthetic digits" if (args.data / "NOT_MNIST.txt").exists() else "MNIST",
        "batch": BATCH,
        "steps": STEPS,
        "rounds": args.rounds,
        "milliseconds_per_step": quickest,
    }
    common.show(args, "loaders", results, report)


def report(results: dict) -> str:
    quickest = results["milliseconds_per_step"]
    rows = []
    for way, phases in quickest.items():
        rows.append([way, *phases.values(), sum(phases.values())])
    table = tabulate(rows, ["", *quickest[ONE_BY_ONE], "step"], floatfmt=".2f")
    data = f"{BATCH} images of {results['dataset']}"
    return f"milliseconds per step of {data}, one thread, {results['about']}\n{table}"


def loaders(data: Path, train_set: TensorDataset) -> dict[str, tuple[DataLoader, Callable]]:
    """-> {way: (loader, what makes its batches ready for the model)}"""
    images = datasets.MNIST(data, transform=transforms.ToTensor())
    endings = ("", ", 1 worker", ", 2 workers")
    ways = {}
    for workers, ending in enumerate(endings):
        loader = DataLoader(images, batch_size=BATCH, shuffle=True, num_workers=workers)
        ways[ONE_BY_ONE + ending] = (loader, as_it_is)
    for workers, ending in enumerate(endings[:2]):  # a second worker would have nothing to do
        loader = common.make_loader(train_set, BATCH, workers)
        ways[FROM_MEMORY + ending] = (loader, stage1.to_device)
    # batch_size=None: the data set gets what the sampler gives, and there is nothing to collate.
    sampler = BatchSampler(RandomSampler(train_set), BATCH, drop_last=False)
    loader = DataLoader(train_set, batch_size=None, sampler=sampler)
    ways[WHOLE] = (loader, stage1.to_device)
    return ways


def as_it_is(x: torch.Tensor, y: torch.Tensor, device: torch.device) -> tuple:
    return x, y


def measure(loader: Iterable, prepare: Callable) -> dict[str, float]:
    """Train for some steps from a fresh start -> milliseconds of a step in each phase."""
    torch.manual_seed(0)
    model = stage1.make_model().to(memory_format=torch.channels_last).train()
    optimizer, schedule = common.scheduled_sgd(model, 0.1, WARM_UP + STEPS)
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch, if there are few images
    for step in range(WARM_UP + STEPS):
        if step in (0, WARM_UP):  # what the first watch has seen is thrown away
            watch = stage1.Stopwatch(common.CPU)
        images, labels = next(batches)
        x, y = prepare(images, labels, common.CPU)
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        loss.backward()
        watch.lap("backward")
        optimizer.step()
        schedule.step()
        watch.lap("optimizer")
    return records.milliseconds_per_step(watch.seconds(), STEPS)


if __name__ == "__main__":
    main()

"""How long a step waits for its images: dealt one by one or a batch at a time, by how many workers.

One by one is torchvision's own way, and that of most demos: an image becomes a PIL image, then a
tensor, and the loader puts a batch of them together. The ConvNet, the batch of 120 images and the
stopwatch are stage 1's, on one thread. Each way has the same 100 steps, after 10 that do not count;
the ways take turns, and of the runs of each the quickest is kept: whatever else a machine does
makes a run longer, never shorter.

    python notebooks/workers/loaders.py --data data
    python notebooks/workers/loaders.py --data data --write notebooks/results/01_loaders.json
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
common = importlib.import_module("benchmarks.common")
stage1 = importlib.import_module("01_baseline.train")

BATCH, WARM_UP, STEPS = 120, 10, 100
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw")
    parser.add_argument("--repeats", type=int, default=3, help="of each way (3)")
    parser.add_argument("--write", type=Path, help="file for the result, as JSON")
    args = common.parse(parser, repeats=1)
    torch.set_num_threads(1)
    train_set, test_set = stage1.load_mnist(args.data)
    plain = datasets.MNIST(args.data, transform=transforms.ToTensor())
    ways = {f"one by one{with_workers(n)}": one_by_one(plain, n) for n in (0, 1, 2)}
    ways |= {f"whole batches{with_workers(n)}": whole_batches(train_set, n) for n in (0, 1)}
    runs = {way: [] for way in ways}
    for _ in range(args.repeats):
        for way, (loader, prepare) in ways.items():
            runs[way].append(measure(loader, prepare))
    quickest = {way: min(own, key=total) for way, own in runs.items()}
    for way, phases in quickest.items():
        cells = "".join(f"{phase:>10} {value:6.2f}" for phase, value in phases.items())
        print(f"{way:28}{cells}   sum {total(phases):6.2f} ms")
    if args.write:
        result = {"about": f"{common.device_name()}, torch {torch.__version__}"}
        result |= {"dataset": common.dataset_name(test_set), "batch": BATCH, "steps": STEPS}
        result |= {"repeats": args.repeats, "milliseconds_per_step": quickest}
        common.write_json(args.write, result)


def with_workers(number: int) -> str:
    return ("", ", 1 worker", ", 2 workers")[number]


def one_by_one(data: datasets.MNIST, workers: int) -> tuple[DataLoader, Callable]:
    """-> a loader as most demos make it, and what makes its batches ready for the model: nothing"""
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers)
    return loader, lambda x, y, device: (x, y)


def whole_batches(data: stage1.MNIST, workers: int) -> tuple[DataLoader, Callable]:
    """-> stage 1's loader, and its own to_device, which scales the bytes"""
    return common.make_loader(data, BATCH, workers), stage1.to_device


def measure(loader: Iterable, prepare: Callable) -> dict[str, float]:
    """Train for some steps from a fresh start -> milliseconds of a step in each phase."""
    torch.manual_seed(0)
    model = stage1.ConvNet().to(memory_format=torch.channels_last).train()
    optimizer, schedule = common.sgd_one_cycle(model, 0.1, WARM_UP + STEPS)
    batches = iter(loader)
    for step in range(WARM_UP + STEPS):
        if step in (0, WARM_UP):  # what the first watch has seen is thrown away
            watch = stage1.Stopwatch(CPU)
        x, y = prepare(*next(batches), CPU)
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        loss.backward()
        watch.lap("backward")
        optimizer.step()
        schedule.step()
        watch.lap("optimizer")
    return {phase: 1000 * seconds / STEPS for phase, seconds in watch.seconds().items()}


def total(phases: dict[str, float]) -> float:
    return sum(phases.values())


if __name__ == "__main__":
    main()

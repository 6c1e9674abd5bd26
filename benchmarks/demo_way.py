"""Stage 1 against the way most MNIST demos go, on one core: an epoch, and the whole program.

The demo's way: every image through PIL and ToTensor, batch 32, plain SGD at a learning rate of
1e-4, no loader workers; the ConvNet is the same. Beside stage 1 runs stage 3 on one rank with bf16,
since stage 1 knows no mixed precision. Each way is a command of its own, started by turns. The
first epoch warms up and does not count if there are others; "in all" is the command seen from
outside, from its start to its exit, with its test. A ratio is a way's time over the demo's in the
same run.

    python benchmarks/demo_way.py --data data
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

ROOT = common.ROOT
DEMO = "demo's way"
WAYS = {  # name -> what Python runs
    DEMO: [__file__, "--once"],
    "stage 1": [ROOT / "01_baseline/train.py"],
    "stage 3, one rank, bf16": [ROOT / "03_ddp_spawn/train.py", "--world-size=1", "--amp=bf16"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw")
    parser.add_argument("--epochs", type=int, default=2, help="in each run (2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each way (3)")
    parser.add_argument("--results", type=Path, help="folder for demo_way.json")
    parser.add_argument("--once", action="store_true", help="one run of the demo's way, as JSON")
    args = common.parse(parser, epochs=1, repeats=1)
    if args.once:
        print(json.dumps(demo(args.data, args.epochs)))
        return
    name = common.dataset_name(stage1.load_mnist(args.data)[1])
    about = f"{common.device_name()}, torch {torch.__version__}"
    print(f"{args.repeats} run(s) of {args.epochs} epoch(s) on {name}, one thread, {about}")
    runs = {way: [] for way in WAYS}
    for repeat in range(args.repeats):
        for way in WAYS:
            runs[way].append(run(way, args))
            print(f"run {repeat + 1}  {way:24}{line(runs[way][-1])}", flush=True)
    print(table(runs))
    if args.results:
        results = {"about": about, "dataset": name, "epochs": args.epochs, "runs": runs}
        common.write_json(args.results / "demo_way.json", results)


def run(way: str, args: argparse.Namespace) -> dict:
    """Run a way as a reader would -> {"epoch_seconds", "test_accuracy", "command_seconds"}"""
    with tempfile.TemporaryDirectory() as temp:
        command = [sys.executable, *WAYS[way], "--data", args.data, "--epochs", str(args.epochs)]
        if way != DEMO:
            command += ["--device=cpu", "--record", temp, "--checkpoint", Path(temp, "model.pt")]
        started = time.perf_counter()
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - started
        if result.returncode:
            sys.exit(f"{way}: exit code {result.returncode}")
        if way == DEMO:
            found = json.loads(result.stdout)
        else:
            found = from_record(json.loads(next(Path(temp).glob("*.json")).read_text()))
    return found | {"command_seconds": seconds}


def from_record(record: dict) -> dict:
    """A stage's record, of one rank -> epoch_seconds, test_accuracy from 0 to 1."""
    correct, total = record["history"][-1]["test"]
    seconds = [sum(epoch["phases"][0].values()) for epoch in record["history"]]
    return {"epoch_seconds": seconds, "test_accuracy": correct / total}


def demo(data: Path, epochs: int) -> dict:
    """Train the demo's way on one thread -> epoch_seconds, test_accuracy from 0 to 1."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, optimizer, loader = demo_setup(data)
    seconds = []
    for _ in range(epochs):
        started = time.perf_counter()
        plain_epoch(model, optimizer, loader)
        seconds.append(time.perf_counter() - started)
    _, test_set = stage1.load_mnist(data)
    correct, total = stage1.evaluate(model, test_set, common.CPU).tolist()
    return {"epoch_seconds": seconds, "test_accuracy": correct / total}


def demo_setup(data: Path) -> tuple[nn.Module, Optimizer, DataLoader]:
    """-> model, optimizer and training set as most demos make them"""
    train_set = datasets.MNIST(data, train=True, transform=transforms.ToTensor())
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model = stage1.ConvNet()
    return model, SGD(model.parameters(), lr=1e-4), loader


def plain_epoch(
    model: nn.Module, optimizer: Optimizer, loader: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """One step per batch: images [B, 1, 28, 28], as the model takes them, and labels [B]."""
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def line(run: dict) -> str:
    epochs = "  ".join(f"{seconds:.2f} s" for seconds in run["epoch_seconds"])
    return f"  epochs: {epochs}  in all: {run['command_seconds']:.2f} s"


def table(runs: dict[str, list[dict]]) -> str:
    """A line per way: medians over its runs, and how they compare with the demo's way."""
    lines = [
        f"{'':24}{'s per epoch':>12}{'ratio':>19}{'s in all':>10}{'ratio':>19}{'accuracy':>10}"
    ]
    for way, own in runs.items():
        cells = ""
        for measure in (median_epoch, itemgetter("command_seconds")):
            seconds, demos = list(map(measure, own)), list(map(measure, runs[DEMO]))
            ratios = [ours / theirs for ours, theirs in zip(seconds, demos)]
            spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
            middle = statistics.median(ratios)
            cells += f"{statistics.median(seconds):10.2f}{middle:7.2f} {spread}"
        accuracy = statistics.median(run["test_accuracy"] for run in own)
        lines.append(f"{way:24}  {cells}{accuracy:10.2%}")
    return "\n".join(lines)


def median_epoch(run: dict) -> float:
    """Seconds of an epoch; the first one warms up and does not count if there are others."""
    return statistics.median(run["epoch_seconds"][1:] or run["epoch_seconds"])


if __name__ == "__main__":
    main()

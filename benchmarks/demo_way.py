"""Stage 1 against the way most MNIST demos go, on one core: seconds for one epoch of training.

    python benchmarks/demo_way.py --data data

The demo's way: every image through PIL and ToTensor, batch 32, plain SGD at a learning rate of
1e-4, no loader workers; the ConvNet is the same. Both run as commands of their own, by turns,
three times; the medians are compared.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
stage1 = importlib.import_module("01_baseline.train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--once", action="store_true", help="only one epoch the demo's way")
    args = parser.parse_args()
    if args.once:
        print(json.dumps(demo_epoch(args.data)))
        return
    runs = {"demo's way": [], "stage 1": []}
    for repeat in range(args.repeats):
        for name, run in (("demo's way", run_demo), ("stage 1", run_stage1)):
            seconds, accuracy = run(args.data)
            runs[name].append(seconds)
            print(f"run {repeat + 1}  {name:<10}  {seconds:6.2f} s  accuracy {accuracy:.2%}")
    demo, ours = (statistics.median(seconds) for seconds in runs.values())
    print(f"medians: demo's way {demo:.2f} s, stage 1 {ours:.2f} s, ratio {ours / demo:.2f}")


def run_demo(data: Path) -> tuple[float, float]:
    """One epoch the demo's way in a process of its own -> seconds, test accuracy."""
    command = [sys.executable, __file__, "--once", "--data", data]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(json.loads(result.stdout))


def run_stage1(data: Path) -> tuple[float, float]:
    """One epoch of stage 1, started as a reader would -> seconds, test accuracy."""
    with tempfile.TemporaryDirectory() as temp:
        command = [sys.executable, ROOT / "01_baseline/train.py", "--data", data]
        command += ["--epochs", "1", "--device", "cpu"]
        command += ["--record", temp, "--checkpoint", Path(temp, "model.pt")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = json.loads(Path(temp, "01_baseline-1xcpu.json").read_text())
    return record["epoch_seconds"][0], record["test_accuracy"]


def demo_epoch(data: Path) -> tuple[float, float]:
    """Train one epoch the demo's way on one thread -> seconds, test accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train_set = datasets.MNIST(data, train=True, transform=transforms.ToTensor())
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model = stage1.ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    started = time.perf_counter()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - started
    _, _, test_set = stage1.load_mnist(data)
    correct, total = stage1.evaluate(model, test_set, torch.device("cpu")).tolist()
    return seconds, correct / total


if __name__ == "__main__":
    main()

"""How soon does one GPU reach 99 %, and what keeps it from being sooner? Variants of stage 1.

The ConvNet is so small that a GPU mostly waits for its next kernel: a step is some hundred kernels,
each shorter than the time Python takes to launch it. Each variant takes away
one reason to wait, and keeps those before it:

    stage 1           its own train_epoch and DataLoader
    resident          images and labels stay on the device; a permutation there makes the batches
    bf16              autocast, as stage 3's --amp bf16
    compiled          torch.compile melts kernels together
    CUDA graph        the whole step is recorded once; a step is then one call

Same model, batches, optimizer and learning rates in all. What is prepared once (compiling,
recording) has a column of its own. The clock stops for the test after each epoch.

    python benchmarks/one_gpu.py --data data
    python benchmarks/one_gpu.py --data data --device cpu --epochs 1

On a CPU the last two variants are left out: there a step does not wait for Python.
"""

import argparse
import copy
import importlib
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")

VARIANTS = ["stage 1", "resident", "bf16", "compiled", "CUDA graph"]
WARM_UP = (
    11  # steps before a graph is recorded; autotuning and the optimizer's buffers are then done
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="holds MNIST/raw")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("-e", "--epochs", type=int, default=2)
    add("-b", "--batch-size", type=int, default=240)
    add("--lr", type=float, default=0.15, help="peak learning rate")
    add("--results", type=Path, help="folder for one_gpu.json")
    args = common.parse(parser, epochs=1, batch_size=2, lr=0)
    on_gpu = torch.cuda.is_available() if args.device == "auto" else args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device")
    device = torch.device("cuda" if on_gpu else "cpu")
    train_set, test_set = stage1.load_mnist(args.data)
    about = f"{common.dataset_name(test_set)}, {args.batch_size} images per step, "
    about += common.device_name(device.type)
    print(f"{about}, torch {torch.__version__}")
    print(f"{'':12}{'prepared in':>12}{'epochs, seconds':>28}{'99 % after':>12}  accuracies")
    rows = {}
    for variant in VARIANTS if on_gpu else VARIANTS[:3]:
        torch.manual_seed(0)
        rows[variant] = train(variant, args, device, train_set, test_set)
        print(line(variant, rows[variant]), flush=True)
    if args.results:
        results = {"about": about, "torch": torch.__version__, "rows": rows}
        common.write_json(args.results / "one_gpu.json", results)


def train(variant: str, args, device: torch.device, train_set, test_set) -> dict:
    """Train with one of the VARIANTS -> {"prepared", "epochs": seconds, "accuracies"}"""
    model = stage1.ConvNet().to(device, memory_format=torch.channels_last)
    steps = math.ceil(len(train_set) / args.batch_size)
    optimizer, schedule = common.sgd_one_cycle(model, args.lr, args.epochs * steps)
    started = time.perf_counter()
    if variant == VARIANTS[0]:
        pin_memory = device.type == "cuda"
        loader = common.make_loader(train_set, args.batch_size, pin_memory=pin_memory)

        def epoch() -> None:
            stage1.train_epoch(model, loader, optimizer, schedule, device)
    else:
        epoch = resident_epoch(variant, args, device, train_set, model, optimizer, schedule)
    finish(device)
    row = {"prepared": time.perf_counter() - started, "epochs": [], "accuracies": []}
    for _ in range(args.epochs):
        started = time.perf_counter()
        model.train()
        epoch()
        finish(device)
        row["epochs"].append(time.perf_counter() - started)
        correct, total = stage1.evaluate(model, test_set, device).tolist()
        row["accuracies"].append(correct / total)
    return row


def resident_epoch(variant, args, device, train_set, model, optimizer, schedule) -> Callable:
    """-> a function that trains one epoch on tensors that stay on the device"""
    images, labels = train_set.data.to(device), train_set.targets.to(device)
    level = VARIANTS.index(variant)
    net = torch.compile(model) if level >= VARIANTS.index("compiled") else model

    def step(x: Tensor, y: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=level >= VARIANTS.index("bf16")):
            loss = F.cross_entropy(net(x.unsqueeze(1).float() / 255), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if level >= VARIANTS.index("compiled"):
        optimizer, step = prepare(variant, args, model, optimizer, step, images, labels)

    def epoch() -> None:
        for batch in torch.randperm(len(images), device=device).split(args.batch_size):
            if len(batch) == args.batch_size:  # a graph has one size; 240 divides 60,000
                step(images[batch], labels[batch])
                schedule.step()

    return epoch


def prepare(variant, args, model: nn.Module, optimizer: SGD, step, images, labels):
    """Compile, or record a graph, then put the weights back as they were -> optimizer, step

    A graph replays addresses: batch, learning rate and gradients have to stay where they were
    recorded. So the rate becomes a tensor, which the schedule fills, and gradients are kept.
    Source of the recipe: PyTorch's notes on CUDA semantics, "Whole-network capture".
    """
    before = copy.deepcopy(model.state_dict())
    x, y = images[: args.batch_size].clone(), labels[: args.batch_size].clone()
    recorded = step
    if variant == "CUDA graph":
        (group,) = optimizer.param_groups
        group["lr"] = torch.tensor(float(group["lr"]), device=x.device)
        group["fused"], group["foreach"] = True, False  # the fused SGD takes its rate from a tensor
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                step(x, y)
        torch.cuda.current_stream().wait_stream(aside)
        optimizer.zero_grad()
        with torch.cuda.graph(graph):
            step(x, y)

        def recorded(new_x: Tensor, new_y: Tensor) -> None:
            x.copy_(new_x)
            y.copy_(new_y)
            graph.replay()
    else:
        for _ in range(WARM_UP):
            step(x, y)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(before[name])
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()
    return optimizer, recorded


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def line(variant: str, row: dict) -> str:
    seconds = " ".join(f"{s:.2f}" for s in row["epochs"])
    reached = [i for i, accuracy in enumerate(row["accuracies"]) if accuracy >= 0.99]
    after = f"{sum(row['epochs'][: reached[0] + 1]):.2f} s" if reached else "-"
    accuracies = " ".join(f"{accuracy:.2%}" for accuracy in row["accuracies"])
    return f"{variant:12}{row['prepared']:10.2f} s{seconds:>28}{after:>12}  {accuracies}"


if __name__ == "__main__":
    main()

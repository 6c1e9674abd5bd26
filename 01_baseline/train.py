"""Stage 1: train a small ConvNet on MNIST, in one process, on one device.

Every later stage is this program made parallel. Above the ruled line is what a stage teaches.
Below it is what all stages share: model, data, evaluation, stopwatch, record, flags.

    python 01_baseline/train.py
    python 01_baseline/train.py --epochs 1 --batch-size 120
"""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchvision import datasets
from tqdm import tqdm

STAGE = "01_baseline"  # used by the code that all stages share


def main():
    args = parse(base_parser())
    train(args, torch.device(args.device))


def train(args, device):
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    train_set, test_set = load_mnist(args.data)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=tuple,  # MNIST.__getitems__ returns a whole batch: there is nothing to collate
        pin_memory=device.type == "cuda",
    )
    model = ConvNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    steps = args.epochs * len(loader)
    schedule = OneCycleLR(optimizer, args.lr, steps, anneal_strategy="linear", cycle_momentum=False)
    # PyTorch calls this after each optimizer.step(); *_ takes its arguments, which are not used.
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    print(f"{STAGE}: one process on one {device.type}, {args.threads} thread(s)")
    history = []
    for _ in range(args.epochs):
        loss, watch = train_epoch(model, loader, optimizer, device)
        correct = evaluate(model, test_set, device)
        history.append({"loss": loss, "test": correct.tolist(), "phases": [watch.seconds()]})
        print(epoch_line(history, args.epochs, len(train_set)))
    finish(args, STAGE, history, len(train_set), {"model": model.state_dict()})


def train_epoch(model, loader, optimizer, device):
    """One optimizer step per batch -> the mean loss, and the stopwatch with its laps."""
    model.train()
    total_loss = torch.zeros((), device=device)  # on the device: .item() would stall every step
    watch = Stopwatch(device)
    for images, labels in tqdm(loader, leave=False, disable=None):
        x, y = to_device(images, labels, device)
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        loss.backward()
        watch.lap("backward")
        optimizer.step()
        total_loss += loss.detach()
        watch.lap("optimizer")
    return total_loss.item() / len(loader), watch


# ----------------------------------------------- below this line: the same in every stage


class ConvNet(nn.Module):
    """Two blocks of convolution and pooling, then a linear layer: [B, 1, 28, 28] -> [B, 10]."""

    def __init__(self):
        super().__init__()
        self.block1 = self.block(1, 16)
        self.block2 = self.block(16, 32)
        self.linear = nn.Linear(7 * 7 * 32, 10)

    def block(self, c_in, c_out):
        convolution = nn.Conv2d(c_in, c_out, kernel_size=5, padding=2)
        return nn.Sequential(convolution, nn.BatchNorm2d(c_out), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x):
        return self.linear(self.block2(self.block1(x)).flatten(1))


class MNIST(datasets.MNIST):
    """MNIST in memory, as uint8. The DataLoader asks __getitems__ for a whole batch at once."""

    def __getitems__(self, indices):
        return self.data[indices], self.targets[indices]


def load_mnist(root):
    """Return the training set and the test set, downloaded first if they are not there."""
    try:
        return MNIST(root, train=True, download=True), MNIST(root, train=False)
    except Exception as error:  # no network, or a damaged file: each has an exception of its own
        stop(f"--data {root}: no MNIST ({error!r}); tools/draw_digits.py makes synthetic digits")


def to_device(images, labels, device):
    """uint8 images [B, 28, 28] -> float images [B, 1, 28, 28] between 0 and 1, on the device."""
    x = images.to(device, non_blocking=True).unsqueeze(1).float() / 255
    return x, labels.to(device, non_blocking=True)


@torch.inference_mode()
def evaluate(model, test_set, device, rank=0, world_size=1):
    """Count correct predictions on test images rank, rank + world_size, ... -> [correct, total]."""
    model.eval()
    images, labels = test_set.data[rank::world_size], test_set.targets[rank::world_size]
    counts = torch.tensor([0, len(labels)], device=device)
    for batch in zip(images.split(500), labels.split(500)):
        x, y = to_device(*batch, device)
        counts[0] += (model(x).argmax(1) == y).sum()
    return counts


class Stopwatch:
    """Split an epoch into phases: lap("forward") adds the time since the last lap to forward."""

    def __init__(self, device):
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.laps = []
        self.lap("start")

    def lap(self, phase):
        now = time.perf_counter()
        if self.stream is not None:  # GPU work is asynchronous: an event, read after the epoch
            now = self.stream.record_event(torch.cuda.Event(enable_timing=True))
        self.laps.append((phase, now))

    def seconds(self):
        """Return {phase: seconds}; the phases leave no gaps, so their sum is the epoch."""
        if self.stream is not None:
            self.stream.synchronize()
        total = {}
        for (_, before), (phase, now) in zip(self.laps, self.laps[1:]):
            lap = before.elapsed_time(now) / 1000 if self.stream else now - before
            total[phase] = total.get(phase, 0.0) + lap
        return total


def epoch_line(history, epochs, images):
    """The last epoch in one line; seconds and images/s are rank 0's, evaluation excluded."""
    last, (correct, total) = history[-1], history[-1]["test"]
    seconds = sum(last["phases"][0].values())
    speed = f"{seconds:7.2f} s  {images / seconds:9,.0f} images/s  loss {last['loss']:7.4f}"
    return f"epoch {len(history):2d}/{epochs}  {speed}  accuracy {correct / total:7.2%}"


def finish(args, name, history, images, parts, world_size=1, hosts=1):
    """Print where a step's time went; append the record to a file; then save the checkpoint."""
    steps = images / min(args.batch_size, images)
    step = {phase: 1000 * s / steps for phase, s in history[-1]["phases"][0].items()}
    split = ", ".join(f"{phase} {milliseconds:.2f}" for phase, milliseconds in step.items())
    print(f"milliseconds per step: {split}")
    flags = {flag: value for flag, value in vars(args).items() if not isinstance(value, Path)}
    run = {"stage": STAGE, "name": name, **flags, "hosts": hosts, "world_size": world_size}
    where = {"images": images, "host": socket.gethostname(), "torch": torch.__version__}
    with open(args.record, "a", encoding="utf-8") as file:  # one line of JSON per run
        file.write(json.dumps({**run, **where, "history": history}) + "\n")
    torch.save(parts, args.checkpoint)


def stop(message):
    """Bad input: one line and exit code 2."""
    print(f"{STAGE}: error: {message}", file=sys.stderr)
    sys.exit(2)


def base_parser():
    """The flags that all stages share."""
    raw, cuda = argparse.RawDescriptionHelpFormatter, torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("-e", "--epochs", type=int, default=2, help="passes over the training set (2)")
    add("-b", "--batch-size", type=int, default=240, help="images per step, over all ranks (240)")
    add("--lr", type=float, default=0.15, help="peak learning rate (0.15)")
    add("--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    add("--threads", type=int, default=1, help="CPU threads per rank (1)")
    add("--workers", type=int, default=0, help="DataLoader workers per rank (0)")
    add("--seed", type=int, default=0, help="seed of the random numbers (0)")
    add("--checkpoint", type=Path, default=f"checkpoints/{STAGE}.pt", help="file for the model")
    add("--record", type=Path, default="timings/runs.jsonl", help="file for the timings")
    return parser


def parse(parser):
    """Read the flags, and refuse what cannot work before anything is started."""
    args = parser.parse_args()
    bounds = dict(epochs=(1, 10**6), batch_size=(1, 10**6), lr=(0, 100), seed=(0, 2**31))
    bounds.update(threads=(1, 512), workers=(0, 512), world_size=(0, 512), timeout=(1, 10**6))
    for flag, (low, high) in bounds.items():
        if not low <= getattr(args, flag, low) <= high:  # nan is refused, too
            stop(f"--{flag.replace('_', '-')} {getattr(args, flag)}: from {low} to {high}")
    if args.device == "cuda" and not torch.cuda.is_available():
        stop("--device cuda: PyTorch sees no CUDA device")
    files = args.record, args.checkpoint, getattr(args, "snapshot", None)
    for file in filter(None, files):
        try:  # a folder that cannot be made fails now, not after the training
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_dir() or files.count(file) > 1:
                stop(f"cannot write to {file}: it is a folder, or two flags name it")
        except OSError as error:
            stop(f"cannot write to {error.filename}: {error.strerror}")
    return args


if __name__ == "__main__":
    main()

"""Stage 1: train a small ConvNet on MNIST, in one process, on one device.

Every later stage is this program on several devices: each device has the whole model, and trains
on a part of every batch.

    python 01_baseline/train.py
    python 01_baseline/train.py --epochs 1 --batch-size 120
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets
from tqdm import tqdm

STAGE = "01_baseline"


def main():
    args = parse_args()
    device = torch.device(args.device)
    download_mnist(args.data)
    train(args, device)


def train(args, device):
    # The seed decides the first weights and the order of the images.
    torch.manual_seed(args.seed)
    # By default there is one CPU thread. Without GPUs one core then stands in for one device.
    torch.set_num_threads(args.threads)

    loader, test_loader = make_loaders(args, device)
    # channels_last puts the channels of a pixel next to each other in memory. Convolutions are
    # faster then: on a CPU this saves a quarter of the time.
    model = make_model().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    # The learning rate rises to args.lr in the first 30 % of the steps, then falls to almost 0.
    steps = args.epochs * len(loader)
    schedule = OneCycleLR(
        optimizer,
        max_lr=args.lr,
        total_steps=steps,
        anneal_strategy="linear",
        cycle_momentum=False,  # The momentum stays the same.
    )

    print(f"{STAGE}: one process on one {device.type}, {args.threads} thread(s)")
    images = len(loader.dataset)
    history = []
    for epoch in range(args.epochs):
        loss, measured = train_epoch(model, loader, optimizer, schedule, device)
        correct, total = evaluate(model, test_loader, device)
        history.append(make_entry(loss, correct, total, measured))
        seconds = sum(measured["phases"].values())  # the training, without the evaluation
        print(
            f"epoch {epoch + 1}/{args.epochs}: {seconds:.2f} s, "
            f"{images / seconds:,.0f} images/s, "
            f"loss {loss:.4f}, accuracy {correct / total:.2%}"
        )
    write_record(args, history, images)
    torch.save({"model": model.state_dict()}, args.checkpoint)


def make_loaders(args, device):
    """Return the batches for training and for testing."""
    train_set, test_set = load_mnist(args.data)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,  # Otherwise new workers start in each epoch.
        # Pinned memory is never swapped out, so it can be copied to the GPU while Python goes on.
        pin_memory=device.type == "cuda",
    )
    # Testing keeps nothing for backward, so larger batches fit into the memory.
    test_loader = DataLoader(test_set, batch_size=500)
    return loader, test_loader


def train_epoch(model, loader, optimizer, schedule, device):
    """Take one optimizer step per batch. Return the mean loss, and what was measured."""
    model.train()  # BatchNorm normalizes with the statistics of the batch.
    # The sum stays on the device. With .item() the CPU would wait for the GPU in every step.
    total_loss = torch.zeros((), device=device)
    watch = Stopwatch(device)
    # With disable=None the progress bar is drawn on a terminal only, and not into a log file.
    for images, labels in tqdm(loader, leave=False, disable=None):
        x, y = to_device(images, labels, device)
        watch.lap("data")
        loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        loss.backward()
        watch.lap("backward")
        optimizer.step()
        schedule.step()  # The schedule counts steps and not epochs.
        total_loss += loss.detach()
        watch.lap("optimizer")
    mean_loss = total_loss.item() / len(loader)
    return mean_loss, watch.measurements()


@torch.inference_mode()
def evaluate(model, test_loader, device):
    """Return how many test images the model classifies correctly, and how many there are."""
    model.eval()  # BatchNorm normalizes with the statistics that it collected in training.
    correct = torch.tensor(0, device=device)
    for images, labels in test_loader:
        x, y = to_device(images, labels, device)
        correct += (model(x).argmax(1) == y).sum()
    return correct.item(), len(test_loader.dataset)


def make_model():
    """Two blocks of convolution and pooling, then a linear layer: [B, 1, 28, 28] -> [B, 10].

    minimal.py has the same model without BatchNorm, because each device has BatchNorm statistics of
    its own when a batch is split.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 32, 10),
    )


def download_mnist(root):
    """Download MNIST into a folder, unless it is there.

    If it cannot be read or downloaded, a message of two lines says so, and the program ends.
    """
    try:
        datasets.MNIST(root, train=True, download=True)
        datasets.MNIST(root, train=False)
    except Exception as error:  # There is no network, or a file is damaged.
        reason = " ".join(str(error).split())  # one line
        raise SystemExit(
            f"MNIST cannot be read from the folder {root} or downloaded: {reason}\n"
            "Set MNIST_ROOT to a folder that has it. For synthetic digits instead, run: "
            "python tools/draw_digits.py data/drawn; export MNIST_ROOT=data/drawn"
        ) from None


def load_mnist(root):
    """Return the training set and the test set. An image is uint8 [28, 28]."""
    train_set = datasets.MNIST(root, train=True)
    test_set = datasets.MNIST(root, train=False)
    # MNIST stays in memory. A DataLoader that opens each image with PIL is much slower.
    train_set = TensorDataset(train_set.data, train_set.targets)
    test_set = TensorDataset(test_set.data, test_set.targets)
    return train_set, test_set


def to_device(images, labels, device):
    """uint8 images [B, 28, 28] -> float images [B, 1, 28, 28] between 0 and 1, on the device."""
    # With non_blocking=True Python does not wait until the copy to a GPU is complete.
    x = images.to(device, non_blocking=True).unsqueeze(1).float() / 255
    y = labels.to(device, non_blocking=True)
    return x, y


class Stopwatch:
    """Splits an epoch into phases. lap("forward") ends the phase that began at the last lap."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        self.cpu = time.process_time()
        self.faults = page_faults()
        self.laps = []
        self.lap("start")

    def lap(self, phase):
        if self.on_gpu:
            # Python runs ahead of the GPU. An event notes the time when the GPU gets to this place.
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = time.perf_counter()
        self.laps.append((phase, now))

    def seconds(self):
        """Return {phase: seconds}. The phases leave no gap, so their sum is the whole epoch."""
        if self.on_gpu:
            torch.cuda.synchronize()
        total = {}
        _, start = self.laps[0]
        for phase, end in self.laps[1:]:
            if self.on_gpu:
                lap = start.elapsed_time(end) / 1000  # elapsed_time returns milliseconds.
            else:
                lap = end - start
            total[phase] = total.get(phase, 0.0) + lap
            start = end  # The next phase begins where this one ends.
        return total

    def measurements(self):
        """Return the seconds of each phase, the seconds of processor time, and the page faults.

        The processor time leaves out the time in which this process waits for other ranks, or in
        which other programs use its core.
        """
        phases = self.seconds()
        cpu = time.process_time() - self.cpu
        faults = page_faults() - self.faults
        return {"phases": phases, "cpu": cpu, "faults": faults}


def page_faults():
    """Return how many pages of memory the system has given to this process so far.

    A run is slower if it returns its memory to the system, and asks for it again, in every step.
    """
    try:
        import resource
    except ImportError:  # Windows has no such count.
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def make_entry(loss, correct, total, measured):
    """Return the entry of an epoch in the history.

    What was measured is in lists, because later stages have several ranks.
    """
    return {
        "loss": loss,
        "test": [correct, total],
        "phases": [measured["phases"]],
        "cpu": [measured["cpu"]],
        "faults": [measured["faults"]],
    }


def write_record(args, history, images):
    """Append a line of JSON for compare.py: the flags, the machine, and what was measured."""
    run = {"stage": STAGE}
    for name, value in vars(args).items():
        if not isinstance(value, Path):  # The record can be published, so it has no paths.
            run[name] = value
    run["world_size"] = 1
    run["hosts"] = 1  # This stage runs on one machine.
    run["images"] = images
    # tools/draw_digits.py puts this file next to the synthetic digits that it makes.
    synthetic = (args.data / "NOT_MNIST.txt").exists()
    run["dataset"] = "synthetic digits" if synthetic else "MNIST"
    run["host"] = socket.gethostname()
    run["torch"] = torch.__version__
    if args.device == "cuda":
        run["device_name"] = torch.cuda.get_device_name()
    else:
        run["device_name"] = torch.cpu.get_capabilities().get("cpu_name", "CPU")
    run["history"] = history
    with open(args.record, "a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-e", "--epochs", type=int, default=2, help="passes over the training set (2)"
    )
    parser.add_argument("-b", "--batch-size", type=int, default=240, help="images per step (240)")
    parser.add_argument("--lr", type=float, default=0.15, help="peak learning rate (0.15)")
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (0)")
    parser.add_argument(
        "--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=f"checkpoints/{STAGE}.pt", help="file for the model"
    )
    parser.add_argument(
        "--record", type=Path, default="timings/runs.jsonl", help="file for the timings"
    )
    args = parser.parse_args()
    # If a file cannot be written, the run fails now and not after the training.
    for path in (args.checkpoint, args.record):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            parser.error(f"{path} is a folder, and not a file to write to")
    return args


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # Ctrl-C ends the program without a traceback.

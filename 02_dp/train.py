"""Stage 2: nn.DataParallel. There is still one process, but several GPUs share each batch.

In each step DataParallel copies the model to every GPU, splits the batch, runs the copies on
threads, and gathers their outputs on the first GPU. With fewer than two GPUs there is nothing to
split, so the script then does what stage 1 does.

    python 02_dp/train.py
    python 02_dp/train.py --epochs 1 --batch-size 120
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
from torch.nn.parallel import DataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets
from tqdm import tqdm

STAGE = "02_dp"


def main():
    args = parse_args()
    # With GPUs this is the first GPU. It holds the model, and gathers the outputs.
    device = torch.device(args.device)
    devices = torch.cuda.device_count() if args.device == "cuda" else 1
    train(args, device, devices)


def train(args, device, devices):
    # The seed decides the first weights and the order of the images.
    torch.manual_seed(args.seed)
    # By default there is one CPU thread. Without GPUs one core then stands in for one device.
    torch.set_num_threads(args.threads)

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

    # channels_last puts the channels of a pixel next to each other in memory. Convolutions are
    # faster then: on a CPU this saves a quarter of the time.
    model = make_model().to(device, memory_format=torch.channels_last)
    # Only training calls the wrapper. The bare model is optimized, evaluated and saved. With one
    # device there is nothing to split, so there is no wrapper.
    dp_model = DataParallel(model) if devices > 1 else model
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

    print(f"{STAGE}: one process on {devices} {device.type} device(s), {args.threads} thread(s)")
    # The history has an entry per epoch: the loss, [correct, total] of the test, the seconds of
    # each phase, and the seconds of processor time. The seconds are in lists, because later stages
    # have several ranks.
    history = []
    for epoch in range(args.epochs):
        # If the processor time is less than the time of the epoch, other programs used this core.
        before = time.process_time()
        loss, phases = train_epoch(dp_model, loader, optimizer, schedule, device)
        cpu = time.process_time() - before
        correct = evaluate(model, test_loader, device)
        history.append(
            {"loss": loss, "test": [correct, len(test_set)], "phases": [phases], "cpu": [cpu]}
        )
        seconds = sum(phases.values())  # The time of the training, without the evaluation.
        print(
            f"epoch {epoch + 1}/{args.epochs}: {seconds:.2f} s, "
            f"{len(train_set) / seconds:,.0f} images/s, "
            f"loss {loss:.4f}, accuracy {correct / len(test_set):.2%}"
        )
    write_record(args, history, len(train_set), devices)
    torch.save({"model": model.state_dict()}, args.checkpoint)


def train_epoch(model, loader, optimizer, schedule, device):
    """Take one optimizer step per batch. Return the mean loss, and the seconds of each phase."""
    model.train()  # On each GPU, BatchNorm normalizes with the statistics of its part of the batch.
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
    return mean_loss, watch.seconds()


@torch.inference_mode()
def evaluate(model, test_loader, device):
    """Return how many test images the model classifies correctly."""
    model.eval()  # BatchNorm normalizes with the statistics that it collected in training.
    correct = torch.tensor(0, device=device)
    for images, labels in test_loader:
        x, y = to_device(images, labels, device)
        correct += (model(x).argmax(1) == y).sum()
    return correct.item()


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


def load_mnist(root):
    """Return the training set and the test set. They are downloaded if they are not there.

    An image is uint8 [28, 28]. If MNIST cannot be read or downloaded, a message of two lines says
    so, and the program ends.
    """
    try:
        train_set = datasets.MNIST(root, train=True, download=True)
        test_set = datasets.MNIST(root, train=False)
    except Exception as error:  # There is no network, or a file is damaged.
        reason = str(error).partition("\n")[0]  # the first line
        raise SystemExit(
            f"MNIST cannot be read from the folder {root} or downloaded: {reason}\n"
            "Set MNIST_ROOT to a folder that has it. For synthetic digits instead, run: "
            "python tools/draw_digits.py data/drawn; export MNIST_ROOT=data/drawn"
        ) from None
    # MNIST stays in memory. A DataLoader that opens each image with PIL is ten times slower.
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


def write_record(args, history, images, devices):
    """Append a line of JSON for compare.py: the flags, the machine, and what was measured."""
    run = {"stage": STAGE}
    for name, value in vars(args).items():
        if not isinstance(value, Path):  # The record can be published, so it has no paths.
            run[name] = value
    run["world_size"] = devices
    run["hosts"] = 1
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
    add = parser.add_argument
    add("-e", "--epochs", type=int, default=2, help="passes over the training set (2)")
    add("-b", "--batch-size", type=int, default=240, help="images per step, over all GPUs (240)")
    add("--lr", type=float, default=0.15, help="peak learning rate (0.15)")
    cuda = torch.cuda.is_available()
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--workers", type=int, default=0, help="DataLoader workers (0)")
    add("--seed", type=int, default=0, help="seed of the random numbers (0)")
    add("--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)")
    add("--checkpoint", type=Path, default=f"checkpoints/{STAGE}.pt", help="file for the model")
    add("--record", type=Path, default="timings/runs.jsonl", help="file for the timings")
    args = parser.parse_args()
    # If a folder cannot be made, the run fails now and not after the training.
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    args.record.parent.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # Ctrl-C ends the program without a traceback.

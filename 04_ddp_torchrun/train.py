"""Stage 4: DistributedDataParallel, started by torchrun.

New since stage 3:
- torchrun starts the ranks instead of mp.spawn; its --nproc-per-node replaces --world-size
- it sets RANK, LOCAL_RANK, WORLD_SIZE, GROUP_WORLD_SIZE (nodes), MASTER_ADDR and MASTER_PORT
- one rank per node downloads the data, and the others wait for it at a barrier
- @record puts the traceback of a rank that fails into torchrun's report

    torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/train.py
"""

import argparse
import json
import os
import socket
import sys
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets
from tqdm import tqdm

STAGE = "04_ddp_torchrun"  # used by the code that all stages share
AMP = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@record
def main():
    parser = base_parser()
    add = parser.add_argument
    add("--amp", choices=AMP, default="off", help="mixed precision (off); slow on most CPUs")
    add("--timeout", type=float, default=600, help="seconds a rank waits for others (600)")
    args = parse(parser)
    missing = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - set(os.environ)
    if missing:
        stop(f"start it with torchrun, see --help: {', '.join(sorted(missing))} not set")
    local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.device == "cuda" and local_rank >= gpus:
        stop(f"{gpus} GPU(s) on this node: start at most one rank per GPU")
    if args.batch_size % world_size:
        stop(f"--batch-size {args.batch_size} is not divisible by {world_size} ranks")
    device = torch.device("cuda", local_rank) if args.device == "cuda" else torch.device("cpu")
    with process_group(device, args.timeout):  # reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        if local_rank == 0:  # one rank per node downloads
            load_mnist(args.data)
        dist.barrier()  # now the data is on every node
        train(args, device)


def train(args, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)  # ranks would augment or drop out differently
    torch.set_num_threads(args.threads)
    train_set, test_set = load_mnist(args.data)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size // world_size,
        sampler=DistributedSampler(train_set, seed=args.seed),  # this rank's shard
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=tuple,  # MNIST.__getitems__ returns a whole batch: there is nothing to collate
        pin_memory=device.type == "cuda",
    )
    model = ConvNet().to(device, memory_format=torch.channels_last)
    ddp_model = DistributedDataParallel(model)  # sends rank 0's weights; averages gradients
    ddp_model.broadcast_buffers = False  # once an epoch, below, not in every forward
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    steps = args.epochs * len(loader)
    schedule = OneCycleLR(optimizer, args.lr, steps, anneal_strategy="linear", cycle_momentum=False)
    # PyTorch calls this after each step that the scaler does not skip; *_ takes its arguments.
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")
    nodes = int(os.getenv("GROUP_WORLD_SIZE", "1"))  # torchrun sets it
    if rank == 0:
        print(f"{STAGE}: {world_size} rank(s) on {device.type}, {args.threads} thread(s) each")
    history = []
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        loss, watch = train_epoch(ddp_model, loader, optimizer, scaler, device, args.amp)
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)  # BatchNorm's: all ranks evaluate what rank 0 saves
        correct = evaluate(model, test_set, device, rank, world_size)
        dist.all_reduce(correct)
        phases = [None] * world_size
        dist.all_gather_object(phases, watch.seconds())
        history.append({"loss": loss, "test": correct.tolist(), "phases": phases})
        if rank == 0:
            print(epoch_line(history, args.epochs, len(train_set)))
    if rank == 0:
        parts = {"model": model.state_dict(), "scaler": scaler.state_dict()}
        finish(args, STAGE, history, len(train_set), parts, world_size, nodes)


# ----------------------------------------------- below this line: the same in stages 3 to 5


@contextmanager
def process_group(device, timeout, **rendezvous):
    """Join the other ranks, and destroy the group at the end. Only stage 3 passes rendezvous."""
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if device_id is not None:
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backend, timeout=limit, device_id=device_id, **rendezvous)
    try:
        yield
    finally:
        failure = sys.exc_info()[2]  # the traceback of an error, or None
        traceback.clear_frames(failure)  # its variables hold DDP, which must go before the group
        if backend == "gloo" or failure is None:  # after an error NCCL would hang
            dist.destroy_process_group()


def train_epoch(model, loader, optimizer, scaler, device, amp):
    """One optimizer step per batch -> the mean loss, and the stopwatch with its laps."""
    model.train()
    total_loss = torch.zeros((), device=device)  # on the device: .item() would stall every step
    watch = Stopwatch(device)
    # The first layer's gradient comes last. From then on backward only waits: phase "exposed".
    hook = next(model.parameters()).register_hook(lambda gradient: watch.lap("backward"))
    for images, labels in tqdm(loader, leave=False, disable=True if dist.get_rank() else None):
        x, y = to_device(images, labels, device)
        watch.lap("data")
        with torch.autocast(device.type, AMP[amp], enabled=amp != "off"):
            loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # DDP averages the gradients in here
        watch.lap("exposed")
        scaler.step(optimizer)
        scaler.update()
        total_loss += loss.detach()
        watch.lap("optimizer")
    hook.remove()
    dist.all_reduce(total_loss)
    return total_loss.item() / len(loader) / dist.get_world_size(), watch


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

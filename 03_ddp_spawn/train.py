"""Stage 3: DistributedDataParallel. One process (rank) per device, started by mp.spawn.

New since stage 1:
- mp.spawn starts the ranks; a process group connects them, and a context manager leaves it again
- DistributedSampler deals each rank its own share of the images, reshuffled by set_epoch
- DDP averages the gradients of all ranks during backward, so every rank takes the same step
- BatchNorm: SyncBatchNorm on GPUs; on CPUs, which lack it, each rank normalizes by its own share
- evaluation is shared and exact, loss and counts are summed over the ranks, rank 0 prints and saves
- what averaging adds to a step has a phase of its own, exposed: from the last gradient to the end
  of backward a rank waits for the others
- --amp: autocast to fp16 with a GradScaler, which is saved with the model, or to bf16 without

by_hand.py, beside this file, writes out what makes this work, and proves it.

    python 03_ddp_spawn/train.py
    python 03_ddp_spawn/train.py --epochs 1 --batch-size 240 --world-size 2 --amp bf16
"""

import time

START = time.time()  # before the other imports: they are part of what a run costs
STAGE = "03_ddp_spawn"

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import traceback
import zlib
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

if __name__ == "__mp_main__":  # a spawned rank: Ctrl-C just ends it, its parent tells the reader
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, see process_group
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets
from tqdm import tqdm

AMP = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}
tqdm.set_lock(threading.RLock())  # its own lock is shared by processes, and Ctrl-C would leak it


def main():
    parser = base_parser()
    add = parser.add_argument
    add("--world-size", type=number(int, 1), help="ranks; one per GPU, or 2 on a CPU")
    add("--amp", choices=AMP, default="off", help="what autocast computes forward passes in")
    add("--timeout", type=number(float, 1), default=60, help="seconds a rank waits for the others")
    args = parse(parser)
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    args.world_size = args.world_size or gpus or 2
    if gpus and args.world_size > gpus:
        stop(f"--world-size {args.world_size}: there are {gpus} GPUs, and each rank needs its own")
    if gpus and args.amp == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        stop("--amp bf16: this GPU computes in fp16, not in bf16")
    check_batch(args.batch_size, args.world_size)
    load_mnist(args.data)  # downloaded and checked once, here: the ranks will find it on the disk

    # Port 0: the system picks a free one, so that two runs on one machine do not collide.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        mp.spawn(worker, args=(store.port, args), nprocs=args.world_size)
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        sys.exit(f"{STAGE}: {str(error).strip()}")
    finally:  # an interrupt may have reached this process alone
        for process in mp.active_children():
            process.terminate()


def worker(rank, port, args):
    device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    with process_group(args, device, rank=rank, world_size=args.world_size, store=store):
        train(args, device, rank, args.world_size)


@contextmanager
def process_group(args, device, **rendezvous):
    """Join the other ranks, and leave them again, also when the training raises."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=args.timeout),
        device_id=device if on_gpu else None,
        **rendezvous,
    )
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # what train left there holds DDP
        raise
    finally:
        # This ends gloo's threads only if nobody else holds the group: not DDP, which went with
        # train, and not torch.distributed.nn, which keeps a group that it finds when it is
        # imported (at the top of this file it found none). A thread that lives on may let go of
        # the last all-reduce while Python shuts down, and that aborts a process that was done. And
        # if DDP goes last, it waits for that thread, which waits for Python: a rank that has failed
        # hangs.
        dist.destroy_process_group()


def train(args, device, rank, world_size):
    """The life of one rank: data, model, epochs, checkpoint, record."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.dataset, train_set, test_set = load_mnist(args.data)
    if rank == 0:
        ranks = f"{world_size} rank(s) on {args.device}, {args.threads} thread(s) each"
        print(f"{STAGE}: {args.dataset}, {ranks}, {dist.get_backend()}")
    loader = make_loader(train_set, args, rank, world_size)
    model = ConvNet().to(device, memory_format=torch.channels_last)
    if device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")
    if args.load:
        saved = load_model(args.load, model)
        scaler.load_state_dict(saved.get("scaler") or scaler.state_dict())
    optimizer, schedule = sgd_one_cycle(model, args.lr, args.epochs * len(loader))
    ddp_model = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        broadcast_buffers=False,  # BatchNorm's statistics: once before evaluating is enough
    )

    args.startup_seconds = time.time() - args.start
    losses, phases = [], []
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)  # or every epoch would have the order of the first
        loss, seconds = train_epoch(ddp_model, loader, optimizer, schedule, scaler, device, args)
        correct, total = evaluate_together(model, test_set, device, rank, world_size)
        losses.append(loss.item())
        phases.append(seconds)
        if rank == 0:
            print(epoch_line(args, epoch, len(train_set), seconds, loss, correct / total))
    if args.epochs == 0:  # only look at the model that was loaded
        correct, total = evaluate_together(model, test_set, device, rank, world_size)
    elif rank == 0:
        save_model(args.checkpoint, model, scaler=scaler.state_dict())
    measured = [None] * world_size
    dist.all_gather_object(measured, (phases, peak_memory(device)))
    if rank == 0:
        setup = {"devices": world_size, "backend": dist.get_backend()}
        setup["batchnorm"] = "synced" if device.type == "cuda" else "local"
        report(args, len(train_set), losses, measured, correct, total, **setup)


def make_loader(train_set, args, rank, world_size):
    """Deal this rank its share of the training set in shuffled batches."""
    sampler = DistributedSampler(train_set, world_size, rank, seed=args.seed)
    return DataLoader(
        train_set,
        batch_size=args.batch_size // world_size,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        generator=torch.Generator().manual_seed(args.seed + rank),  # seeds the workers, if any
        collate_fn=tuple,  # the data set deals whole batches: nothing is left to collate
        pin_memory=args.device == "cuda",
    )


def train_epoch(model, loader, optimizer, schedule, scaler, device, args):
    """One optimizer step per batch. Returns the mean loss and the seconds spent in each phase."""
    model.train()
    total_loss = torch.zeros((), device=device)  # on the device: .item() would stall every step
    watch = Stopwatch(device)
    # The first layer's gradient comes last. What is then left of backward is waiting for others.
    hook = next(model.parameters()).register_hook(lambda gradient: watch.lap("backward"))
    for images, labels in tqdm(loader, leave=False, disable=dist.get_rank() > 0 or None):
        x, y = to_device(images, labels, device)
        watch.lap("data")
        with torch.autocast(device.type, AMP[args.amp], enabled=args.amp != "off"):
            loss = F.cross_entropy(model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # DDP averages the gradients over the ranks in here
        watch.lap("exposed")
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        total_loss += loss.detach()
        watch.lap("step")
    hook.remove()
    dist.all_reduce(total_loss)
    return total_loss / len(loader) / dist.get_world_size(), watch.seconds()


def evaluate_together(model, test_set, device, rank, world_size):
    """Every rank counts its own part of the test set, nothing padded -> (correct, total)."""
    for buffer in model.buffers():  # BatchNorm's statistics: those of rank 0, which are saved
        dist.broadcast(buffer, src=0)
    counts = evaluate(model, test_set, device, rank, world_size)
    dist.all_reduce(counts)
    return counts.tolist()


# ------------------------------------------ below this line: the same in every stage, to the letter


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


def sgd_one_cycle(model, lr, steps):
    """SGD; the learning rate rises to lr for a fifth of the steps, then falls: arXiv:1708.07120."""
    optimizer = SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rise = max(1, steps // 5)
    fall = max(1, steps - rise)
    return optimizer, LambdaLR(optimizer, lambda i: min((i + 1) / rise, (steps - i) / fall))


class MNIST(datasets.MNIST):
    """MNIST as one uint8 tensor in memory, dealt a batch at a time instead of image by image."""

    def __getitems__(self, indices):
        return self.data[indices], self.targets[indices]


def load_mnist(root):
    """Read MNIST, after a download if it is not there -> its name, training set, test set."""
    raw = root / "MNIST" / "raw"
    if not raw.exists():
        download(raw)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        try:
            datasets.mnist.read_sn3_pascalvincent_tensor(raw / f"{part}-ubyte")
        except Exception as error:  # whatever the reader trips over, this file is at fault
            stop(f"{raw}/{part}-ubyte is missing or damaged ({type(error).__name__})")
    train_set, test_set = MNIST(root, train=True), MNIST(root, train=False)
    for part in (train_set, test_set):
        if len(part.data) != len(part.targets):
            stop(f"{raw}: {len(part.data):,} images do not go with {len(part.targets):,} labels")
    checksum = zlib.crc32(test_set.data.numpy(), zlib.crc32(train_set.data.numpy()))
    name = "MNIST" if checksum == 0x56F7EF93 else f"{root.resolve().name}-{checksum:08x}"
    return name, train_set, test_set  # nothing else in MNIST's format passes for MNIST


def download(raw):
    """Fetch MNIST into a temporary folder, then put it in place whole: a failure leaves nothing."""
    print(f"{STAGE}: downloading MNIST to {raw}")
    socket.setdefaulttimeout(20)  # seconds, for a network that never answers
    with tempfile.TemporaryDirectory() as temp:
        try:
            fetched = datasets.MNIST(temp, download=True).raw_folder
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            stop(
                f"MNIST could not be downloaded: {reason}. Either give --data DIR, a folder that "
                "holds MNIST/raw, or draw a stand-in: python tools/draw_digits.py data/drawn, "
                "then --data data/drawn"
            )
        copy = raw.with_name(Path(temp).name)
        shutil.copytree(fetched, copy)
        try:
            copy.rename(raw)
        except OSError:  # another host that shares this disk was faster
            shutil.rmtree(copy)


def to_device(images, labels, device):
    """uint8 images [B, 28, 28] -> floats [B, 1, 28, 28] from 0 to 1; labels only move."""
    x = images.to(device, non_blocking=True).unsqueeze(1).float() / 255
    return x, labels.to(device, non_blocking=True)


@torch.inference_mode()
def evaluate(model, test_set, device, rank=0, world_size=1):
    """Count right answers on test images rank, rank + world_size, ... -> [correct, total]."""
    model.eval()
    images, labels = test_set.data[rank::world_size], test_set.targets[rank::world_size]
    counts = torch.tensor([0, len(labels)], device=device)
    for batch in zip(images.split(500), labels.split(500)):
        x, y = to_device(*batch, device)
        counts[0] += (model(x).argmax(1) == y).sum()
    return counts


class Stopwatch:
    """Seconds per phase of an epoch: lap("forward") books the time since the last lap as forward.

    A GPU runs behind the program that feeds it. There a lap is an event in the GPU's own queue,
    read when the epoch is over, so that nothing waits for the clock.
    """

    def __init__(self, device):
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.laps = []
        self.lap("start")

    def lap(self, phase):
        event = self.stream and self.stream.record_event(torch.cuda.Event(enable_timing=True))
        self.laps.append((phase, event or time.perf_counter()))

    def seconds(self):
        """-> {phase: seconds}. The phases leave no gaps: their sum is the epoch."""
        if self.stream:
            self.stream.synchronize()
        total = dict.fromkeys([phase for phase, _ in self.laps[1:]], 0.0)
        for (_, before), (phase, now) in zip(self.laps, self.laps[1:]):
            total[phase] += before.elapsed_time(now) / 1000 if self.stream else now - before
        return total


def epoch_line(args, epoch, images, phases, loss, accuracy):
    seconds = sum(phases.values())
    speed = f"{seconds:7.2f} s  {images / seconds:9,.0f} images/s"
    return (
        f"epoch {epoch + 1:2d}/{args.epochs}  {speed}  loss {loss:7.4f}  accuracy {accuracy:7.2%}"
    )


def report(args, images, losses, measured, correct, total, **setup):
    """Write the record, print the closing line; measured: per rank, (phases per epoch, memory)."""
    result = f"{STAGE}: {correct:,} of {total:,} test images correct ({correct / total:.2%})"
    if not args.epochs:
        return print(result)
    phases, memory = zip(*measured)
    epoch_seconds = [sum(epoch.values()) for epoch in phases[0]]
    median = statistics.median(epoch_seconds[1:] or epoch_seconds)  # the first one warms up
    amp = getattr(args, "amp", "off")
    record = {"stage": STAGE, "variant": "" if amp == "off" else amp, "amp": amp}
    record |= {"world_size": 1, "devices": 1, "hosts": 1, "backend": None, "batchnorm": "local"}
    record |= {flag: value for flag, value in vars(args).items() if not isinstance(value, Path)}
    record |= {"global_batch": record.pop("batch_size"), "threads_per_rank": record.pop("threads")}
    record |= {"device_name": device_name(args.device), "host": platform.node()} | setup
    record |= {"torch": torch.__version__, "python": platform.python_version()}
    record |= {"epochs": len(losses), "epoch_seconds": epoch_seconds}
    record |= {"images_per_second": images / median}
    record |= {"phase_seconds": phases, "peak_memory_bytes": memory, "train_loss": losses}
    record |= {"test_correct": correct, "test_total": total, "test_accuracy": correct / total}
    record |= {"total_seconds": time.time() - args.start}
    hosts = f"{record['hosts']}hosts" if record["hosts"] > 1 else ""
    name = [STAGE, record["variant"], hosts, f"{record['world_size']}x{args.device}"]
    path = args.record / ("-".join(filter(None, name)) + ".json")
    write_whole(path, lambda temp: temp.write_text(json.dumps(record, indent=1)))
    seconds = f"median epoch {median:.2f} s, {record['total_seconds']:.1f} s in all"
    print(f"{result}, {seconds} -> {path}")


def peak_memory(device):
    """The most bytes that this rank held: tensors on its GPU; on a CPU its process, on Linux."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * kibibytes[0] if kibibytes else None


def device_name(device):
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere the platform module knows
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def save_model(path, model, **more):
    """Save the bare model's weights, so that every stage can load what another has saved."""
    write_whole(path, lambda temp: torch.save({"model": model.state_dict(), **more}, temp))


def load_model(path, model):
    """Put saved weights into the model -> the whole checkpoint."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
    except Exception as error:  # torch.load has a type of its own for each kind of wrong file
        stop(f"--load {path}: not a model that a stage has saved ({type(error).__name__})")
    return checkpoint


def write_whole(path, write):
    """Write under a temporary name, then rename: nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(temp)
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)


def stop(message):
    """Bad input: one line and exit code 2. Of the ranks on one host the first speaks for all."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{STAGE}: error: {message}", file=sys.stderr)
    else:
        time.sleep(5)  # when one rank ends, the launcher ends all: leave the speaker its time
    sys.exit(2)


def number(kind, low, high=2**32):
    """-> an argparse type: an int or a float from low to high"""

    def read(text):
        if not low <= kind(text) <= high:
            raise ValueError
        return kind(text)

    read.__name__ = f"{kind.__name__} from {low} to {high}"  # argparse prints it when read refuses
    return read


def base_parser():
    """The flags that all stages share: the same word means the same in each of them."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.error = stop
    add, data = parser.add_argument, os.environ.get("MNIST_ROOT", "data")
    whole, positive = number(int, 0), number(int, 1)
    add("-e", "--epochs", type=whole, default=3, help="passes over the training set")
    add("-b", "--batch-size", type=positive, default=120, help="images per step, over all ranks")
    add("--lr", type=number(float, 0), default=0.1, help="peak learning rate")
    add("--data", type=Path, default=data, help="folder that holds MNIST/raw, or $MNIST_ROOT")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what ranks run on")
    add("--threads", type=positive, help="CPU threads per rank; 1 on a CPU: a core plays a device")
    add("--workers", type=whole, default=0, help="loader processes per rank")
    add("--seed", type=whole, default=0, help="where the random numbers start")
    add("--checkpoint", type=Path, default=f"checkpoints/{STAGE}.pt", help="file for the model")
    add("--load", type=Path, help="saved model to start from; with -e 0 it is only evaluated")
    add("--record", type=Path, default="timings", help="folder for the timing record")
    return parser


def parse(parser):
    """Read the flags and refuse what cannot work, before anything is started or written."""
    args = parser.parse_args()
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available():
        stop("--device cuda: PyTorch sees no CUDA device")
    args.threads = args.threads or (1 if args.device == "cpu" else torch.get_num_threads())
    check_writable(args.record)
    check_writable(args.checkpoint.parent)
    if args.checkpoint.is_dir():
        stop(f"--checkpoint {args.checkpoint} is a folder, not a file")
    if args.load:
        load_model(args.load, ConvNet())
    args.start = START
    return args


def check_writable(folder):
    """Stop if no file could be made there: found out now, not after the training."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        stop(f"cannot write to {folder}: {error.strerror}")


def check_batch(batch_size, world_size):
    """Stop unless each rank gets an equal share of the batch."""
    if batch_size % world_size:
        nearest = max(1, round(batch_size / world_size)) * world_size
        stop(f"--batch-size {batch_size} does not divide by {world_size} ranks; {nearest} does")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print(f"\n{STAGE}: interrupted", file=sys.stderr)
        sys.exit(130)

r"""Stage 5: DistributedDataParallel on several machines, with a way back after one is lost.

New since stage 4:
- torchrun runs on every host with the same line; the hosts meet at the rendezvous endpoint
- the local rank picks the device, and one rank per host sees to the data; the global rank prints
  and saves, once for all hosts
- the record knows the number of hosts
- with --snapshot the run is written down now and then; started again it goes on from there, and
  ends with the weights that it would have had undisturbed

by_hand.py, beside this file, writes out what makes this work, and proves it.

The same line on each of two hosts, with the address of one of them. To rehearse on one machine, run
it as it stands in two terminals:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint 127.0.0.1:29500 05_multinode/train.py
"""

import time

START = time.time()  # before the other imports: they are part of what a run costs
STAGE = "05_multinode"

import argparse
import copy
import io
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
import zipfile
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path

if __name__ == "__main__":  # a rank: Ctrl-C just ends it, torchrun tells the reader
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, see process_group
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets
from tqdm import tqdm

AMP = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}
tqdm.set_lock(threading.RLock())  # its own lock is shared by processes, and Ctrl-C would leak it


@record
def main():
    parser = base_parser()
    add = parser.add_argument
    add("--amp", choices=AMP, default="off", help="what autocast computes forward passes in")
    add("--timeout", type=number(float, 1), default=60, help="seconds a rank waits for the others")
    add("--tensorboard", type=Path, help="folder for TensorBoard's events and log.txt")
    add("--target-accuracy", type=number(float, 0, 1), help="stop after the epoch that reaches it")
    add("--snapshot", type=Path, help="file to go on from if it is there; written every epoch")
    add("--snapshot-every", type=number(int, 1), help="write it after so many steps, too")
    args = parse(parser)
    if "RANK" not in os.environ:
        stop(f"start it with torchrun on every host, as {STAGE}/README.md shows")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    args.world_size, args.hosts = int(os.environ["WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if gpus and int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        stop(f"--nproc-per-node: there are {gpus} GPUs, and each rank needs its own")
    if gpus and args.amp == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        stop("--amp bf16: this GPU computes in fp16, not in bf16")
    check_batch(args.batch_size, args.world_size)
    if args.tensorboard:
        check_writable(args.tensorboard)
    check_snapshot(args)
    if local_rank == 0:
        load_mnist(args.data)  # downloaded and checked once per host: the others will find it there

    device = torch.device("cuda", local_rank) if args.device == "cuda" else torch.device("cpu")
    with process_group(args, device):
        dist.barrier()  # nobody reads the data before local rank 0 has seen to it
        train(args, device, rank, args.world_size)


@contextmanager
def process_group(args, device):
    """Join the other ranks, and leave them again, also when the training raises."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=args.timeout),
        device_id=device if on_gpu else None,
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
        print(f"{STAGE}: {args.dataset}, {args.hosts} host(s), {ranks}, {dist.get_backend()}")
    loader = make_loader(train_set, args, rank, world_size)
    model = ConvNet().to(device, memory_format=torch.channels_last)
    if device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")
    if args.load:
        saved = load_model(args.load, model)
        scaler.load_state_dict(saved.get("scaler") or scaler.state_dict())
    optimizer, schedule = sgd_one_cycle(model, args.lr, args.epochs * len(loader))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    run = Run(args, device, rank, world_size, parts)
    ddp_model = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        broadcast_buffers=False,  # BatchNorm's statistics: once before evaluating is enough
    )
    if args.snapshot:
        settle(ddp_model, device)
        run.resume()

    writer = open_writer(args.tensorboard) if rank == 0 else None
    args.startup_seconds = time.time() - args.start
    correct = None
    while run.epoch < args.epochs and not run.target_reached:
        loader.sampler.set_epoch(run.epoch)  # or every epoch would have the order of the first
        loader.sampler.dealt = run.step * loader.batch_size
        loader.generator.manual_seed(args.seed + rank + run.epoch * world_size)
        loss, seconds = train_epoch(
            ddp_model, loader, optimizer, schedule, scaler, device, args, run
        )
        correct, total = evaluate_together(model, test_set, device, rank, world_size)
        if rank == 0:
            line = epoch_line(args, run.epoch, len(train_set), seconds, loss, correct / total)
            log_epoch(writer, line, run.epoch, loss, correct / total)
        if args.target_accuracy is not None:
            run.target_reached = target_reached(args, correct / total, rank)
        run.end_epoch(loss.item(), seconds)
        if args.snapshot:
            run.save()
    if correct is None:  # nothing to train: look at the model that was loaded
        correct, total = evaluate_together(model, test_set, device, rank, world_size)
    if args.epochs and rank == 0:
        save_model(args.checkpoint, model, scaler=scaler.state_dict())
    measured = [None] * world_size
    dist.all_gather_object(measured, (run.own["phases"], peak_memory(device)))
    if rank == 0:
        setup = {"devices": world_size, "backend": dist.get_backend()}
        setup["batchnorm"] = "synced" if device.type == "cuda" else "local"
        setup |= {"resumed": run.resumed} if run.resumed else {}  # timed in pieces, then
        report(args, len(train_set), run.losses, measured, correct, total, **setup)


def make_loader(train_set, args, rank, world_size):
    """Deal this rank its share of the training set in shuffled batches."""
    sampler = ResumableSampler(train_set, world_size, rank, seed=args.seed)
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


def train_epoch(model, loader, optimizer, schedule, scaler, device, args, run):
    """One optimizer step per batch. Returns the mean loss and the seconds spent in each phase."""
    model.train()
    steps = run.step + len(loader)
    total_loss = torch.tensor(run.own["loss"], device=device)  # .item() would stall every step
    watch = Stopwatch(device)
    # The first layer's gradient comes last. What is then left of backward is waiting for others.
    hook = next(model.parameters()).register_hook(lambda gradient: watch.lap("backward"))
    batches = tqdm(loader, leave=False, disable=dist.get_rank() > 0 or None)
    for step, (images, labels) in enumerate(batches, run.step + 1):
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
        if args.snapshot_every and step % args.snapshot_every == 0 and step < steps:
            run.save(step, total_loss.item(), watch.seconds())
            watch.lap("snapshot")
    hook.remove()
    dist.all_reduce(total_loss)
    return total_loss / steps / dist.get_world_size(), run.seconds(watch.seconds())


class ResumableSampler(DistributedSampler):
    """Deals a rank its share of an epoch, less the images that were dealt before a snapshot."""

    dealt = 0

    def __iter__(self):
        return islice(super().__iter__(), self.dealt, None)

    def __len__(self):
        return super().__len__() - self.dealt


class Run:
    """Where the training is, and what it takes to go on from there: that is a snapshot."""

    def __init__(self, args, device, rank, world_size, parts):
        self.path, self.device = args.snapshot, device
        self.rank, self.world_size = rank, world_size
        self.parts = parts  # {name: what has a state_dict}
        self.epoch = self.step = 0  # epochs that are done, steps that are done of the next one
        self.losses, self.target_reached, self.resumed = [], False, []
        self.own = {"phases": [], "loss": 0.0, "seconds": {}}  # of this rank alone
        flags = ("dataset", "epochs", "batch_size", "lr", "seed", "amp")
        self.settings = {"stage": STAGE} | {flag: getattr(args, flag) for flag in flags}

    def seconds(self, since_start):
        """Seconds per phase of this epoch, with those from before the run was resumed."""
        return dict(Counter(self.own["seconds"]) + Counter(since_start))

    def end_epoch(self, loss, seconds):
        self.epoch, self.step = self.epoch + 1, 0
        self.losses.append(loss)
        self.own = {"phases": [*self.own["phases"], seconds], "loss": 0.0, "seconds": {}}

    def save(self, step=0, loss=0.0, since_start=None):
        """Every rank hands in what is its own; rank 0 writes for all."""
        own = self.own | {"loss": loss, "seconds": self.seconds(since_start or {})}
        own["random"] = random_state(self.device)
        ranks = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(own, ranks)
        if self.rank == 0:
            state = {"settings": self.settings, "epoch": self.epoch, "step": step, "ranks": ranks}
            for name in ("losses", "target_reached", "resumed"):
                state[name] = getattr(self, name)
            state |= {name: part.state_dict() for name, part in self.parts.items()}
            write_snapshot(self.path, state)

    def resume(self):
        """Go on from the newest snapshot that any host has, if there is one."""
        state, refused = None, False
        if os.environ["LOCAL_RANK"] == "0":
            state, refused = read_snapshot(self.path, self.settings)
        found = [None] * self.world_size
        position = (state["epoch"], state["step"]) if state else (-1, 0)
        dist.all_gather_object(found, (position, refused))
        newest = max(found)[0]
        if newest == (-1, 0):
            if any(refused for _, refused in found):
                stop("there is no snapshot to go on from; to begin anew, give another --snapshot")
            return
        box = [state]  # from the host that has it to all: they need not share a disk
        dist.broadcast_object_list(box, [position for position, _ in found].index(newest))
        self.take_up(**box[0])

    def take_up(self, epoch, step, ranks, losses, target_reached, resumed, settings, **states):
        self.epoch, self.step = epoch, step
        self.losses, self.target_reached = losses, target_reached
        self.resumed = [*resumed, {"epoch": epoch, "step": step, "ranks": len(ranks)}]
        for name, state in states.items():
            self.parts[name].load_state_dict(state)
        told = f"{STAGE}: resuming after {epoch} epoch(s) and {step} step(s)"
        if len(ranks) == self.world_size:
            self.own = ranks[self.rank]
            set_random_state(self.own.pop("random"), self.device)
        else:
            told += (
                f" of {len(ranks)} rank(s); with {self.world_size} random numbers begin anew and"
            )
            told += " sums are rounded in another order: the weights will differ a little"
            mean = sum(own["loss"] for own in ranks) / len(ranks)
            self.own = {key: ranks[0][key] for key in ("phases", "seconds")} | {"loss": mean}
        if self.rank == 0:
            print(told)


def read_snapshot(path, settings):
    """-> the last sound snapshot of this run, or None; and whether one had to be refused."""
    refused = False
    for candidate in (path, previous(path)):
        if not candidate.exists():
            continue
        try:
            with zipfile.ZipFile(candidate) as archive:  # which is what torch.save writes
                if archive.testzip():
                    raise zipfile.BadZipFile("a checksum is wrong")
            state = torch.load(candidate, map_location="cpu", weights_only=True)
            theirs = state["settings"]
        except Exception as error:  # each kind of wrong file has a type of its own
            reason = f"damaged, or not a snapshot ({type(error).__name__})"
        else:
            wrong = [key for key in settings if theirs.get(key) != settings[key]]
            if not wrong:
                if refused:  # set aside, or it would soon take the place of the previous one
                    with suppress(FileNotFoundError):  # another host has done so
                        os.replace(path, path.with_name(f"{path.name}.refused"))
                return state, refused
            wrong = [f"{key} {theirs.get(key)} instead of {settings[key]}" for key in wrong]
            reason = f"of another run: {', '.join(wrong)}"
        refused = True
        print(f"{STAGE}: refusing {candidate}: {reason}", file=sys.stderr)
    return None, refused


def write_snapshot(path, state):
    """Write it under another name, then rename; the one before stays, as PATH.previous."""
    image, temp = io.BytesIO(), path.with_name(f"{path.name}.tmp")
    torch.save(state, image)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temp, "wb") as file:
            file.write(image.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # all of it is on the disk before it gets its name
        if path.exists():
            os.replace(path, previous(path))
        os.replace(temp, path)
    except OSError as error:  # a full disk ends no training
        temp.unlink(missing_ok=True)
        told = f"{STAGE}: no snapshot, {error.strerror}; the last one stays: {path}"
        print(told, file=sys.stderr)


def previous(path):
    return path.with_name(f"{path.name}.previous")


def random_state(device):
    """Where this rank's random numbers are: dropout, if a model has it, goes on from there."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state, device):
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def settle(ddp_model, device):
    """Two backward passes that change nothing, for a run that is resumed to round as it did before.

    In its second step DDP puts the gradients in the order in which they came. On three ranks or
    more the order decides who adds first: a resumed run would differ in the last bit, and soon in
    all of them.
    """
    state = copy.deepcopy(ddp_model.module.state_dict())
    for _ in range(2):
        ddp_model(torch.zeros(1, 1, 28, 28, device=device)).sum().backward()
    ddp_model.zero_grad()
    ddp_model.module.load_state_dict(state)


def check_snapshot(args):
    if args.snapshot_every and not args.snapshot:
        stop("--snapshot-every: to which file? give --snapshot PATH, too")
    if args.snapshot:
        check_writable(args.snapshot.parent)
        if args.snapshot.is_dir():
            stop(f"--snapshot {args.snapshot} is a folder, not a file")


def evaluate_together(model, test_set, device, rank, world_size):
    """Every rank counts its own part of the test set, nothing padded -> (correct, total)."""
    for buffer in model.buffers():  # BatchNorm's statistics: those of rank 0, which are saved
        dist.broadcast(buffer, src=0)
    counts = evaluate(model, test_set, device, rank, world_size)
    dist.all_reduce(counts)
    return counts.tolist()


def open_writer(folder):
    """TensorBoard's writer, or None without a folder."""
    if folder:
        from torch.utils.tensorboard import SummaryWriter  # only here: the import takes seconds

        return SummaryWriter(folder)


def log_epoch(writer, line, epoch, loss, accuracy):
    """Print the line; with a writer put it into log.txt and the numbers into TensorBoard too."""
    print(line)
    if writer:
        writer.add_scalar("loss/train", loss, epoch)
        writer.add_scalar("accuracy/test", accuracy, epoch)
        writer.flush()
        with open(Path(writer.log_dir, "log.txt"), "a", encoding="utf-8") as log:
            log.write(line + "\n")


def target_reached(args, accuracy, rank):
    """Rank 0 decides for all: a rank that stopped alone would leave the others waiting for it."""
    verdict = [{"stop": accuracy >= args.target_accuracy, "accuracy": accuracy}]
    dist.broadcast_object_list(verdict, src=0)  # now every rank holds rank 0's objects
    if verdict[0]["stop"] and rank == 0:
        print(f"{STAGE}: stopping, {accuracy:.2%} is at least {args.target_accuracy:.2%}")
    return verdict[0]["stop"]


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

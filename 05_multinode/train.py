r"""Stage 5: DistributedDataParallel on several nodes, and a run that resumes after a failure.

New since stage 4:
- torchrun runs on every node with the same line; the nodes meet at the rendezvous endpoint
- LOCAL_RANK picks the device, and one rank per node downloads; RANK 0 prints and saves for all
- --snapshot: the full training state, saved after every epoch; started again, the run resumes

The same line on each of two nodes; to rehearse, in two terminals of one machine:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint 127.0.0.1:29500 05_multinode/train.py
"""

import argparse
import json
import os
import shutil
import socket
import sys
import time
import traceback
import zipfile
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: docs/backends.md says why
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets
from tqdm import tqdm

STAGE = "05_multinode"
AMP = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@record
def main():
    parser = base_parser()
    add = parser.add_argument
    add("--amp", choices=AMP, default="off", help="mixed precision (off); slow on most CPUs")
    add("--timeout", type=float, default=60, help="seconds a rank waits for the others (60)")
    add("--snapshot", type=Path, help="file to save to and to resume from")
    args = parse(parser)
    if "RANK" not in os.environ:
        stop(f"start it with torchrun, as python {STAGE}/train.py --help shows")
    world_size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if args.device == "cuda" and here > torch.cuda.device_count():
        stop(f"{here} ranks on this node: at most one per GPU, {torch.cuda.device_count()} here")
    if args.batch_size % world_size:
        stop(f"--batch-size {args.batch_size} is not divisible by {world_size} ranks")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if args.device == "cuda" else torch.device("cpu")
    with process_group(device, args.timeout):  # reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        download(args.data, local_rank)
        train(args, device)


def download(root, local_rank):
    """One rank per node downloads; the others wait at the store, where --timeout does not count."""
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    if local_rank == 0:
        load_mnist(root)
        store.set(f"data {os.environ['GROUP_RANK']}", "is there")
    nodes = range(int(os.environ["GROUP_WORLD_SIZE"]))
    store.wait([f"data {node}" for node in nodes], timedelta(hours=1))


def train(args, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)  # so that ranks augment and drop out differently
    torch.set_num_threads(args.threads)
    train_set, test_set = load_mnist(args.data)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size // world_size,
        sampler=DistributedSampler(train_set, seed=args.seed),  # this rank's shard
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=tuple,  # __getitems__ returns a whole batch: nothing is left to collate
        pin_memory=device.type == "cuda",
    )
    model = ConvNet().to(device, memory_format=torch.channels_last)
    ddp_model = DistributedDataParallel(model)  # sends rank 0's weights; averages gradients
    ddp_model.broadcast_buffers = False  # not in every forward: once an epoch, below
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    steps = args.epochs * len(loader)
    schedule = OneCycleLR(optimizer, args.lr, steps, anneal_strategy="linear", cycle_momentum=False)
    optimizer.register_step_post_hook(lambda *_: schedule.step())  # not if the scaler skips a step
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")
    settings = {flag: getattr(args, flag) for flag in ("epochs", "batch_size", "lr", "seed", "amp")}
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    history = load_snapshot(args.snapshot, settings, state)
    if rank == 0:
        nodes = f"{os.environ['GROUP_WORLD_SIZE']} node(s), {len(history)} epoch(s) done"
        print(f"{STAGE}: {world_size} rank(s) on {nodes}")
    for epoch in range(len(history), args.epochs):
        torch.manual_seed(args.seed + rank + epoch * world_size)  # the same also after a restart
        loader.sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        loss, watch = train_epoch(ddp_model, loader, optimizer, scaler, device, args.amp)
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)  # evaluate the model that rank 0 saves
        correct = evaluate(model, test_set, device, rank, world_size)
        dist.all_reduce(correct)
        phases = [None] * world_size
        dist.all_gather_object(phases, watch.seconds())
        history.append({"loss": loss, "test": correct.tolist(), "phases": phases})
        if rank == 0:
            print(epoch_line(history, args.epochs, len(train_set)))
            if args.snapshot:
                parts = {name: part.state_dict() for name, part in state.items()}
                whole = {"settings": settings, "history": history, **parts}
                save(args.snapshot, lambda file, whole=whole: torch.save(whole, file))
    if rank == 0:
        parts = {"model": model.state_dict(), "scaler": scaler.state_dict()}
        finish(args, STAGE, history, len(train_set), parts, world_size)


def load_snapshot(path, settings, state):
    """Give all ranks the state that rank 0 has read -> the history of the epochs that are done."""
    found = [{"settings": settings, "history": []}]
    if path and path.exists() and dist.get_rank() == 0:
        found = [read_snapshot(path, state)]
    dist.broadcast_object_list(found, src=0)
    if found[0].get("settings") != settings:
        stop(f"--snapshot {path} is damaged or of another run: {found[0].get('settings')}")
    for name in state.keys() & found[0].keys():
        state[name].load_state_dict(found[0][name])
    return found[0]["history"]


def read_snapshot(path, state):
    """Return what is in the file, or an empty dict if it is not a whole snapshot."""
    try:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load does not compare the checksums
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {} if damaged or not found.keys() > state.keys() else found
    except Exception:  # zipfile, pickle and torch: each has exceptions of its own
        return {}


# ----------------------------------------------- from here to the next line: as in stage 3


@contextmanager
def process_group(device, timeout, **rendezvous):
    """Join the other ranks, and leave them again. Raises DistError if they do not come in time."""
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if device_id is not None:
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backend, timeout=limit, device_id=device_id, **rendezvous)
    try:
        yield
    finally:
        failure = sys.exc_info()[2]
        traceback.clear_frames(failure)  # its frames hold DDP, and DDP holds gloo's threads
        if backend == "gloo" or failure is None:  # NCCL would wait for ranks that wait for this one
            dist.destroy_process_group()


def train_epoch(model, loader, optimizer, scaler, device, amp):
    """One optimizer step per batch -> the mean loss, and the stopwatch with its laps."""
    model.train()
    total_loss = torch.zeros((), device=device)  # on the device: .item() would stall every step
    watch = Stopwatch(device)
    # The first layer's gradients come last. From then on backward only waits for other ranks.
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
    """MNIST as one uint8 tensor in memory: a batch is one indexing operation."""

    def __getitems__(self, indices):
        return self.data[indices], self.targets[indices]


def load_mnist(root):
    """Return the training set and the test set, downloaded first if they are not there."""
    try:
        return MNIST(root, train=True, download=True), MNIST(root, train=False)
    except Exception as error:  # no network, or a damaged file: each has an exception of its own
        reason = " ".join(str(error).split())[-80:] or type(error).__name__
        stop(f"--data {root}: no MNIST ({reason}); tools/draw_digits.py draws a stand-in")


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


def finish(args, name, history, images, parts, world_size=1):
    """Write the checkpoint, and the record for compare.py; print where a step's time went."""
    flags = {flag: value for flag, value in vars(args).items() if not isinstance(value, Path)}
    flags["hosts"] = int(os.environ.get("GROUP_WORLD_SIZE", 1))  # nodes: torchrun sets it
    path = args.record / record_name(name, flags, world_size)
    run = {"stage": STAGE, "name": name, **flags, "world_size": world_size, "images": images}
    where = {"host": socket.gethostname(), "torch": torch.__version__}
    step = {k: 1000 * s * args.batch_size / images for k, s in history[-1]["phases"][0].items()}
    split = ", ".join(f"{phase} {milliseconds:.2f}" for phase, milliseconds in step.items())
    print(f"milliseconds per step: {split} -> {path.name}")
    record = json.dumps({**run, **where, "history": history}, indent=1)
    try:
        save(args.checkpoint, lambda file: torch.save(parts, file))
    finally:  # the record also if there was no room for the checkpoint
        save(path, lambda file: Path(file).write_text(record))


def record_name(name, flags, world_size):
    """Every flag that is not the default is part of the name."""
    more = {"amp": "off", "sync_batchnorm": False, "hosts": 1, "device": flags["device"]}
    usual = {**vars(base_parser().parse_args([])), **more}
    short = {"epochs": "e", "batch_size": "b", "amp": ""}
    changed = [f"-{short.get(k, k)}{v}" for k, v in flags.items() if v != usual.get(k, v)]
    return f"{name}{''.join(changed)}-{world_size}x{flags['device']}.json"


def save(path, write):
    """Write under a temporary name, then rename: if that fails, the last file is still whole."""
    try:
        write(f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    except (OSError, RuntimeError) as error:  # torch.save raises the latter
        Path(f"{path}.tmp").unlink(missing_ok=True)
        stop(f"cannot write {path}; is the disk full? {str(error).splitlines()[0]}")


def stop(message):
    """Bad input: one line and exit code 2."""
    if os.getenv("LOCAL_RANK", "0") != "0":
        time.sleep(30)  # local rank 0 prints the same, and the launcher ends this rank
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
    add("--record", type=Path, default="timings", help="folder for the timings (timings)")
    return parser


def parse(parser):
    """Read the flags, and refuse what cannot work before anything is started."""
    args = parser.parse_args()
    least = dict(epochs=1, batch_size=1, threads=1, timeout=1)  # else 0
    most = dict(lr=100, seed=2**31, threads=512, workers=512, world_size=512)  # else 1e6
    for flag in least | most:
        low, high = least.get(flag, 0), most.get(flag, 10**6)
        if not low <= getattr(args, flag, low) <= high:  # nan is refused, too
            stop(f"--{flag.replace('_', '-')} {getattr(args, flag)}: from {low} to {high}")
    if args.device == "cuda" and not torch.cuda.is_available():
        stop("--device cuda: PyTorch sees no CUDA device")
    shm = Path("/dev/shm")  # batches come through it; a worker without room is waited for, for ever
    if args.workers and shm.is_dir() and shutil.disk_usage(shm).free < 2**24:
        stop("--workers: less than 16 MiB are free in /dev/shm, which loader workers need")
    for file in filter(None, (args.record / "x", args.checkpoint, vars(args).get("snapshot"))):
        try:  # fails where nothing can be written: now, not after the training
            file.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{file}.tmp").touch()
            Path(f"{file}.tmp").unlink(missing_ok=True)  # another rank may have been here
        except OSError as error:
            stop(f"cannot write to {error.filename}: {error.strerror}")
        if file.is_dir():
            stop(f"cannot write to {file}: it is a folder")
    return args


if __name__ == "__main__":
    main()

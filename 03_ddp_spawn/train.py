"""Stage 3: DistributedDataParallel (DDP), with one process (rank) per device, started by mp.spawn.

Each rank trains on its own part of every batch. DDP averages the gradients of all ranks during
backward, so all ranks take the same step, and their weights stay equal.

    python 03_ddp_spawn/train.py
    python 03_ddp_spawn/train.py --epochs 1 --world-size 2 --amp bf16
"""

import argparse
import json
import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchvision import datasets
from tqdm import tqdm

STAGE = "03_ddp_spawn"
# --amp: the precision in which convolutions and the linear layer compute.
AMP = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main():
    args = parse_args()
    download_mnist(args.data)  # The ranks will find the files on the disk.
    with tempfile.TemporaryDirectory() as folder:
        meeting_point = f"file://{folder}/ranks"  # Through this file the ranks find each other.
        try:
            # Start worker(0, args, meeting_point), worker(1, ...), ..., and wait until they end.
            mp.spawn(worker, args=(args, meeting_point), nprocs=args.world_size)
        finally:
            # Ctrl-C may stop this process and not the ranks. Python would then wait at its exit
            # until the ranks have finished their training. So the ranks are ended here.
            for process in mp.active_children():
                process.terminate()


def worker(rank, args, meeting_point):
    # When a rank starts, mp.spawn asks the system to end this rank if the parent dies. The parent
    # may have died before this request, so the rank checks here whether the parent is alive.
    if not mp.parent_process().is_alive():
        raise SystemExit(1)
    device = torch.device("cpu")
    if args.device == "cuda":
        # Each rank takes a GPU of its own. With --backend gloo there may be fewer GPUs than ranks,
        # and ranks share them.
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # From here on the ranks can communicate: over nccl between GPUs, or over gloo between CPUs.
    # NCCL must know which GPU belongs to this rank (device_id).
    dist.init_process_group(
        args.backend,
        init_method=meeting_point,
        rank=rank,
        world_size=args.world_size,
        timeout=timedelta(seconds=args.timeout),
        device_id=device if args.backend == "nccl" else None,
    )
    train(args, device)
    dist.destroy_process_group()  # This comes last, because DDP uses the group in train.


def train(args, device):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    # Each rank draws different random numbers. Dropout or augmentation would need this. The weights
    # are equal nevertheless, because DDP copies the weights of rank 0.
    torch.manual_seed(args.seed + rank)
    # By default a rank has one CPU thread. Without GPUs one core then stands in for one device.
    torch.set_num_threads(args.threads)

    loader, sampler, test_loader = make_loaders(args, device)
    # channels_last puts the channels of a pixel next to each other in memory. Convolutions are
    # faster then: on a CPU this saves a quarter of the time.
    model = make_model().to(device, memory_format=torch.channels_last)
    if args.sync_batchnorm:  # BatchNorm then uses the statistics of all ranks' images together.
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    # This line copies the weights of rank 0 into the model of every rank, and wraps this model. In
    # each backward the wrapper averages the gradients.
    ddp_model = DistributedDataParallel(model)
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

    # Some gradients are too small for fp16, so the loss is scaled up before backward. Without fp16
    # the scaler is not enabled, and changes nothing.
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")

    if rank == 0:
        print(f"{STAGE}: {world_size} rank(s) on {device.type}, {args.threads} thread(s) each")
    images = len(loader.dataset)  # those of all ranks
    history = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # Without this line every epoch has the order of the first.
        loss, measured = train_epoch(
            ddp_model, loader, optimizer, schedule, scaler, device, args.amp
        )
        # BatchNorm's running mean and variance are buffers of the model. In each forward pass DDP
        # copies those of rank 0, and then each rank updates its own. So after the last step they
        # differ. All ranks take those of rank 0, to evaluate the model that rank 0 saves.
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
        correct, total = evaluate(model, test_loader, device)
        history.append(make_entry(loss, correct, total, measured))
        if rank == 0:
            seconds = sum(measured["phases"].values())  # the training, without the evaluation
            print(
                f"epoch {epoch + 1}/{args.epochs}: {seconds:.2f} s, "
                f"{images / seconds:,.0f} images/s, "
                f"loss {loss:.4f}, accuracy {correct / total:.2%}"
            )
    if rank == 0:  # One rank writes the files.
        write_record(args, history, images, world_size)
        torch.save({"model": model.state_dict()}, args.checkpoint)


def make_loaders(args, device):
    """Return the batches of this rank for training, their sampler, and the batches for testing."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    train_set, test_set = load_mnist(args.data)
    # Each rank trains on its own part of the images, its shard. The sampler asks the group for the
    # rank and the world size. It shuffles with the same seed on all ranks, so that the shards do
    # not overlap.
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size // world_size,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,  # Otherwise new workers start in each epoch.
        # Pinned memory is never swapped out, so it can be copied to the GPU while Python goes on.
        pin_memory=device.type == "cuda",
    )
    # Rank r tests the images r, r + world_size, ... No DistributedSampler is used here: it
    # repeats some images if they cannot be shared evenly, and repeated images count twice.
    shard = Subset(test_set, range(rank, len(test_set), world_size))
    test_loader = DataLoader(shard, batch_size=500)
    return loader, sampler, test_loader


def train_epoch(ddp_model, loader, optimizer, schedule, scaler, device, amp):
    """Take one optimizer step per batch.

    Return the mean loss over all ranks, and what was measured on this rank.
    """
    ddp_model.train()  # BatchNorm normalizes with the statistics of this rank's part of the batch.
    # The sum stays on the device. With .item() the CPU would wait for the GPU in every step.
    total_loss = torch.zeros((), device=device)
    watch = Stopwatch(device)
    # A hook of a parameter is a function that autograd calls when the gradient of this parameter is
    # ready. The gradient of the first layer is ready last. When this hook runs, backward has
    # nothing more to compute. From here until backward() returns, the rank only waits for the other
    # ranks and for the averages. This phase is called "exposed": no computation hides it.
    first = next(ddp_model.parameters())
    hook = first.register_hook(lambda gradient: watch.lap("backward"))
    # With disable=None the progress bar is drawn on a terminal only, and not into a log file.
    batches = tqdm(loader, leave=False, disable=None) if dist.get_rank() == 0 else loader
    for images, labels in batches:
        x, y = to_device(images, labels, device)
        watch.lap("data")
        # autocast chooses the precision of each operation.
        with torch.autocast(device.type, AMP[amp], enabled=amp != "off"):
            loss = F.cross_entropy(ddp_model(x), y)
        watch.lap("forward")
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # DDP averages the gradients in here.
        watch.lap("exposed")
        # The scaler divides the gradients by the scale. If a gradient is inf or nan, the scaler
        # skips the step.
        scaler.step(optimizer)
        scaler.update()
        schedule.step()  # The schedule counts steps and not epochs.
        total_loss += loss.detach()
        watch.lap("optimizer")
    hook.remove()
    dist.all_reduce(total_loss)  # Now total_loss is the sum over all ranks.
    mean_loss = total_loss.item() / len(loader) / dist.get_world_size()
    return mean_loss, watch.measurements()


@torch.inference_mode()
def evaluate(model, test_loader, device):
    """Return how many test images all ranks classify correctly, and how many they have tested."""
    model.eval()  # BatchNorm normalizes with the statistics that it collected in training.
    counts = torch.tensor([0, 0], device=device)  # the correct images, and all images
    for images, labels in test_loader:
        x, y = to_device(images, labels, device)
        counts[0] += (model(x).argmax(1) == y).sum()
        counts[1] += len(y)
    dist.all_reduce(counts)  # Each rank gets the sums over all ranks.
    correct, total = counts.tolist()
    return correct, total


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
    """Return the entry of an epoch in the history, with what was measured on each rank."""
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, measured)  # ranks[r] now has what rank r measured.
    return {
        "loss": loss,
        "test": [correct, total],
        "phases": [each["phases"] for each in ranks],
        "cpu": [each["cpu"] for each in ranks],
        "faults": [each["faults"] for each in ranks],
    }


def write_record(args, history, images, world_size):
    """Append a line of JSON for compare.py: the flags, the machine, and what was measured."""
    run = {"stage": STAGE}
    for name, value in vars(args).items():
        if not isinstance(value, Path):  # The record can be published, so it has no paths.
            run[name] = value
    run["world_size"] = world_size
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
    parser.add_argument(
        "-b", "--batch-size", type=int, default=240, help="images per step, over all ranks (240)"
    )
    parser.add_argument("--lr", type=float, default=0.15, help="peak learning rate (0.15)")
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--world-size", type=int, help="ranks (one per GPU; 2 on a CPU)")
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"), help="nccl for GPUs, gloo for CPUs or a shared GPU"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds a rank waits for others (600)"
    )
    parser.add_argument(
        "--amp", choices=AMP, default="off", help="mixed precision (off); slow on most CPUs"
    )
    parser.add_argument(
        "--sync-batchnorm", action="store_true", help="BatchNorm over all ranks (GPUs only)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per rank (1)")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers per rank (0)")
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
    gpus = torch.cuda.device_count()
    if args.world_size is None:
        args.world_size = gpus if args.device == "cuda" else 2
    if args.backend is None:
        args.backend = "nccl" if args.device == "cuda" else "gloo"
    if args.world_size < 1:
        parser.error(
            f"--world-size {args.world_size}: at least one rank is needed ({gpus} GPU(s) are here)"
        )
    if args.backend == "nccl" and args.world_size > gpus:
        parser.error(f"more ranks than the {gpus} GPU(s) here: --backend gloo lets ranks share one")
    if args.sync_batchnorm and args.device == "cpu":
        parser.error("--sync-batchnorm: PyTorch's SyncBatchNorm works on GPUs only")
    if args.batch_size % args.world_size != 0:
        parser.error(f"--batch-size {args.batch_size} is not divisible by {args.world_size} ranks")
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

r"""Stage 5: DistributedDataParallel on several nodes, and a run that resumes after a failure.

Run the command below in two terminals: each of them stands in for a node. The ranks of both
terminals take the first GPU, so add --backend gloo on a machine with GPUs. On two machines, write
the name of the first machine instead of 127.0.0.1. The nodes meet at this address, which is called
the endpoint of the rendezvous (rdzv). With c10d, PyTorch's own way to meet, torchrun numbers the
nodes.

After each epoch rank 0 saves the whole state of the training in the file that --snapshot names.
After a failure the same commands resume from this file. On several machines rank 0 may then be on
another node, so put the file on a disk that the nodes share.

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29500 \
        05_multinode/train.py --snapshot checkpoints/snapshot.pt
"""

import argparse
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchvision import datasets
from tqdm import tqdm

STAGE = "05_multinode"
# --amp: the precision in which convolutions and the linear layer compute.
AMP = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@record  # If a rank fails, torchrun's report shows its traceback.
def main():
    args = parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])  # The number of this rank on its node (machine).
    device = torch.device("cpu")
    if args.device == "cuda":
        # Each rank takes a GPU of its own. With --backend gloo there may be fewer GPUs than ranks,
        # and ranks share them.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if local_rank == 0:
        download_mnist(args.data)  # One rank per node downloads, before it joins the others.
    # torchrun has set the environment variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The
    # last two are the address at which the ranks find each other. From here on they can
    # communicate: over nccl between GPUs, or over gloo between CPUs. NCCL must know the GPU of this
    # rank (device_id).
    dist.init_process_group(
        args.backend,
        timeout=timedelta(seconds=args.timeout),
        device_id=device if args.backend == "nccl" else None,
    )
    # No rank passes the barrier before all ranks have reached it. init_process_group does not
    # promise to wait for all of them. Now every node has the data.
    dist.barrier()
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

    images = len(loader.dataset)  # those of all ranks
    # These must be the same on all nodes, and the same when a run resumes.
    settings = {
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "lr": args.lr,
        "seed": args.seed,
        "amp": args.amp,
        "images": images,
    }
    check_settings(settings)
    # These change during the training. The keys are their names in the snapshot.
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    history = resume(args.snapshot, settings, state)

    nodes = int(os.environ["GROUP_WORLD_SIZE"])  # torchrun's name for the number of nodes
    if rank == 0:
        print(f"{STAGE}: {world_size} rank(s) on {nodes} node(s), {len(history)} epoch(s) done")
    for epoch in range(len(history), args.epochs):
        # Each rank has a seed of its own for each epoch. So an epoch draws the same random numbers,
        # whether or not the run was stopped before it.
        torch.manual_seed(args.seed + rank + epoch * world_size)
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
            if args.snapshot is not None:
                save_snapshot(args.snapshot, settings, history, state)
    if rank == 0:  # One rank writes the files.
        write_record(args, history, images, world_size, nodes)
        torch.save({"model": model.state_dict()}, args.checkpoint)


def check_settings(settings):
    """Stop if the settings differ between ranks, because the command is typed on every node."""
    all_settings = [None] * dist.get_world_size()
    dist.all_gather_object(all_settings, settings)
    for others in all_settings:
        if others != settings:
            raise SystemExit(f"the nodes have different settings: {settings} and {others}")


def resume(path, settings, state):
    """If there is a snapshot, load it into the state. Return the history of the epochs done."""
    snapshot = load_snapshot(path)
    if snapshot is None:
        return []
    if "settings" not in snapshot:
        raise SystemExit(f"{path} is not a snapshot of this script")
    if snapshot["settings"] != settings:
        raise SystemExit(f"{path} was saved with {snapshot['settings']}, not with {settings}")
    for name, part in state.items():
        part.load_state_dict(snapshot[name])
    return snapshot["history"]


def load_snapshot(path):
    """Return on every rank what rank 0 reads from the file, or None if there is no file yet."""
    found = [None]
    if dist.get_rank() == 0 and path is not None and path.exists():
        try:
            # Without map_location all ranks would receive tensors on the GPU of rank 0.
            found[0] = torch.load(path, map_location="cpu")
        except Exception as error:  # PyTorch's message does not name the file.
            reason = type(error).__name__
            raise SystemExit(f"{path} is damaged ({reason}): remove it, or copy it back") from None
    # Rank 0 sends the snapshot to all ranks. So all ranks resume after the same epoch, even if only
    # one node has the file. On the other ranks the broadcast replaces the None in the list.
    dist.broadcast_object_list(found, src=0)
    return found[0]


def save_snapshot(path, settings, history, state):
    """Save what a run needs to resume after the last epoch in history."""
    snapshot = {"settings": settings, "history": history}
    for name, part in state.items():
        snapshot[name] = part.state_dict()
    # A run can be killed while it writes. So the file is written under another name, and replaces
    # the old snapshot when it is whole.
    temporary = f"{path}.tmp"
    torch.save(snapshot, temporary)
    os.replace(temporary, path)


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


def write_record(args, history, images, world_size, nodes):
    """Append a line of JSON for compare.py: the flags, the machine, and what was measured."""
    run = {"stage": STAGE}
    for name, value in vars(args).items():
        if not isinstance(value, Path):  # The record can be published, so it has no paths.
            run[name] = value
    run["world_size"] = world_size
    run["hosts"] = nodes
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
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"), help="nccl for GPUs, gloo for CPUs or a shared GPU"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds a rank waits for others (600)"
    )
    parser.add_argument(
        "--amp", choices=AMP, default="off", help="mixed precision (off); slow on most CPUs"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per rank (1)")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers per rank (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (0)")
    parser.add_argument(
        "--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)"
    )
    parser.add_argument(
        "--snapshot", type=Path, help="file to save to after each epoch, and to resume from"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=f"checkpoints/{STAGE}.pt", help="file for the model"
    )
    parser.add_argument(
        "--record", type=Path, default="timings/runs.jsonl", help="file for the timings"
    )
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, as --help shows")
    if args.backend is None:
        args.backend = "nccl" if args.device == "cuda" else "gloo"
    gpus = torch.cuda.device_count()
    if args.backend == "nccl" and int(os.environ["LOCAL_RANK"]) >= gpus:
        parser.error(f"more ranks than the {gpus} GPU(s) here: --backend gloo lets ranks share one")
    world_size = int(os.environ["WORLD_SIZE"])
    if args.batch_size % world_size != 0:
        parser.error(f"--batch-size {args.batch_size} is not divisible by {world_size} ranks")
    # If a file cannot be written, the run fails now and not after the training.
    paths = [args.checkpoint, args.record]
    if args.snapshot is not None:
        paths.append(args.snapshot)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            parser.error(f"{path} is a folder, and not a file to write to")
    return args


if __name__ == "__main__":
    main()

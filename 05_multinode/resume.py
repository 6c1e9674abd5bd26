"""What must a resumable checkpoint (here: a snapshot) hold? All that the next step depends on.

Without torchrun this script trains a small network with dropout on two ranks and on three, kills
the run before and after each of its snapshots, resumes it, and compares the weights with those of
an undisturbed run. Then it leaves out one part of the snapshot at a time, and prints how far off
the weights end.

Under torchrun it trains the ConvNet on MNIST with a snapshot every N steps, also inside an epoch:

    python 05_multinode/resume.py
    torchrun --standalone --nproc-per-node 2 05_multinode/resume.py --every 50
"""

import argparse
import copy
import io
import itertools
import os
import signal
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CPU = torch.device("cpu")
DTYPES = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}
PARTS = (  # what can be left out
    "momentum",
    "learning rate",
    "loss scale",
    "random numbers",
    "position in the epoch",
    "order of the buckets",
)


class Killed(Exception):
    """Stands for the end of a process: what it had in memory is gone."""


def run(args, device, train_set, model, kill=None, without=None):
    """Train the model, from the snapshot if there is one -> the number of steps done before.

    args: epochs, batch_size (of all ranks), lr, seed, amp, snapshot (a path), every (steps).
    kill: (step, "before" or "after"): raise Killed there, around writing the snapshot of that step.
    without: one of PARTS, which is then not restored.
    """
    torch.set_num_threads(1)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size // dist.get_world_size(),
        sampler=sampler,
        generator=torch.Generator(),  # or every new iterator takes one of the rank's random numbers
    )
    ddp_model = DistributedDataParallel(model)
    ddp_model.broadcast_buffers = False  # not in every forward: once, before evaluating
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    schedule = OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))
    optimizer.register_step_post_hook(lambda *_: schedule.step())  # not if the scaler skips a step
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**20, enabled=args.amp == "fp16")
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    if without != "order of the buckets":
        settle(ddp_model, next(iter(loader))[0][:1].to(device))
    torch.manual_seed(args.seed + dist.get_rank())
    resumed = done = resume(args, state, device, without)
    while done < args.epochs * len(loader):
        epoch, skip = divmod(done, len(loader))
        sampler.set_epoch(epoch)
        first = 0 if without == "position in the epoch" else skip
        for images, labels in itertools.islice(loader, first, first + len(loader) - skip):
            train_step(ddp_model, optimizer, scaler, args.amp, images.to(device), labels.to(device))
            done += 1
            if done % args.every == 0:
                if kill == (done, "before"):
                    raise Killed
                save(args, state, done, device)
                if kill == (done, "after"):
                    raise Killed
    return resumed


def train_step(ddp_model, optimizer, scaler, amp, images, labels):
    """One optimizer step. images: uint8 [B, 28, 28], labels: [B], both on the device."""
    with torch.autocast(images.device.type, DTYPES[amp], enabled=amp != "off"):
        loss = F.cross_entropy(ddp_model(images.unsqueeze(1).float() / 255), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def settle(ddp_model, images):
    """Two backward passes without a step: DDP orders its buckets as it does after the first step.

    With three ranks or more the order of the gradients in a bucket decides who adds first. A
    resumed run would otherwise begin with another order than the undisturbed run had at that step,
    and differ in the last bit.
    """
    before = copy.deepcopy(ddp_model.module.state_dict())
    for _ in range(2):
        ddp_model(images.unsqueeze(1).float() / 255).sum().backward()
    ddp_model.zero_grad()
    ddp_model.module.load_state_dict(before)  # with the BatchNorm statistics, if any


# ---------------------------------------------------------------- snapshots


def save(args, state, done, device):
    """Collect the random state of every rank; rank 0 writes the snapshot."""
    own = [torch.get_rng_state()]
    if device.type == "cuda":
        own.append(torch.cuda.get_rng_state(device))  # a GPU has a generator of its own
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, own)
    if dist.get_rank() == 0:
        snapshot = {"settings": settings(args), "step": done, "random": random}
        snapshot.update((name, part.state_dict()) for name, part in state.items())
        write_snapshot(args.snapshot, snapshot)


def resume(args, state, device, without=None):
    """Restore the newest snapshot that any node has -> the number of steps that are done."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    snapshot, refused = None, False
    if int(os.getenv("LOCAL_RANK", rank)) == 0:  # once per node
        snapshot, refused = read_snapshot(args.snapshot, settings(args))
    found = [None] * world_size
    dist.all_gather_object(found, (snapshot["step"] if snapshot else 0, refused))
    steps, refusals = zip(*found)
    if max(steps) == 0:
        if any(refusals):  # rather than begin anew by mistake
            stop("there is no good snapshot; to begin anew, name another --snapshot", rank)
        return 0
    box = [snapshot]
    dist.broadcast_object_list(box, src=steps.index(max(steps)))  # nodes need not share a disk
    snapshot = box[0]
    if without == "momentum":
        snapshot["optimizer"]["state"] = {}  # the learning rate is in its param_groups
    left_out = {"learning rate": "schedule", "loss scale": "scaler"}.get(without)
    for name in state.keys() - {left_out}:
        state[name].load_state_dict(snapshot[name])
    before = len(snapshot["random"])
    if before != world_size and rank == 0:
        lost = "other random numbers, and sums in another order"
        print(f"resume.py: {before} rank(s) before, {world_size} now: {lost}", flush=True)
    if before == world_size and without != "random numbers":
        own = snapshot["random"][rank]
        torch.set_rng_state(own[0])
        if device.type == "cuda" and len(own) > 1:
            torch.cuda.set_rng_state(own[1], device)
    return snapshot["step"]


def settings(args):
    """What has to be the same in a run that resumes; train.py's snapshots have no script."""
    flags = {name: getattr(args, name) for name in ("epochs", "batch_size", "lr", "seed", "amp")}
    return {"script": "resume.py", **flags}


def write_snapshot(path, snapshot):
    """Write it under another name, then rename; the one before stays, as PATH.previous."""
    image, temp = io.BytesIO(), path.with_name(f"{path.name}.tmp")
    torch.save(snapshot, image)
    try:
        with open(temp, "wb") as file:
            file.write(image.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # all of it is on the disk before it gets its name
        if path.exists():
            os.replace(path, previous(path))
        os.replace(temp, path)
    except OSError as error:  # a full disk does not end the training
        with suppress(OSError):
            temp.unlink()
        print(f"resume.py: no snapshot ({error.strerror})", file=sys.stderr)


def read_snapshot(path, expected):
    """-> the last good snapshot with the expected settings, or None; whether one was refused."""
    refused = False
    for candidate in filter(Path.exists, (path, previous(path))):
        snapshot, fault = check(candidate, expected)
        if snapshot and refused:  # set the bad one aside, or it soon replaces the previous one
            with suppress(FileNotFoundError):  # a node that shares the disk was faster
                os.replace(path, path.with_name(f"{path.name}.refused"))
        if snapshot:
            return snapshot, refused
        refused = True
        print(f"resume.py: refusing {candidate}: {fault}", file=sys.stderr)
    return None, refused


def check(path, expected):
    """-> the snapshot and None, or None and what is wrong with it."""
    try:
        with zipfile.ZipFile(path) as archive:  # which is what torch.save writes
            if archive.testzip():
                raise zipfile.BadZipFile("a checksum is wrong")
        snapshot = torch.load(path, map_location="cpu", weights_only=True)
        found = dict(snapshot["settings"])
    except Exception as error:  # each kind of wrong file has an exception of its own
        return None, f"damaged, or not a snapshot ({type(error).__name__})"
    wrong = [f"{k} {found.get(k)} instead of {v}" for k, v in expected.items() if found.get(k) != v]
    if wrong:
        return None, f"of another run: {', '.join(wrong)}"
    return snapshot, None


def previous(path):
    return path.with_name(f"{path.name}.previous")


# ---------------------------------------------------------------- the demonstration


def demonstrate(rank, world_size, folder):
    """On each of several ranks: resume a run of 10 steps in every way; rank 0 prints the table."""
    import train

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: only the parent process reports it
    if not mp.parent_process().is_alive():
        sys.exit(1)  # it was killed while this rank still imported; from now on ranks learn of it
    here = {"init_method": f"file://{folder}/ranks", "rank": rank, "world_size": world_size}
    with train.process_group(CPU, 60, **here):
        undisturbed = train_small_net(Path(folder, "undisturbed"))
        kills = itertools.product(range(1, 11), ("before", "after"))
        killed = [train_small_net(Path(folder, "-".join(map(str, kill))), kill) for kill in kills]
        far = distance(torch.stack(killed), undisturbed)
        verdict = "ok    " if far == 0 else "FAILED"
        lines = [f"{world_size} ranks, 2 epochs of 5 steps, fp16 on a CPU, dropout"]
        lines += [f"{verdict} killed around each of 10 snapshots, resumed: distance {far:.0e}"]
        for part in PARTS:
            weights = train_small_net(Path(folder, part), (7, "after"), without=part)
            lines += [f"       without the {part:22} {distance(weights, undisturbed):.0e}"]
    if rank == 0:
        print(*lines, sep="\n", flush=True)
    if far != 0:
        sys.exit(1)


def train_small_net(snapshot, kill=None, without=None):
    """Train; if the run is killed, resume it, without a part of the snapshot -> the weights."""
    args = argparse.Namespace(epochs=2, batch_size=24, lr=0.1, seed=0, amp="fp16", every=1)
    args.snapshot = snapshot
    with suppress(Killed):
        model = small_net()
        run(args, CPU, noise(), model, kill)
    if kill:
        dist.barrier()  # rank 0 may still be writing
        model = small_net()
        run(args, CPU, noise(), model, without=without)
    return parameters_to_vector(model.parameters()).detach()


def noise():
    """120 random images and labels."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (120, 28, 28), dtype=torch.uint8, generator=random)
    return TensorDataset(images, torch.randint(10, (120,), generator=random))


def small_net():
    """One hidden layer, with dropout: every rank draws other random numbers in every step."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Dropout(0.2), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def distance(weights, others):
    """The largest difference of weights [..., P] and [P], relative to the largest weight."""
    return ((weights - others).abs().max() / others.abs().max()).item()


# ---------------------------------------------------------------- under torchrun


def train_mnist(args, device):
    """Train the ConvNet, evaluate it on all ranks, save its weights on rank 0."""
    import train

    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, test_set = train.load_mnist(args.data)
    torch.manual_seed(args.seed)
    model = train.ConvNet().to(device)
    resumed = run(args, device, TensorDataset(train_set.data, train_set.targets), model)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    correct = train.evaluate(model, test_set, device, rank, world_size)
    dist.all_reduce(correct)
    if rank == 0:
        torch.save({"model": model.state_dict()}, args.checkpoint)
        correct, total = correct.tolist()
        print(f"resume.py: {resumed} step(s) done before; {correct:,} of {total:,} images correct")


def parse():
    raw, gpus = argparse.RawDescriptionHelpFormatter, torch.cuda.device_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("-e", "--epochs", type=int, default=2, help="passes over the training set (2)")
    add("-b", "--batch-size", type=int, default=240, help="images per step, over all ranks (240)")
    add("--lr", type=float, default=0.1, help="peak learning rate (0.1)")
    add("--seed", type=int, default=0, help="seed of the random numbers (0)")
    add("--amp", choices=DTYPES, default="off", help="mixed precision (off)")
    add("--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if gpus else "cpu")
    add("--timeout", type=float, default=60, help="seconds a rank waits for the others (60)")
    add("--every", type=int, default=50, help="steps from one snapshot to the next (50)")
    add("--snapshot", type=Path, default=Path("run.snapshot"), help="file (run.snapshot)")
    add("--checkpoint", type=Path, default=Path("resume.pt"), help="file for the model (resume.pt)")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        if sys.argv[1:]:
            stop("flags are for a start with torchrun")
        return args
    for flag in ("epochs", "batch_size", "every", "timeout"):
        if not getattr(args, flag) >= 1:  # nan is refused, too
            stop(f"--{flag.replace('_', '-')} {getattr(args, flag)}: at least 1")
    if args.batch_size % int(os.environ["WORLD_SIZE"]):
        stop(f"--batch-size {args.batch_size} is not divisible by {os.environ['WORLD_SIZE']} ranks")
    for file in (args.snapshot, args.checkpoint):
        if file.is_dir() or not os.access(file.parent, os.W_OK):
            stop(f"cannot write {file}")
    return args


def stop(message, rank=0):
    """Bad input: one line, of one rank if all know it, and exit code 2."""
    if rank == 0:
        print(f"resume.py: error: {message}", file=sys.stderr)
    sys.exit(2)


def main():
    import train

    args = parse()
    if "RANK" in os.environ:
        on_gpu = args.device == "cuda"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else CPU
        with train.process_group(device, args.timeout):
            train.download(args.data, int(os.environ["LOCAL_RANK"]))
            train_mnist(args, device)
        return
    for world_size in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(demonstrate, (world_size, folder), world_size, daemon=True)  # end with us


if __name__ == "__main__":
    main()

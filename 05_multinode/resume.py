"""What must a resumable checkpoint (here: a snapshot) hold? All that the next step depends on.

This script trains a small network with dropout on two ranks and on three, kills the run before and
after each of its snapshots, one per step, resumes it, and compares the weights with those of an
undisturbed run. Then it leaves out one part of the snapshot at a time, and prints how far off the
weights end. Each rank stands in for a node with a disk of its own: only rank 0's has the snapshots.

    python 05_multinode/resume.py
"""

import argparse
import copy
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
EPOCHS, STEPS, IMAGES = 2, 5, 120  # passes over the data, steps and images of each
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


def run(snapshot, kill=None, without=None):
    """Train, from the snapshot if there is one -> the model, and the number of steps done before.

    snapshot: a file on this node's disk. kill: (step, "before" or "after"): raise Killed there,
    around writing the snapshot of that step. without: one of PARTS, which is then not restored.
    """
    torch.manual_seed(0)
    model = small_net()
    train_set = noise()
    sampler = DistributedSampler(train_set)
    loader = DataLoader(
        train_set,
        batch_size=IMAGES // STEPS // dist.get_world_size(),
        sampler=sampler,
        generator=torch.Generator(),  # or every new iterator takes one of the rank's random numbers
    )
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * STEPS)
    optimizer.register_step_post_hook(lambda *_: schedule.step())  # not if the scaler skips a step
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    if without != "order of the buckets":
        settle(ddp_model, train_set.tensors[0][:1])
    torch.manual_seed(dist.get_rank())
    resumed = done = resume(snapshot, state, without)
    while done < EPOCHS * STEPS:
        epoch, skip = divmod(done, STEPS)
        sampler.set_epoch(epoch)
        first = 0 if without == "position in the epoch" else skip
        for images, labels in itertools.islice(loader, first, first + STEPS - skip):
            train_step(ddp_model, optimizer, scaler, images, labels)
            done += 1
            if kill == (done, "before"):
                raise Killed
            save(snapshot, state, done)
            if kill == (done, "after"):
                raise Killed
    return model, resumed


def train_step(ddp_model, optimizer, scaler, images, labels):
    """One optimizer step in mixed precision. images: [B, 784], labels: [B]."""
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(ddp_model(images), labels)
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
        ddp_model(images).sum().backward()
    ddp_model.zero_grad()
    ddp_model.module.load_state_dict(before)  # with the BatchNorm statistics, if any


# ---------------------------------------------------------------- snapshots


def save(path, state, done):
    """Collect the random state of every rank (on GPUs that of each GPU, too); rank 0 writes."""
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, torch.get_rng_state())
    if dist.get_rank() == 0:
        snapshot = {name: part.state_dict() for name, part in state.items()}
        temp = path.with_name(f"{path.name}.tmp")
        torch.save(snapshot | {"step": done, "random": random}, temp)
        os.replace(temp, path)  # a crash while saving leaves the one before


def resume(path, state, without=None):
    """Restore the newest snapshot that any node has -> the number of steps that are done."""
    rank, snapshot = dist.get_rank(), {"step": 0}
    if path.exists():
        snapshot = read(path)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, snapshot.get("step"))
    if None in found:  # rather than begin anew by mistake
        if rank == 0:
            print(f"resume.py: error: {path.name} is damaged on a node", file=sys.stderr)
        sys.exit(2)
    if max(found) == 0:
        return 0
    box = [snapshot]
    dist.broadcast_object_list(box, src=found.index(max(found)))  # nodes need not share a disk
    snapshot = box[0]
    if without == "momentum":
        snapshot["optimizer"]["state"] = {}  # the learning rate is in its param_groups
    left_out = {"learning rate": "schedule", "loss scale": "scaler"}.get(without)
    for name in state.keys() - {left_out}:
        state[name].load_state_dict(snapshot[name])
    if without != "random numbers":
        torch.set_rng_state(snapshot["random"][rank])
    return snapshot["step"]


def read(path):
    """Return what is in the file, or an empty dict if it is not a whole snapshot."""
    try:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load does not compare the checksums
        return {} if damaged else torch.load(path, weights_only=True)
    except Exception:  # zipfile, pickle and torch: each has exceptions of its own
        return {}


# ---------------------------------------------------------------- the demonstration


def demonstrate(rank, world_size, folder):
    """On each of several ranks: resume a run of 10 steps in every way; rank 0 prints the table."""
    import train

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: only the parent process reports it
    if not mp.parent_process().is_alive():
        sys.exit(1)  # it was killed while this rank still imported; from now on ranks learn of it
    torch.set_num_threads(1)
    disk = Path(folder, f"node{rank}")
    disk.mkdir()
    here = {"init_method": f"file://{folder}/ranks", "rank": rank, "world_size": world_size}
    with train.process_group(CPU, 60, **here):
        undisturbed = weights_of(disk / "undisturbed")
        kills = itertools.product(range(1, 11), ("before", "after"))
        killed = [weights_of(disk / "-".join(map(str, kill)), kill) for kill in kills]
        far = distance(torch.stack(killed), undisturbed)
        verdict = "ok    " if far == 0 else "FAILED"
        lines = [f"{world_size} ranks, 2 epochs of 5 steps, fp16 on a CPU, dropout"]
        lines += [f"{verdict} killed around each of 10 snapshots, resumed: distance {far:.0e}"]
        for part in PARTS:
            weights = weights_of(disk / part, (7, "after"), without=part)
            lines += [f"       without the {part:22} {distance(weights, undisturbed):.0e}"]
    if rank == 0:
        print(*lines, sep="\n", flush=True)
    if far != 0:
        sys.exit(1)


def weights_of(snapshot, kill=None, without=None):
    """Train; if the run is killed, resume it, without a part of the snapshot -> the weights."""
    with suppress(Killed):
        model, _ = run(snapshot, kill)
    if kill:
        dist.barrier()  # rank 0 may still be writing
        model, _ = run(snapshot, without=without)
    return parameters_to_vector(model.parameters()).detach()


def noise():
    """Random images and labels."""
    random = torch.Generator().manual_seed(0)
    images = torch.rand(IMAGES, 784, generator=random)
    return TensorDataset(images, torch.randint(10, (IMAGES,), generator=random))


def small_net():
    """One hidden layer, with dropout: every rank draws other random numbers in every step."""
    return nn.Sequential(nn.Dropout(0.2), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def distance(weights, others):
    """The largest difference of weights [..., P] and [P], relative to the largest weight."""
    return ((weights - others).abs().max() / others.abs().max()).item()


def main():
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    for world_size in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(demonstrate, (world_size, folder), world_size, daemon=True)  # end with us


if __name__ == "__main__":
    main()

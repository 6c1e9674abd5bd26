"""What must a snapshot hold that is taken in the middle of an epoch? All that the next step needs.

This script trains a small network with dropout on two ranks. It stops the run around each of its
snapshots, one per step, resumes it, and compares the weights with those of an undisturbed run. Then
it leaves out one part of the snapshot at a time, and prints how far off the weights end. Each rank
stands in for a node with its own disk.

    python 05_multinode/resume.py

With --snapshot, and started by torchrun, the script trains until it gets SIGTERM. A scheduler sends
this signal before it takes nodes back (time limit, preemption, a pod that moves). The signal
reaches the ranks in different steps, or reaches only some of them. So the ranks all-reduce a flag
before each step, and all of them save after the same step and exit with code 0. The same command,
started again, resumes with the next step.

    torchrun --standalone --nproc-per-node 2 05_multinode/resume.py --snapshot run.snapshot
    SCRIPT=resume.py sbatch 05_multinode/launch/job.sbatch    (and job_srun.sbatch)

torchrun passes SIGTERM on to its ranks, and kills them after 30 s (--shutdown-timeout).
"""

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group (docs/your_script/backends.md)
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CPU = torch.device("cpu")
STEPS = 10  # of the whole demonstration
EPOCH = 5  # steps of an epoch
IMAGES = 120  # of an epoch
PARTS = ("momentum", "learning rate", "loss scale", "random numbers", "position in the epoch")


class Training:
    """A run that can stop after any step: this rank's model, optimizer, and place in the data.

    snapshot: a file on this node's disk, from which the run resumes if it is there. steps: of the
    whole run. without: one of PARTS, which is then not restored.
    """

    def __init__(self, snapshot, steps=STEPS, without=None):
        torch.manual_seed(0)
        self.snapshot = snapshot
        self.model = small_net()
        self.ddp_model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.schedule = OneCycleLR(self.optimizer, 0.1, total_steps=steps)
        # With such a large scale the scaler skips the first steps, and makes its scale smaller.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        # Everything that changes during the training, by the name that it has in the snapshot.
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.scaler,
        }
        torch.manual_seed(dist.get_rank())
        self.done = self.resume(without)
        self.batches = batches(noise(), self.done, without == "position in the epoch")

    def step(self):
        """One optimizer step in mixed precision."""
        images, labels = next(self.batches)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(self.ddp_model(images), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        # PyTorch warns of a schedule that moves before the first step that is not skipped.
        if self.scaler.get_scale() >= scale:
            self.schedule.step()
        self.done += 1

    def save(self):
        """Collect the random state of every rank (on GPUs that of each GPU, too); rank 0 writes."""
        random = [None] * dist.get_world_size()
        dist.all_gather_object(random, torch.get_rng_state())
        if dist.get_rank() == 0:
            snapshot = {"step": self.done, "random": random}
            for name, part in self.state.items():
                snapshot[name] = part.state_dict()
            # A run can be killed while it writes. The old file is replaced when the new is whole.
            temporary = f"{self.snapshot}.tmp"
            torch.save(snapshot, temporary)
            os.replace(temporary, self.snapshot)

    def resume(self, without):
        """Restore the newest snapshot that any node has -> the number of steps that are done."""
        snapshot = {"step": 0}
        if self.snapshot.exists():
            snapshot = torch.load(self.snapshot)
        steps = [None] * dist.get_world_size()
        dist.all_gather_object(steps, snapshot["step"])
        newest = max(steps)
        if newest == 0:
            return 0
        # The rank with the newest snapshot sends it to all, because nodes need not share a disk.
        box = [snapshot]
        dist.broadcast_object_list(box, src=steps.index(newest))
        snapshot = box[0]
        if without == "momentum":
            snapshot["optimizer"]["state"] = {}  # The learning rate is in its param_groups.
        for name, part in self.state.items():
            if name == "schedule" and without == "learning rate":
                continue
            if name == "scaler" and without == "loss scale":
                continue
            part.load_state_dict(snapshot[name])
        if without != "random numbers":
            torch.set_rng_state(snapshot["random"][dist.get_rank()])
        return snapshot["step"]

    def weights(self):
        return parameters_to_vector(self.model.parameters()).detach()


def batches(train_set, done, from_the_start):
    """Yield this rank's batches, images [B, 784] and labels [B], after so many steps."""
    sampler = DistributedSampler(train_set)
    loader = DataLoader(
        train_set,
        batch_size=IMAGES // EPOCH // dist.get_world_size(),
        sampler=sampler,
        generator=torch.Generator(),  # or each new iterator takes one of the rank's random numbers
    )
    for epoch in itertools.count(done // EPOCH):
        sampler.set_epoch(epoch)
        skip = done % EPOCH if epoch == done // EPOCH else 0
        first = 0 if from_the_start else skip
        yield from itertools.islice(loader, first, first + EPOCH - skip)


def noise():
    """Random images and labels."""
    random = torch.Generator().manual_seed(0)
    images = torch.rand(IMAGES, 784, generator=random)
    return TensorDataset(images, torch.randint(10, (IMAGES,), generator=random))


def small_net():
    """One hidden layer, with dropout: every rank draws other random numbers in every step."""
    return nn.Sequential(nn.Dropout(0.2), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


# ---------------------------------------------------------------- with --snapshot: save in time


def save_in_time(args):
    """On each rank: train to the last step, or until a rank has got SIGTERM, and save."""
    signals = []
    # The handler only notes the signal. The loop below looks at the list before each step.
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    control = dist.new_group(backend="gloo")
    training = Training(args.snapshot, args.steps)
    say(f"resume: {dist.get_world_size()} rank(s), {training.done} of {args.steps} steps done")
    while training.done < args.steps and not any_rank(signals, control):
        training.step()
        time.sleep(args.pause)
    training.save()
    if training.done < args.steps:
        say(f"resume: told to stop, saved after step {training.done}")
    else:
        say(f"resume: done, sum of the weights {training.weights().double().sum().item()!r}")


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def any_rank(signals, control):
    """Has any rank received a signal? The same answer on all of them.

    `control` is a gloo group. Its tensors lie on the CPU, so that no rank waits for its GPU.
    """
    flag = torch.tensor(len(signals))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=control)
    return flag.item() > 0


# ---------------------------------------------------------------- without it: the demonstration


def demonstrate(rank, folder):
    """On each of two ranks: resume a run of 10 steps in every way; rank 0 prints the table."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # After Ctrl-C only the parent process reports it.
    torch.set_num_threads(1)
    disk = Path(folder, f"node{rank}")
    disk.mkdir()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    say("2 ranks, 2 epochs of 5 steps, fp16 on a CPU, dropout")
    undisturbed = weights_of(disk / "undisturbed")
    stopped = []
    for step in range(1, STEPS + 1):
        for when in ("before", "after"):
            stopped.append(weights_of(disk / f"{step}-{when}", (step, when)))
    far = distance(torch.stack(stopped), undisturbed)
    verdict = "ok    " if far == 0 else "FAILED"
    say(f"{verdict} killed around each of 10 snapshots, resumed: distance {far:.0e}")
    for part in PARTS:
        weights = weights_of(disk / part, (7, "after"), without=part)
        say(f"       without the {part:22} {distance(weights, undisturbed):.0e}")
    dist.destroy_process_group()
    if far != 0:
        sys.exit(1)


def weights_of(snapshot, stop=None, without=None):
    """Train; if the run was stopped, resume it, without a part of the snapshot -> the weights."""
    training = train_to(snapshot, stop)
    if stop:
        dist.barrier()  # rank 0 may still be writing
        training = train_to(snapshot, without=without)
    return training.weights()


def train_to(snapshot, stop=None, without=None):
    """Train, with a snapshot after each step -> the training.

    stop: (step, "before" or "after"): stop there, around writing the snapshot of that step.
    """
    training = Training(snapshot, without=without)
    while training.done < STEPS:
        training.step()
        if stop == (training.done, "before"):
            break
        training.save()
        if stop == (training.done, "after"):
            break
    return training


def distance(weights, others):
    """The largest difference of weights [..., P] and [P], relative to the largest weight."""
    return ((weights - others).abs().max() / others.abs().max()).item()


def main():
    args = parse_args()
    if args.snapshot is None:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(demonstrate, (folder,), nprocs=2, daemon=True)  # They end with this process.
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
        save_in_time(args)
        dist.destroy_process_group()


def parse_args():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--snapshot", type=Path, help="file to resume from and to save into, with torchrun")
    add("--steps", type=int, default=1000, help="optimizer steps (1000)")
    add("--pause", type=float, default=0.02, help="seconds that a step waits (0.02)")
    add("--timeout", type=float, default=60, help="seconds that a rank waits for others (60)")
    args = parser.parse_args()
    if ("RANK" in os.environ) != (args.snapshot is not None):
        parser.error("start it with torchrun and --snapshot FILE, or without both")
    if args.snapshot is not None:
        args.snapshot.parent.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    main()

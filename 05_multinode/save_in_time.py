"""Save in time: asked to stop in the middle of an epoch, all ranks save after the same step.

A scheduler that wants nodes back (time limit, preemption, a pod that moves) first sends SIGTERM.
The handler only sets a flag. The signal reaches the ranks in different steps, or only some of them,
so they all-reduce the flag before every step: all see it in the same one, save, and end with exit
code 0. The same line, started again, resumes with the next step.

    torchrun --standalone --nproc-per-node 2 05_multinode/save_in_time.py --snapshot run.snapshot
    SCRIPT=save_in_time.py sbatch 05_multinode/launch/job.sbatch    (and job_srun.sbatch)

torchrun sends SIGTERM on to its ranks, and ends them after 30 s: --shutdown-timeout.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: docs/backends.md says why
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def main():
    import train

    args = parse()
    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))  # nothing else here
    torch.set_num_threads(1)
    with train.process_group(torch.device("cpu"), args.timeout):
        run(args, signals)


def run(args, signals):
    """Train, from the snapshot if there is one, to the last step or until a rank has a signal."""
    import resume

    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, (images, labels) = resume.small_net(), resume.noise().tensors
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = {"model": model, "optimizer": optimizer}
    torch.manual_seed(rank)
    done = resume.resume(args.snapshot, state)
    if rank == 0:
        print(f"save_in_time: {world_size} rank(s), {done} of {args.steps} steps done", flush=True)
    while done < args.steps and not any_rank(signals):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(done))
        own = order[rank::world_size]
        loss = F.cross_entropy(ddp_model(images[own]), labels[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        time.sleep(args.pause)
    resume.save(args.snapshot, state, done)
    if rank == 0 and done < args.steps:
        print(f"save_in_time: told to stop, saved after step {done}")
    elif rank == 0:
        weights = torch.nn.utils.parameters_to_vector(model.parameters())
        print(f"save_in_time: done, sum of the weights {weights.double().sum().item()!r}")


def any_rank(signals):
    """Has any rank received a signal? The same answer on all of them."""
    flag = torch.tensor(len(signals))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() > 0


def parse():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--snapshot", type=Path, required=True, help="file to resume from and to save into")
    add("--steps", type=int, default=1000, help="optimizer steps (default: 1000)")
    add("--pause", type=float, default=0.02, help="seconds that a step waits (default: 0.02)")
    add("--timeout", type=float, default=60, help="seconds a rank waits for others (default: 60)")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun or job_srun.sbatch")
    args.snapshot.parent.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    main()

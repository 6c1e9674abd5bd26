"""Ranks with different numbers of batches: the hang at the end of the data, and ways to avoid it.

The script trains two epochs of a stream in several ways. The way of the second command aborts on
CPUs.

torchrun --standalone --nproc-per-node 2 docs/training/examples/uneven.py
torchrun --standalone --nproc-per-node 2 docs/training/examples/uneven.py --way "join, all_reduce"
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WAYS = ["stop", "repeat", "join", "join, broadcast", "join, throw", "bare", "join, all_reduce"]


class Stream(IterableDataset):
    """A data set that reads files one after the other. It has neither a length nor an index."""

    def __iter__(self):
        samples = torch.randn(1003, 8, generator=torch.Generator().manual_seed(0))
        files = samples.split(17)  # These parts stand for 59 files on a disk.
        rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        info = get_worker_info()  # None without loader workers
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for file in files[rank * workers + worker :: world_size * workers]:
            yield from file


def in_step(loader, repeat, control):
    """Yield equally many batches on all ranks: stop after the first rank that has no batch left.

    With repeat, stop after the last rank; the other ranks begin their data again until then.
    `control` is a gloo group. Its tensors are on the CPU, so that no rank waits for its GPU.
    """
    iterator = iter(loader)
    done = 0
    while True:
        batch = next(iterator, None)
        if batch is None:
            done = 1
            if repeat:
                iterator = iter(loader)
                batch = next(iterator)
        ended = torch.tensor(done)
        dist.all_reduce(ended, dist.ReduceOp.MIN if repeat else dist.ReduceOp.MAX, group=control)
        if ended:
            return
        yield batch


def train(way, device):
    """Train two epochs -> steps, samples, weights early in the second epoch, how it ended."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    group = dist.new_group(timeout=timedelta(seconds=5 if way == "bare" else 300))
    ddp_model = DistributedDataParallel(model, process_group=group)
    control = dist.new_group(backend="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Stream(), batch_size=50, num_workers=2)
    steps = 0
    samples = 0
    weights = None
    ends = "ok"
    for epoch in range(2):
        batches = in_step(loader, way == "repeat", control) if way in ("stop", "repeat") else loader
        join = way.startswith("join")
        throw = way == "join, throw"
        try:
            with Join([ddp_model], enable=join, throw_on_early_termination=throw):
                for number, x in enumerate(batches):
                    loss = (ddp_model(x.to(device)) - 1).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    if throw or way == "join, all_reduce":
                        dist.all_reduce(loss.detach(), group=group)  # for example to print it
                    optimizer.step()
                    steps += 1
                    samples += len(x)
                    if (epoch, number) == (1, 4):
                        weights = nn.utils.parameters_to_vector(model.parameters()).tolist()
        except RuntimeError as error:
            print(f"rank {dist.get_rank()}, {way}: {error}\n", end="")
            ends = "RuntimeError"
            if way == "bare":
                break
        if way == "join, broadcast":
            broadcast_state(optimizer, steps, device)
    return steps, samples, weights, ends


def broadcast_state(optimizer, steps, device):
    """Send the momentum of the rank that trained longest. Join sends only weights and buffers."""
    last = torch.tensor(steps * dist.get_world_size() + dist.get_rank(), device=device)
    dist.all_reduce(last, dist.ReduceOp.MAX)
    for state in optimizer.state.values():
        dist.broadcast(state["momentum_buffer"], int(last) % dist.get_world_size())


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", choices=WAYS, help="run only this way")
    only = parser.parse_args().way
    # It runs on CPUs even if there are GPUs, because NCCL's timeout would end the process.
    device = torch.device("cpu")
    dist.init_process_group("gloo")
    rows = ["way                 steps  samples  weights differ  ends on rank 0, 1, ..."]
    for way in [only] if only else WAYS[:-1]:
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, train(way, device))
        steps, samples, weights, ends = zip(*found)
        differ = (torch.tensor(weights[0]) - torch.tensor(weights[-1])).abs().max()
        differ = "-" if way == "bare" else f"{differ:.0e}"
        rows.append(f"{way:<16} {steps!s:>8} {sum(samples):>8,} {differ:>15}  {', '.join(ends)}")
    if dist.get_rank() == 0:
        print("\n".join(rows))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

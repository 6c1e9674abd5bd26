"""Take the same steps on any number of ranks as in one process, with uneven batches or a stream.

torchrun --standalone --nproc-per-node 3 docs/training/examples/exact_steps.py
"""

import copy
import os
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

ROWS = torch.randn(13, 5, generator=torch.Generator().manual_seed(1))  # equal on all ranks


class Stream(IterableDataset):
    """Yields the same rows in the same order on every rank."""

    def __iter__(self):
        yield from ROWS


def total_loss(model, rows):
    return F.mse_loss(model(rows[:, :4]), rows[:, 4:], reduction="sum")


def batches_of_a_data_set(ddp_model, optimizer):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    order = DistributedSampler(ROWS, num_replicas=1, rank=0)  # the same on all ranks
    for epoch in range(2):
        order.set_epoch(epoch)
        batches = list(BatchSampler(order, 4, drop_last=False))  # 4, 4, 4 and 1 rows
        mine = [batch[rank::world_size] or batch[:1] for batch in batches]
        for batch, rows in zip(batches, DataLoader(ROWS, batch_sampler=mine)):
            factor = world_size / len(batch) if rank < len(batch) else 0  # 0 if it has no row
            optimizer.zero_grad()
            (total_loss(ddp_model, rows) * factor).backward()
            optimizer.step()
            yield ROWS[batch]


def micro_batches_of_a_stream(ddp_model, optimizer):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    loader = iter(DataLoader(Stream(), batch_size=4))  # Every rank reads all rows.
    for step in iter(lambda: list(islice(loader, 2)), []):  # two micro-batches per step
        count = sum(len(rows) for rows in step)
        optimizer.zero_grad()
        for number, rows in enumerate(step, start=1):
            mine = rows[rank::world_size] if rank < len(rows) else rows[:1]
            factor = world_size / count if rank < len(rows) else 0  # 0 if it has no row
            with nullcontext() if number == len(step) else ddp_model.no_sync():
                (total_loss(ddp_model, mine) * factor).backward()
        optimizer.step()
        yield torch.cat(step)


def compare(way):
    """Repeat each step without DDP -> the largest difference of a weight after the last step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    plain = copy.deepcopy(model)
    optimizer, expected = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain))
    for rows in way(DistributedDataParallel(model), optimizer):
        expected.zero_grad()
        (total_loss(plain, rows) / len(rows)).backward()
        expected.step()
    return (model.weight - plain.weight).abs().max().item()


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")
    for way in (batches_of_a_data_set, micro_batches_of_a_stream):
        difference = compare(way)
        if dist.get_rank() == 0:
            same = "equal to one process" if difference < 1e-6 else f"differs by {difference}"
            print(f"{way.__name__}: {same}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

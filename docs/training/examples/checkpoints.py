"""Who writes a checkpoint, who reads it, and what is lost with a different number of ranks.

The script trains 40 steps and saves after 25. It resumes in several ways, and compares the
weights at the end.

torchrun --standalone --nproc-per-node 2 docs/training/examples/checkpoints.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PATH = "checkpoint.pt"
BATCH = 24  # samples per step, of all ranks together
STEPS = 40
SAVED = 25  # steps before the checkpoint
DATA = TensorDataset(torch.randn(BATCH * STEPS, 8, generator=torch.Generator().manual_seed(0)))
WAYS = {
    "all ranks read the file": {"resume": "all"},
    "rank 0 reads and broadcasts": {"resume": "rank 0, broadcast"},
    "rank 0 reads, DDP broadcasts": {"resume": "rank 0"},
    "rank 0 reads after wrapping": {"resume": "rank 0", "wrap_first": True},
    "1 rank resumes": {"resume": "all", "ranks": 1},
    "1 rank resumes, no dropout": {"resume": "all", "ranks": 1, "dropout": 0.0},
}


def save(parts, done, generators):
    """Rank 0 writes under a temporary name, so that a crash does not damage the old file."""
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, generators.get_rng_state())
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state | {"done": done, "random": random}, PATH + ".tmp")
        os.replace(PATH + ".tmp", PATH)
    dist.barrier()  # No rank looks for the file before rank 0 has written it.


def load(parts, readers, generators):
    """Read the file on all ranks, or on rank 0 alone."""
    rank = dist.get_rank()
    state = None
    if readers == "all" or rank == 0:
        state = torch.load(PATH, map_location="cpu")  # Otherwise it goes to the GPU of rank 0.
    if readers == "rank 0, broadcast":
        box = [state]
        dist.broadcast_object_list(box)
        state = box[0]
    if state is not None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        generators.set_rng_state(state["random"][rank])


def train(device, ranks, resume=None, wrap_first=False, dropout=0.5):
    """Train an epoch on some ranks, from its start or from the file -> this rank's weights."""
    rank = dist.get_rank()
    generators = torch.cuda if device.type == "cuda" else torch
    group = dist.new_group(range(ranks))
    if rank >= ranks:
        return []
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(dropout), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if wrap_first:
        ddp_model = DistributedDataParallel(model, process_group=group)
    if resume:
        load(parts, resume, generators)
    if not wrap_first:
        ddp_model = DistributedDataParallel(model, process_group=group)
    done = SAVED if resume else 0
    sampler = DistributedSampler(DATA, num_replicas=ranks, rank=rank)
    rest = list(sampler)[done * BATCH // ranks :]  # This rank has not trained on these yet.
    own = torch.Generator()  # Without this the loader would draw from the dropout's generator.
    for (x,) in DataLoader(DATA, batch_size=BATCH // ranks, sampler=rest, generator=own):
        loss = (ddp_model(x.to(device)) - x[:, :1].to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        done += 1
        if done == SAVED:
            save(parts, done, generators)
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def differ(weights, others):
    largest = (torch.tensor(weights) - torch.tensor(others)).abs().max()
    return "below 1e-06" if 0 < largest < 1e-6 else f"{largest:.0e}"  # Below this it is rounding.


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    world_size = dist.get_world_size()
    rows = ["largest difference of a weight  between ranks  to the undisturbed run"]
    for way, settings in WAYS.items():
        settings = {"ranks": world_size} | settings
        if way in ("all ranks read the file", "1 rank resumes, no dropout"):
            undisturbed = train(device, world_size, dropout=settings.get("dropout", 0.5))
        found = [None] * world_size
        dist.all_gather_object(found, train(device, **settings))
        apart = "-" if settings["ranks"] == 1 else differ(found[0], found[-1])
        rows.append(f"{way:<31} {apart:>13} {differ(found[0], undisturbed):>23}")
    if dist.get_rank() == 0:
        print("\n".join(rows))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""Trains on two ranks with one cost on purpose: torchrun ... one_cost.py KEY [FILE]

The line of a cost ends with its key. COST=0 leaves it out. Most costs sleep, so that other programs
on the machine do not hide them. The weights go to FILE.
"""

import contextlib
import dataclasses
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

KEY = sys.argv[1]
COST = KEY if os.environ.get("COST") != "0" else "none"
WIDE = KEY in ("wide", "exposed", "averaged-twice")  # 4.7 MB of gradients
PASSES = {"each-pass-synced": 4, "two-passes-synced": 2, "no_sync": 4}.get(KEY, 1)
SYNCS_EACH = COST in ("each-pass-synced", "two-passes-synced")
STEPS = 120
EPOCHS = 6 if KEY in ("epoch-pause", "epochs") else 1
SLEEP = 0.05
# memory-16: each step makes and frees eight tensors of 16 MB.
MEGABYTES = int(KEY.removeprefix("memory-")) if KEY.startswith("memory-") else 0
Output = dataclasses.make_dataclass("Output", ["scores", "deep"])
DEEP = torch.zeros((), requires_grad=True)
if KEY == "unused-search":
    for _ in range(100_000):
        DEEP = DEEP + 0  # a graph that DDP searches, and backward() does not need


class Data(TensorDataset):
    def __getitems__(self, indices):
        if COST == "slow-data":
            time.sleep(SLEEP)  # slow-data
        return [self[i] for i in indices]


class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02 * self.training)
        return Output(super().forward(x)[:, :2], DEEP)


class Slow:
    def __reduce__(self):
        time.sleep(SLEEP)  # saving-share
        return int, ()


def late(_, bucket):
    """DDP's average on a network with a latency of 50 ms."""

    def average(future):
        time.sleep(SLEEP)
        return future.value()[0] / 2

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(average)


def slow_start(worker):
    time.sleep(10 * SLEEP)


def loader_of(dataset):
    if KEY != "epoch-pause":
        return DataLoader(dataset, batch_size=4)
    keeps = COST != "epoch-pause"
    workers = {"num_workers": 1, "persistent_workers": keeps, "worker_init_fn": slow_start}
    return DataLoader(dataset, batch_size=4, **workers)


def main():
    dist.init_process_group("cpu:gloo,cuda:gloo")
    rank = dist.get_rank()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    count = 4 * STEPS // EPOCHS
    dataset = Data(torch.randn(count, 8), torch.arange(count) % 2)
    model = Model(8, 2**17 if WIDE else 2).to(device)
    unused = COST == "unused-search"
    ddp = model if KEY == "by-hand" else DDP(model, find_unused_parameters=unused)  # unused-search
    if COST in ("exposed", "small-batch") or KEY in ("each-pass-synced", "two-passes-synced"):
        ddp.register_comm_hook(None, late)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    large = torch.zeros(2**23)
    averaged = []
    if KEY == "by-hand":
        averaged = list(model.parameters())
    if COST == "averaged-twice":
        averaged = list(model.parameters()) * 4
    loader = loader_of(dataset)
    step = -1
    for _ in range(EPOCHS):
        for x, y in loader:  # epoch-pause
            step += 1
            if step == 5:  # the steps before warm up
                begun = time.perf_counter()
            if COST == "straggler" and rank == 1:
                time.sleep(SLEEP)  # straggler
            optimizer.zero_grad()
            for number in range(PASSES):
                synced = number == PASSES - 1 or SYNCS_EACH
                with contextlib.nullcontext() if synced else ddp.no_sync():
                    loss = F.cross_entropy(ddp(x.to(device)).scores, y.to(device))
                    loss.backward()  # exposed small-batch each-pass-synced two-passes-synced
            for parameter in averaged:
                dist.all_reduce(parameter.grad)  # averaged-twice
            optimizer.step()
            if COST == "own-collectives-per-step":
                dist.all_reduce(large)  # own-collectives-per-step
            if MEGABYTES:
                for _ in range(8):
                    torch.zeros(MEGABYTES * 2**18)
            if COST == "own-code":
                time.sleep(SLEEP)  # own-code
            if COST == "saving-share":
                torch.save(Slow(), f"slow{rank}.pt")
            if step % 40 == 39:
                evaluate(ddp, rank)
    if rank == 0:
        seconds = (time.perf_counter() - begun) / (STEPS - 5)
        print(f"{1000 * seconds:.2f} ms per step", flush=True)
        if len(sys.argv) > 2:
            torch.save(model.state_dict(), sys.argv[2])
    del ddp
    dist.destroy_process_group()


def evaluate(ddp, rank):
    ddp.eval()
    if COST == "evaluation-share" or COST == "rank-0-works-alone" and rank == 0:
        time.sleep(40 * SLEEP)  # evaluation-share rank-0-works-alone
    dist.barrier()
    ddp.train()


if __name__ == "__main__":
    main()

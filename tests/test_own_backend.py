"""05_multinode/own_backend.py: DDP over the ring of sockets trains what it trains over gloo."""

import importlib
import os
import time
from datetime import timedelta

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import NEEDS_HOSTS, NET, TEST_IMAGES, record_of, usage_error
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common

own = importlib.import_module("05_multinode.own_backend")
SCRIPT = "05_multinode/own_backend.py"
TORCHRUN = "torchrun --standalone --nproc-per-node"
MODEL_BYTES = 2 * 116_136  # in float64


def join(backend, rank, world_size, folder, seconds=60):
    store = dist.FileStore(f"{folder}/{backend} {world_size} {seconds}", world_size)
    group = {"store": store, "rank": rank, "world_size": world_size}
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **group)


# ---------------------------------------------------------------- equal to gloo


def train(steps):
    """On a rank -> weights after each step, [steps, L], and the bytes all ranks sent in the last.

    Only the last step is counted: DDP also broadcasts weights, compares shapes, and orders its
    buckets, once.
    """
    rank, world_size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    torch.manual_seed(rank)  # ranks begin with different weights: rank 0's must reach all
    model = own.stage4.make_model().to(dtype=torch.float64, memory_format=torch.channels_last)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    weights = []
    for step in range(steps):
        x, y = own.stage4.to_device(*common.batches(1, 24, seed=step)[0], common.CPU)
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp_model(x[rank::world_size].double()), y[rank::world_size])
        before = getattr(group, "sent", 0)
        loss.backward()
        sent = torch.tensor(getattr(group, "sent", 0) - before)
        optimizer.step()
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    dist.all_reduce(sent)
    return torch.stack(weights), sent.item()


def on_both(rank, folder):
    """One of four processes: train over gloo and over the ring, on 2, 3 and 4 of them."""
    torch.set_num_threads(1)
    found = {}
    for world_size in range(max(2, rank + 1), 5):
        for backend in ("gloo", "ring"):
            join(backend, rank, world_size, folder)
            found[f"{backend} {world_size}"] = train(8)
            if backend == "ring":
                with pytest.raises(RuntimeError, match="this ring can only add up"):
                    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
            dist.destroy_process_group()
    torch.save(found, f"{folder}/{rank}.pt")


def test_ddp_trains_over_it_as_over_gloo(tmp_path):
    """On 2 ranks bit for bit; more add up in another order, which float64 shows is all."""
    ranks.start(4, on_both, str(tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(4)]
    for world_size, most in ((2, 0), (3, 1e-13), (4, 1e-13)):
        ours, theirs = (found[0][f"{backend} {world_size}"][0] for backend in ("ring", "gloo"))
        for weights, sent in (rank[f"ring {world_size}"] for rank in found[:world_size]):
            assert torch.equal(weights, ours), "equal on all ranks"
            assert sent == 2 * (world_size - 1) * MODEL_BYTES
        assert (ours - theirs).abs().max() <= most
        assert (ours[-1] - ours[0]).abs().max() > 1e-3, "it has trained"


@pytest.mark.slow
def test_stage_4_trains_over_it(reader):
    flags = "-e 1 -b 48 --lr 0.05 --device cpu --checkpoint"
    ours = reader.run(f"{TORCHRUN} 2 {SCRIPT} {flags} ring.pt --record ring.jsonl")
    theirs = reader.run(f"{TORCHRUN} 2 04_ddp_torchrun/train.py {flags} gloo.pt")
    assert ours.code == theirs.code == 0, ours
    assert "rank 1 has sent" in ours.out
    weights = (torch.load(reader.folder / f"{name}.pt")["model"] for name in ("ring", "gloo"))
    assert all(torch.equal(a, b) for a, b in zip(*(model.values() for model in weights)))
    record = record_of(reader.folder, "ring.jsonl")
    assert record["backend"] == "ring" and record["history"][0]["test"][1] == TEST_IMAGES


@pytest.mark.slow
@NEEDS_HOSTS
def test_nodes_are_connected_by_their_addresses(reader):
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
    train = f"{torchrun} --rdzv-endpoint host0:29500 {SCRIPT} -e 1"
    result = reader.run(f"python 05_multinode/rehearsal/hosts.py --net {NET} with 2 -- {train}")
    assert result.code == 0 and "04_ddp_torchrun: 2 rank(s)" in result.out, result


# ---------------------------------------------------------------- when a neighbour fails


def outcome(collective):
    """-> the first line of what it raised, and after how many seconds."""
    started = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        collective()
    return str(raised.value).splitlines()[0], time.monotonic() - started


def fail(rank, folder):
    """One of three processes: rank 2 hangs for longer than the timeout, then it dies."""
    torch.set_num_threads(1)
    join("ring", rank, 3, folder, seconds=3)
    found = []
    if rank == 2:
        time.sleep(6)
    else:
        promise = dist.all_reduce(torch.ones(5), async_op=True)
        assert not promise.get_future().done(), "the call returns, a thread does the work"
        found.append(outcome(promise.wait))
    dist.destroy_process_group()
    join("ring", rank, 3, folder, seconds=60)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    if rank == 2:
        os._exit(0)
    found.append(outcome(loss.backward))
    dist.destroy_process_group()
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.mark.slow
def test_a_neighbour_that_hangs_or_dies_is_an_error(tmp_path):
    ranks.start(3, fail, str(tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for (hung, after), (died, at_once) in found:
        assert after > 2 and at_once < 30, "after the timeout of 3 s; before that of 60 s"
        assert hung.endswith(("timed out", "rank 0 has ended")) and died.endswith("has ended")
    assert found[0][0][0].endswith("timed out") and found[0][1][0].endswith("rank 2 has ended")


# ---------------------------------------------------------------- what it refuses


def test_bad_input(called, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    usage_error(called(SCRIPT), "start it with torchrun, as --help shows")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "7")
    usage_error(called(SCRIPT), "240 is not divisible by 7 ranks")

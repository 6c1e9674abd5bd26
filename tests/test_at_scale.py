"""benchmarks/at_scale.py: what it counts for a rank is what real ranks read, send and hold."""

import re
from argparse import Namespace

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks import at_scale


def of_real_ranks(name):
    """On a rank -> bytes of DDP's buckets, and of weights, gradients, Adam's state: DDP, FSDP."""
    make, (channels, *_), _ = at_scale.MODELS[name]
    x = torch.rand(2, channels, *((28, 28) if name == "convnet" else (64, 64)))
    found = []
    for way in ("DDP", "FSDP"):
        model = make()
        if way == "FSDP":
            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        trained = DistributedDataParallel(model) if way == "DDP" else model
        adam = torch.optim.Adam(model.parameters())
        for _ in range(4 if way == "DDP" else 1):  # DDP reports buckets after some steps
            adam.zero_grad()
            trained(x).sum().backward()
            adam.step()
        if way == "DDP":
            sizes = trained._get_ddp_logging_data()["rebuilt_bucket_sizes"]
            found.append([int(size) for size in sizes.split(", ")])
        weights = list(model.parameters())
        state = [tensor for of_one in adam.state.values() for tensor in of_one.values()]
        kinds = weights, [weight.grad for weight in weights], state
        found.append([sum(local(tensor).nbytes for tensor in tensors) for tensors in kinds])
    return found


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [("convnet", 4), ("resnet50", 2)])
def test_what_is_counted_is_that_of_real_ranks(name, ranks):
    shapes, buckets = at_scale.count(name)
    for rank, (real_buckets, ddp, fsdp) in enumerate(on_ranks(ranks, of_real_ranks, name)):
        assert real_buckets == buckets
        assert tuple(ddp) == at_scale.held(shapes)
        assert tuple(fsdp) == at_scale.held([at_scale.shard(s, rank, ranks) for s in shapes])


def test_a_rank_reads_what_the_sampler_of_the_stages_gives_it():
    first = list(DistributedSampler(range(60_000), 7, 3, seed=0))[:5]
    line = at_scale.reads(Namespace(rank=3, ranks=7, batch=21, model="convnet"))
    assert f"images {str(first)[1:-1]}, ...: 3 per step, 2,858 steps per epoch; 4 images" in line


def test_the_largest_models_on_the_page():
    """80 GB over the bytes per parameter, counted for 1,024 of them."""
    page = (ROOT / "docs/speed/at_scale.md").read_text()
    whole = [size / 1024 for size in at_scale.held([[1024]])]
    for way, sharded in {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {way}")]
        for ranks, figure in zip((64, 1024), row.split("|")[3:5]):
            parts = [size / ranks if i >= 3 - sharded else size for i, size in enumerate(whole)]
            assert float(figure.replace(",", "")) == pytest.approx(80 / sum(parts), rel=0.006)


def test_what_communication_costs_on_the_page():
    """The formula of docs/speed/eight_gpus.md, for 335 million parameters and 100 ms."""
    page = (ROOT / "docs/speed/eight_gpus.md").read_text()
    size, backward = 4 * 335e6, 0.1
    after_the_first_bucket = backward * (1 - 2**20 / size)
    costs = {}
    for line in re.findall(r"^\| .* GB/s \| \d+ ms \| .*", page, re.MULTILINE):
        algbw, milliseconds = re.search(r"\| (\d+) GB/s \| (\d+) ms", line).groups()
        total = size / (float(algbw) * 1e9)
        last = 25 * 2**20 / (float(algbw) * 1e9)
        costs[algbw] = 1000 * max(last, total - after_the_first_bucket)
        assert f"{1000 * total:.0f}" == milliseconds
    assert f"{costs['170']:.1f}" == "0.2" and "0.2 ms" in page
    assert f"{costs['5']:.0f}" == "168" and "168 ms" in page

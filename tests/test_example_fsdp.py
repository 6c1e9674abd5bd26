"""docs/examples/fsdp.py: DDP's weights from half the memory; checkpoints for any rank count."""

import importlib.util
import re

import pytest
import torch
from conftest import ROOT, Reader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "docs/examples/fsdp.py"
COUNT = """
import runpy, sys
import torch, torch.distributed as dist, torch.nn as nn
import torch.distributed.nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.profiler import profile

def collectives(work):
    with profile() as record:
        work()
    names = "_allgather_base_", "_reduce_scatter_base_", "allreduce_", "broadcast_"
    found = {event.key: event.count for event in record.key_averages()}
    return [found.get(f"c10d::{name}", 0) for name in names]

def main(layer_by_layer, **options):
    torch.manual_seed(dist.get_rank())
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    own = [parameter.detach().clone() for parameter in model.parameters()]

    def wrap():
        for layer in model if layer_by_layer else []:
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(model, mesh=mesh)

    wrapping = collectives(wrap)
    rows = [parameter.chunk(2)[dist.get_rank()] for parameter in own]
    kept = all(torch.equal(p.to_local(), row) for p, row in zip(model.parameters(), rows))
    step = lambda: model(torch.rand(2, 8)).sum().backward()
    step()
    if dist.get_rank() == 1:
        step = collectives(step)
        print(wrapping, kept, step)
    else:
        step()

def clip():
    layer = fully_shard(nn.Linear(8, 8))
    layer(torch.rand(2, 8)).sum().backward()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 1e6).full_tensor()
    whole = torch.cat([p.grad.full_tensor().flatten() for p in layer.parameters()]).norm()
    if dist.get_rank() == 1:
        print("norm", torch.allclose(norm, whole))

def optimizer_too_early():
    layer = nn.Linear(8, 8)
    adam = torch.optim.Adam(layer.parameters())
    fully_shard(layer)
    before = layer.weight.to_local().clone()
    layer(torch.rand(2, 8)).sum().backward()
    adam.step()
    if dist.get_rank() == 1:
        print("unchanged", torch.equal(layer.weight.to_local(), before))

def units():
    model, _ = runpy.run_path(sys.argv[1])["sharded"]("cpu")
    if dist.get_rank() == 1:
        print("units", sum(isinstance(module, FSDPModule) for module in model.modules()))

dist.init_process_group("gloo")
main(True)
main(False)
main(True, reshard_after_forward=False)
clip()
optimizer_too_early()
units()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory, small_data):
    """A reader's folder with a checkpoint of two ranks in it, and what they printed."""
    reader = Reader(tmp_path_factory.mktemp("fsdp"), small_data)
    return reader, run(reader, 2, "--save checkpoints/fsdp")


def script():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("fsdp", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(reader, ranks, flags):
    command = f"torchrun --standalone --nproc-per-node {ranks} {SCRIPT} {flags}"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return result.out


def sizes(out):
    """{row: KiB of parameters, gradients, optimizer state}"""
    rows = re.findall(r"^((?:DDP|FSDP), .*?)((?: +[\d,]+\.\d){3})$", out, re.MULTILINE)
    return {name.strip(): [float(n.replace(",", "")) for n in row.split()] for name, row in rows}


def distance(out, of):
    return float(re.search(rf"([\d.e+-]+) from {of}", out)[1])


def test_two_ranks_train_the_weights_of_ddp(saved):
    _, out = saved
    assert distance(out, "DDP") < 1e-6


def test_a_rank_of_two_holds_half(saved):
    _, out = saved
    whole = sum(numbers * 4 for numbers in (100 * 400, 400, 400 * 400, 400, 400 * 10, 10)) / 1024
    found = sizes(out)
    assert found["DDP, each rank"] == pytest.approx([whole, whole, 2 * whole], abs=0.1)
    for rank in range(2):
        assert found[f"FSDP, rank {rank}"] == pytest.approx([whole / 2, whole / 2, whole], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_loads_weights_and_optimizer(saved, ranks):
    out = run(saved[0], ranks, "--load checkpoints/fsdp")
    assert f"loaded, world size {ranks}" in out and distance(out, "model.pt") == 0
    assert distance(out, "DDP") < 1e-5, "ten more steps need Adam's state"
    found = sizes(out)
    shards = [found[f"FSDP, rank {rank}"] for rank in range(ranks)]
    total = [sum(parts) for parts in zip(*shards)]
    assert total == pytest.approx(found["DDP, each rank"], abs=0.3)
    assert max(shards)[0] < 1.05 * found["DDP, each rank"][0] / ranks


def test_a_single_process_loads_what_was_exported(saved, tmp_path):
    folder = saved[0].folder / "checkpoints/fsdp"
    weights = torch.load(folder / "model.pt", weights_only=True)
    script().network("cpu").load_state_dict(weights)
    assert all(type(tensor) is torch.Tensor for tensor in weights.values())
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    converted = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    assert weights.keys() == converted.keys()
    assert all(torch.equal(weights[name], converted[name]) for name in weights)


def test_what_fully_shard_sends_and_what_it_needs(reader):
    """Collectives of wrapping and of a step: [all-gather, reduce-scatter, all-reduce, broadcast]"""
    (reader.folder / "count.py").write_text(COUNT)
    command = f"torchrun --standalone --nproc-per-node 2 count.py {SCRIPT}"
    result = reader.run(command, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    layers, root_only, gathered_once, *others = result.out.splitlines()
    assert layers == "[0, 0, 0, 0] True [10, 5, 0, 0]", "twice per layer; nothing at the start"
    assert root_only == "[0, 0, 0, 0] True [1, 1, 0, 0]", "the whole model at once"
    assert gathered_once == "[0, 0, 0, 0] True [5, 5, 0, 0]"
    assert others == ["norm True", "unchanged True", "units 4"], "3 layers and the root"

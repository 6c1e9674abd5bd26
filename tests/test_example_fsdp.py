"""docs/training/fsdp.md beyond what its scripts print: test_docs.py runs and compares that."""

import importlib
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import on_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.profiler import profile

pytestmark = pytest.mark.slow
SCRIPT = "docs/training/examples/fsdp.py"


def run(reader, ranks, flags):
    """-> the largest difference of a weight to DDP's after 20 steps"""
    command = f"torchrun --standalone --nproc-per-node {ranks} {SCRIPT} {flags}"
    result = reader.run(command, timeout=170)
    assert result.code == 0, result
    return float(re.search(r"step 20: (\S+) from DDP", result.out)[1])


def test_a_checkpoint_loads_on_one_and_three_ranks_and_in_a_single_process(reader, tmp_path):
    run(reader, 2, "--save checkpoints/fsdp")
    for ranks in (1, 3):  # ten more steps need Adam's state, too
        assert run(reader, ranks, "--load checkpoints/fsdp") < 1e-5
    folder = reader.folder / "checkpoints/fsdp"
    weights = torch.load(folder / "model.pt", weights_only=True)
    importlib.import_module("docs.training.examples.fsdp").network("cpu").load_state_dict(weights)
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    converted = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    assert all(torch.equal(tensor, converted[name]) for name, tensor in weights.items())


# ---------------------------------------------------------------- what fully_shard does


def collectives(work):
    """-> how many [all-gathers, reduce-scatters, all-reduces, broadcasts] it calls"""
    with profile() as record:
        work()
    names = "_allgather_base_", "_reduce_scatter_base_", "allreduce_", "broadcast_"
    found = {event.key: event.count for event in record.key_averages()}
    return [found.get(f"c10d::{name}", 0) for name in names]


def wrapped_and_stepped(layer_by_layer, **options):
    """Five layers -> collectives of wrapping and of a step; has each rank its own rows still?"""
    torch.manual_seed(dist.get_rank())
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    own = [parameter.detach().chunk(2)[dist.get_rank()].clone() for parameter in model.parameters()]

    def wrap():
        for layer in model if layer_by_layer else []:
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(model, mesh=mesh)

    def step():
        model(torch.rand(2, 8)).sum().backward()

    wrapping = collectives(wrap)
    kept = all(torch.equal(p.to_local(), rows) for p, rows in zip(model.parameters(), own))
    step()
    return wrapping, kept, collectives(step)


def wrapped_in_other_ways():
    """-> is the clipped norm that of all shards? does an optimizer made too early train? units"""
    layer = nn.Linear(8, 8)
    too_early = torch.optim.Adam(layer.parameters())
    fully_shard(layer)
    before = layer.weight.to_local().clone()
    layer(torch.rand(2, 8)).sum().backward()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 1e6).full_tensor()
    whole = torch.cat([p.grad.full_tensor().flatten() for p in layer.parameters()]).norm()
    too_early.step()
    trains = not torch.equal(layer.weight.to_local(), before)
    model, _ = importlib.import_module("docs.training.examples.fsdp").sharded("cpu")
    units = sum(isinstance(module, FSDPModule) for module in model.modules())
    return torch.allclose(norm, whole), trains, units


def pairs_of_layers():
    """Four layers, of which fully_shard gets lists of two -> collectives of a step"""
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    for modules in (list(layers)[:2], list(layers)[2:], layers):
        fully_shard(modules, mesh=init_device_mesh("cpu", (2,)))
    return collectives(lambda: layers(torch.rand(2, 8)).sum().backward())


def all_ways():
    found = [wrapped_and_stepped(True), wrapped_and_stepped(False)]
    found.append(wrapped_and_stepped(True, reshard_after_forward=False))
    return found, (*wrapped_in_other_ways(), pairs_of_layers())


def test_what_fully_shard_sends_and_what_it_needs():
    for (layers, root_only, gathered_once), others in on_ranks(2, all_ways):
        nothing = [0, 0, 0, 0], True
        assert layers == (*nothing, [10, 5, 0, 0]), "twice per layer; nothing at the start"
        assert root_only == (*nothing, [1, 1, 0, 0]), "the whole model at once"
        assert gathered_once == (*nothing, [5, 5, 0, 0])
        assert others == (True, False, 4, [4, 2, 0, 0]), "3 layers and the root; two pairs"


def skipped_by_one_infinity():
    """Put an infinite gradient into rank 1's shard only -> does a rank step? the scale after it"""
    layer = nn.Linear(8, 8)
    fully_shard(layer)
    optimizer, scaler = torch.optim.SGD(layer.parameters()), torch.amp.GradScaler("cpu")
    before, scale = layer.weight.to_local().clone(), scaler.get_scale()
    scaler.scale(layer(torch.rand(2, 8)).sum()).backward()
    if dist.get_rank() == 1:
        layer.weight.grad.to_local()[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    return not torch.equal(layer.weight.to_local(), before), scaler.get_scale() / scale


def test_all_ranks_skip_the_step_if_one_shard_has_an_infinite_gradient():
    assert on_ranks(2, skipped_by_one_infinity) == [(False, 0.5)] * 2

"""Facts on docs/reference/questions.md and its neighbours that no block or message on them
shows."""

import argparse

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import WeightedRandomSampler


def object_collective():
    """-> the error of a rank that sends what weights_only=True does not accept"""
    gathered = [None, None]
    dist.all_gather_object(gathered, {"epoch": 1}, weights_only=True)
    assert gathered == [{"epoch": 1}] * 2
    try:
        dist.all_gather_object(gathered, argparse.Namespace(epoch=1), weights_only=True)
    except Exception as error:
        return str(error)


def names_in_a_profile():
    with torch.profiler.profile() as profiler, dist.record_comm("counts"):
        dist.all_reduce(torch.ones(1))
    return [row.key for row in profiler.key_averages()]


def gradient(keep):
    model = nn.Linear(1, 1, bias=False)
    wrapped = [DistributedDataParallel(model)]
    output = (wrapped[0] if keep else wrapped.pop())(torch.ones(1, 1) * dist.get_rank())
    output.sum().backward()
    return model.weight.grad.item()


def weighted_draws():
    torch.manual_seed(0)
    own = list(WeightedRandomSampler(torch.ones(100), 100))
    generator = torch.Generator().manual_seed(0)
    both = torch.multinomial(torch.ones(100), 100, True, generator=generator)
    return own, both.tolist()[dist.get_rank() :: 2], both.tolist()


def experiments():
    found = object_collective(), names_in_a_profile(), gradient(True), gradient(False)
    return *found, weighted_draws()


@pytest.mark.slow
def test_what_two_ranks_do():
    for rank, (error, names, kept, freed, (own, strided, both)) in enumerate(
        on_ranks(2, experiments)
    ):
        assert "Weights only load failed" in error
        assert "counts" in names
        assert kept == 0.5 and freed == rank, "a wrapper that was freed averages nothing"
        assert len(own) == 100 and own == both, "every rank draws an epoch, the same one"
        assert len(strided) == 50 and strided == both[rank::2]


GROUPS = """
import sys, torch, torch.distributed as dist, os
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=15))
rank, pairs = dist.get_rank(), ([0, 1], [2, 3])
groups = [dist.new_group(p) for p in pairs if rank in p or sys.argv[1] == "all"]
group = groups[rank // 2 if sys.argv[1] == "all" else 0]
number = torch.tensor(rank)
dist.all_reduce(number, group=group)
print(f"{rank}:{number.item()}", flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["all", "own"])
def test_every_rank_makes_every_group(reader, who):
    (reader.folder / "groups.py").write_text(GROUPS)
    result = reader.run(f"torchrun --standalone --nproc-per-node 4 groups.py {who}")
    sums = sorted(line for line in result.out.splitlines() if line[1:2] == ":")
    assert (sums == ["0:1", "1:1", "2:5", "3:5"]) == (who == "all"), result


def zero(rank, model):
    with torch.no_grad():
        model.weight.zero_()


@pytest.mark.slow
def test_what_spawn_gives_back():
    """None; and a CPU tensor among the arguments is shared."""
    model = nn.Linear(2, 2)
    assert mp.spawn(zero, (model,)) is None and not model.weight.any()


def test_a_loaded_optimizer_has_the_saved_rate():
    saved, other = (torch.optim.SGD([torch.ones(1)], lr) for lr in (0.1, 0.5))
    other.load_state_dict(saved.state_dict())
    assert other.param_groups[0]["lr"] == 0.1


def test_the_names_of_nccls_groups():
    for name in ("nccl2", "nccl-legacy"):
        dist.Backend._ensure_backend_registered(name)
        assert name.upper() in dist.Backend._plugins

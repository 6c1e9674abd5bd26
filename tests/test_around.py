"""The statements of is_it_ddp.md, around_the_ranks.md and host.md that no block on them runs."""

import inspect
import os
import threading
import time

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from conftest import LINUX, free_port
from ranks import on_ranks
from torch.distributed import run
from torch.distributed.distributed_c10d import _get_default_timeout
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from torch.distributed.launcher.api import LaunchConfig
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# ---------------------------------------------------------------- is it DDP at all?


class Unused(nn.Module):
    """A model with a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def two_steps_with_an_unused_layer():
    ddp_model = DistributedDataParallel(Unused())
    try:
        for _ in range(2):
            ddp_model(torch.rand(1, 2)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_one_rank_has_the_error_about_unused_parameters_too():
    (found,) = on_ranks(1, two_steps_with_an_unused_layer)
    assert found.startswith("Expected to have finished reduction in the prior iteration")


def test_what_the_cpu_says_where_a_gpu_has_a_device_side_assert():
    with pytest.raises(IndexError, match="Target 10 is out of bounds"):
        F.cross_entropy(torch.randn(3, 10), torch.tensor([1, 2, 10]))
    with pytest.raises(IndexError, match="index out of range in self"):
        nn.Embedding(10, 4)(torch.tensor([10]))


def test_the_mean_of_no_sample_is_nan():
    assert F.cross_entropy(torch.randn(0, 10), torch.zeros(0, dtype=torch.long)).isnan()
    assert F.cross_entropy(torch.randn(3, 10), torch.full((3,), -100)).isnan()


def test_batchnorm_and_a_batch_of_one():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        nn.BatchNorm1d(8)(torch.randn(1, 8))
    nn.BatchNorm2d(8)(torch.randn(1, 8, 4, 4))
    nn.BatchNorm1d(8).eval()(torch.randn(1, 8))


def test_which_cards_the_builds_have_kernels_for():
    """V100 (7.0) and P100 (6.0) are in the build for CUDA 12.6 only."""
    builds = torch.cuda.PYTORCH_RELEASES_CODE_CC
    have_them = {cuda for cuda, build in builds.items() if {60, 70} <= build["x86_64"]}
    assert have_them == {"12.6"}
    assert all(min(builds[cuda]["x86_64"]) == 75 for cuda in set(builds) - have_them)


# ---------------------------------------------------------------- around the ranks

TELL = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
numbers = {name: int(os.environ[name]) for name in names if name in os.environ}
print(json.dumps([numbers, sys.path[0]]))
"""


def test_torchrun_takes_its_flags_from_pet_variables(monkeypatch):
    values = {"NNODES": "2", "NPROC_PER_NODE": "4", "NODE_RANK": "1", "MASTER_ADDR": "pod-0"}
    for name, value in values.items():
        monkeypatch.setenv(f"PET_{name}", value)
    args = run.parse_args(["script.py"])
    assert [args.nnodes, args.nproc_per_node, args.node_rank] == ["2", "4", 1]
    assert args.master_addr == "pod-0"
    assert run.parse_args(["--nnodes", "3", "script.py"]).nnodes == "3"


@pytest.mark.slow
def test_the_search_path_is_the_scripts_folder_or_with_m_the_current_one(reader):
    package = reader.folder / "package"
    package.mkdir()
    (package / "tell.py").write_text(TELL)
    for launcher in ("python", "torchrun --standalone --nproc-per-node 1"):
        assert str(package) in reader.run(f"{launcher} package/tell.py").out
        as_module = reader.run(f"{launcher} -m package.tell").out
        assert str(reader.folder) in as_module and str(package) not in as_module


@pytest.mark.slow
def test_torchrun_overwrites_the_numbers_of_a_pod(reader):
    (reader.folder / "tell.py").write_text(TELL)
    pod = {"RANK": "1", "WORLD_SIZE": "2", "PET_NPROC_PER_NODE": "2"}
    result = reader.run("torchrun --standalone tell.py", **pod)
    assert result.out.count('"WORLD_SIZE": 2') == 2 and '"RANK": 0' in result.out, result


@pytest.mark.slow
def test_nodes_may_have_different_numbers_of_ranks(reader):
    (reader.folder / "tell.py").write_text(TELL)
    meet = f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()} --rdzv-id 1"
    started = [reader.start(f"torchrun {meet} --nproc-per-node {n} tell.py") for n in (1, 2)]
    result = reader.finish_all(started)
    assert result.code == 0, result
    assert result.out.count('"WORLD_SIZE": 3') == 3
    assert result.out.count('"LOCAL_WORLD_SIZE": 2') == 2


MEET_TWICE = """
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def of_one_node(run_id):
    parameters = RendezvousParameters("c10d", "store", run_id, 1, 1, store_type="file")
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


open("store", "w").close()
first = of_one_node("job")
print("first:", first.next_rendezvous().world_size)
first.shutdown()
try:
    of_one_node("job").next_rendezvous()
except RendezvousClosedError as error:
    print("the same id:", repr(error))
other = of_one_node("another job")
print("another id:", other.next_rendezvous().world_size)
other.shutdown()
"""


@pytest.mark.slow
def test_a_run_id_cannot_be_used_again_while_its_store_is_there(reader):
    (reader.folder / "meet.py").write_text(MEET_TWICE)
    result = reader.run("python meet.py")
    assert result.out == "first: 1\nthe same id: RendezvousClosedError()\nanother id: 1\n", result


def test_the_limits_of_a_rendezvous():
    limits = RendezvousTimeout()
    assert limits.join.total_seconds() == 600
    assert limits.last_call.total_seconds() == 30
    source = inspect.getsource(c10d_rendezvous_backend)
    assert 'params.get_as_int("read_timeout", 60)' in source
    assert LaunchConfig(1, 1, 1).rdzv_configs["timeout"] == 900
    assert inspect.signature(LocalElasticAgent).parameters["exit_barrier_timeout"].default == 300
    assert _get_default_timeout("gloo").total_seconds() == 1800
    assert _get_default_timeout("nccl").total_seconds() == 600


WAIT = """
import datetime
import torch.distributed as dist
limit = datetime.timedelta(seconds=1)
dist.TCPStore("127.0.0.1", {port}, 2, is_master=True, timeout=limit)
"""


@pytest.mark.slow
def test_waiting_for_clients_counts_one_second_more_than_the_limit(reader):
    (reader.folder / "wait.py").write_text(WAIT.format(port=free_port()))
    result = reader.run("python wait.py")
    assert "Timed out after 2 seconds waiting for clients. 1/2 clients joined" in result.err


@pytest.mark.slow
def test_an_unknown_name_is_reported_as_one_without_an_ipv6_address(reader):
    code = "import datetime, torch.distributed as dist\n"
    code += "dist.TCPStore('no-such-host', 29500, 2, timeout=datetime.timedelta(seconds=2))\n"
    (reader.folder / "join.py").write_text(code)
    result = reader.run("python join.py")
    assert "The IPv6 network addresses of (no-such-host, 29500) cannot be retrieved" in result.err
    assert "IPv4 network addresses" not in result.err
    assert "The client socket has timed out after 2000ms" in result.err


# ---------------------------------------------------------------- the host


class SharedEpoch(Dataset):
    """A data set whose epoch lies in memory that the workers share."""

    def __init__(self):
        self.epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, self.epoch.item()


def test_what_reaches_a_persistent_worker():
    data = SharedEpoch()
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, num_workers=2, persistent_workers=True, sampler=sampler)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        data.epoch[0] = epoch
        samples = list(loader)
        assert {known.item() for _, known in samples} == {epoch}
        orders.append([index.item() for index, _ in samples])
    assert orders[0] != orders[1]


class Locked(Dataset):
    """Each sample needs a lock."""

    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with self.lock:
            return index


@LINUX
def test_a_lock_that_was_held_at_the_fork_stays_locked_in_the_worker():
    data = Locked()
    loader = DataLoader(data, num_workers=1, timeout=3, multiprocessing_context="fork")
    with data.lock:
        batches = iter(loader)
    time.sleep(0.1)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 3 seconds"):
        next(batches)


@LINUX
def test_each_kept_tensor_of_a_worker_is_an_open_file():
    data = torch.utils.data.TensorDataset(torch.rand(32, 3), torch.rand(32))
    kept = list(DataLoader(data, batch_size=4, num_workers=1))
    before = len(os.listdir("/proc/self/fd"))
    kept = [[tensor.clone() for tensor in batch] for batch in kept]
    assert before - len(os.listdir("/proc/self/fd")) >= 2 * (len(kept) - 1)

"""The five minimal.py: equal counts in neighbouring stages, and a run that resumes."""

import functools
import importlib
import os
import re
import signal

import pytest
import torch
import torch.distributed as dist
from conftest import STAGES, TEST_IMAGES, Reader
from ranks import on_ranks, run, torchrun
from torch.nn.parallel import DistributedDataParallel
from torchvision import datasets

COUNT = re.compile(r"epoch (\d): (\d+) of (\d+) test images correct")
# DistributedSampler and DataLoader(shuffle=True) shuffle with other random numbers. To compare the
# weights, the plain script gets the order of the other one: a sitecustomize.py runs first thing.
# All test images would fit into one batch of 500. Smaller batches show whether all are counted.
PREPARED = """
import functools, itertools, torch
from torch.utils.data import DataLoader, RandomSampler

original = DataLoader.__init__

@functools.wraps(original)
def init(self, dataset, batch_size, **others):
    original(self, dataset, 100 if batch_size == 500 else batch_size, **others)

DataLoader.__init__ = init

def order(self, epochs=itertools.count()):
    random = torch.Generator().manual_seed(next(epochs))
    return iter(torch.randperm(len(self.data_source), generator=random).tolist())

RandomSampler.__iter__ = order
"""


@pytest.fixture(scope="module")
def trained_with(tmp_path_factory, small_data):
    """-> a function: (stage, ranks) -> the counts per epoch, and the weights"""

    @functools.cache
    def train(stage, ranks=2):
        reader = Reader(tmp_path_factory.mktemp("minimal"), small_data)
        (reader.folder / "sitecustomize.py").write_text(PREPARED)
        reader.env["PYTHONPATH"] = str(reader.folder)
        script = f"{stage}/minimal.py"
        if stage in STAGES[:3]:
            flags = ["--world-size", str(ranks)] if stage == STAGES[2] else []
            result = run(reader, script, *flags)
        else:
            result = torchrun(reader, ranks, script)
        assert result.code == 0, result
        if stage == STAGES[4]:
            weights = torch.load(reader.folder / "snapshot.pt", weights_only=True)["model"]
        else:
            weights = torch.load(reader.folder / "minimal.pt", weights_only=True)
        return counts(result), weights

    return train


def counts(result):
    """The number of correct images after each epoch that was printed: {epoch: count}"""
    found = COUNT.findall(result.out)
    assert found and all(int(total) == TEST_IMAGES for _, _, total in found), result
    return {int(epoch): int(correct) for epoch, correct, _ in found}


@pytest.mark.parametrize(
    ("one", "other", "ranks"),
    [
        ("01_baseline", "02_dp", 1),
        ("01_baseline", "04_ddp_torchrun", 1),
        ("03_ddp_spawn", "04_ddp_torchrun", 2),
        ("04_ddp_torchrun", "05_multinode", 2),
    ],
)
def test_neighbours_train_the_same_weights(trained_with, one, other, ranks):
    """nn.DataParallel without GPUs is the plain script, and so is DDP on one rank."""
    ours, theirs = trained_with(one, ranks), trained_with(other, ranks)
    assert ours[0] == theirs[0] and list(ours[0]) == [1, 2]
    assert ours[1].keys() == theirs[1].keys(), "no module. in front of the names"
    assert all(torch.equal(tensor, theirs[1][name]) for name, tensor in ours[1].items())


@pytest.mark.parametrize(("stage", "ranks"), [("01_baseline", 1), ("04_ddp_torchrun", 2)])
def test_each_test_image_is_counted_once(trained_with, small_data, stage, ranks):
    found, weights = trained_with(stage, ranks)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip
    model.load_state_dict(weights)
    test_set = datasets.MNIST(small_data, train=False)
    images = test_set.data.unsqueeze(1).float() / 255
    right = (model(images).argmax(1) == test_set.targets).sum().item()
    assert found[2] == right, "what is counted is what is saved"


KILLED_IN_EPOCH_2 = """
import itertools, os, signal
from torch.optim.optimizer import register_optimizer_step_post_hook
steps = itertools.count(1)  # five in each epoch

def kill(*_):
    if os.environ["RANK"] == "1" and next(steps) == 7:
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_post_hook(kill)
"""


def test_killed_in_its_second_epoch_and_started_again_it_ends_the_same(trained_with, reader):
    killer = reader.folder / "sitecustomize.py"
    killer.write_text(KILLED_IN_EPOCH_2)
    reader.env["PYTHONPATH"] = str(reader.folder)
    killed = torchrun(reader, 2, "05_multinode/minimal.py")
    assert killed.code == -signal.SIGKILL and list(counts(killed)) == [1], killed
    killer.unlink()
    resumed = torchrun(reader, 2, "05_multinode/minimal.py")
    assert resumed.code == 0 and "1 of 2 epochs are done" in resumed.out, resumed
    assert counts(resumed) == {2: trained_with("05_multinode")[0][2]}


@pytest.mark.parametrize("stage", STAGES[2:])
def test_on_gpus_a_rank_has_a_device_with_an_index_and_a_seed(called, monkeypatch, stage):
    """Without an index NCCL's barrier guesses the device, and warns."""
    seen = {}

    def join(backend, **options):
        seen["joined"] = (backend, options["device_id"], torch.initial_seed())
        raise InterruptedError("seen enough")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.update(own=device))
    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(InterruptedError):
        if stage == STAGES[2]:
            module = importlib.import_module(f"{stage}.minimal")
            module.worker(3, 4, "nccl", "file:///nowhere")
        else:
            for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
                monkeypatch.setenv(name, value)
            called(f"{stage}/minimal.py")
    own = torch.device("cuda", 1)
    assert seen == {"own": own, "joined": ("nccl", own, 3)}


def seeds_of_stage_5(data, folder):
    """On a rank: train with stage 5 -> the seeds that it sets, one after the other."""
    os.chdir(folder)
    os.environ["MNIST_ROOT"] = data
    module = importlib.import_module("05_multinode.minimal")
    seeds = []
    torch.manual_seed = seeds.append
    module.train(torch.device("cpu"), dist.get_rank(), dist.get_world_size())
    return seeds


def test_each_epoch_of_each_rank_has_a_seed_of_its_own(small_data, tmp_path):
    found = on_ranks(2, seeds_of_stage_5, str(small_data), str(tmp_path))
    assert found == [[0, 2], [1, 3]]


def precisions(data, folder):
    """On a rank: train with amp.py -> the types of outputs and gradients, and if it scales."""
    os.chdir(folder)
    os.environ["MNIST_ROOT"] = data
    module = importlib.import_module("03_ddp_spawn.amp")
    outputs = set()
    gradients = set()
    scalers = []
    original = torch.amp.GradScaler

    def make_scaler(*arguments, **options):
        scalers.append(original(*arguments, **options))
        return scalers[-1]

    def wrap(model):
        ddp_model = DistributedDataParallel(model)
        ddp_model.register_forward_hook(lambda _, inputs, output: outputs.add(str(output.dtype)))
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradients.add(str(gradient.dtype)))
        return ddp_model

    torch.amp.GradScaler = make_scaler
    module.DistributedDataParallel = wrap
    module.train(torch.device("cpu"), dist.get_rank(), dist.get_world_size())
    return sorted(outputs), sorted(gradients), [scaler.is_enabled() for scaler in scalers]


def test_mixed_precision_computes_in_16_bits_and_keeps_32(small_data, tmp_path):
    (found,) = on_ranks(1, precisions, str(small_data), str(tmp_path))
    assert found == (["torch.bfloat16"], ["torch.float32"], [False])
    weights = torch.load(tmp_path / "minimal.pt", weights_only=True)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}

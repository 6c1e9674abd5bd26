"""The two minimal.py: equal weights on one rank, exact counts on two, and an honest difference."""

import difflib
import os
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, TEST_IMAGES, free_port
from torchvision import datasets

PLAIN, PARALLEL = "01_baseline/minimal.py", "04_ddp_torchrun/minimal.py"
COUNT = re.compile(r"epoch (\d): (\d+) of (\d+) test images correct")
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
# DistributedSampler and DataLoader(shuffle=True) shuffle with other random numbers. To compare the
# weights, the plain script gets the order of the other one: a sitecustomize.py runs first thing.
SAME_ORDER = """
import itertools, torch
from torch.utils.data import RandomSampler

def order(self, epochs=itertools.count()):
    random = torch.Generator().manual_seed(next(epochs))
    return iter(torch.randperm(len(self.data_source), generator=random).tolist())

RandomSampler.__iter__ = order
"""


@pytest.fixture
def trained_with(reader):
    """-> a function: command -> (counts per epoch, weights)"""
    (reader.folder / "sitecustomize.py").write_text(SAME_ORDER)

    def train(command):
        result = reader.run(command, PYTHONPATH=str(reader.folder))
        assert result.code == 0, result
        counts = [tuple(map(int, found)) for found in COUNT.findall(result.out)]
        assert [epoch for epoch, _, _ in counts] == [0, 1], result
        assert all(total == TEST_IMAGES for _, _, total in counts)
        return counts, torch.load(reader.folder / "minimal.pt", weights_only=True)

    return train


def test_one_rank_trains_the_weights_of_the_plain_script(trained_with):
    counts, weights = trained_with(f"python {PLAIN}")
    parallel = trained_with(f"torchrun --standalone --nproc-per-node 1 {PARALLEL}")
    assert parallel[0] == counts
    assert weights.keys() == parallel[1].keys(), "no module. in front of the names"
    assert all(torch.equal(tensor, parallel[1][name]) for name, tensor in weights.items())


def test_two_ranks_count_each_test_image_once(trained_with, small_data):
    counts, weights = trained_with(f"torchrun --standalone --nproc-per-node 2 {PARALLEL}")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip
    model.load_state_dict(weights)
    test_set = datasets.MNIST(small_data, train=False)
    images = test_set.data.unsqueeze(1).float() / 255
    right = (model(images).argmax(1) == test_set.targets).sum().item()
    assert counts[1][1] == right, "what is counted is what is saved"


def test_the_difference_has_a_number_for_every_change():
    plain, parallel = ((ROOT / path).read_text().splitlines() for path in (PLAIN, PARALLEL))
    body = [lines[lines.index("def main():") :] for lines in (plain, parallel)]
    matcher = difflib.SequenceMatcher(None, *body, autojunk=False)
    added = [body[1][b0:b1] for tag, _, _, b0, b1 in matcher.get_opcodes() if tag != "equal"]
    for lines in added:
        assert any(re.search(r"# (\d\.|\(\d\))", line) for line in lines), lines
    assert re.findall(r"# (\d+)\.", "\n".join(parallel)) == list("123456789"), "in this order"
    assert not re.search(r"# (\d\.|\(\d\))", "\n".join(plain))
    shared = sum(block.size for block in matcher.get_matching_blocks())
    assert shared > 0.75 * len(body[0]), "most of the plain script stays as it is"


@pytest.mark.parametrize("script", [PLAIN, PARALLEL])
@pytest.mark.parametrize("wrong", ["no network", "damaged"])
def test_without_mnist_it_says_so_in_a_line(reader, called, monkeypatch, small_data, script, wrong):
    root = reader.folder / "mnist"
    if wrong == "damaged":
        shutil.copytree(small_data, root)
        os.truncate(root / "MNIST/raw/t10k-images-idx3-ubyte", 1000)
    monkeypatch.setitem(reader.env, "MNIST_ROOT", str(root))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name, value in {**ONE_RANK, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    result = called(script)
    assert result.code == 1 and result.err.count("\n") == 1, result
    assert re.match(rf"no MNIST in {root}: \w+Error\(", result.err), result
    if dist.is_initialized():  # the parallel script, which in its own process ends here
        dist.destroy_process_group()


def test_on_gpus_the_group_gets_a_device_with_an_index(called, monkeypatch):
    """Without one NCCL's barrier guesses the device, and warns."""
    seen = {}

    def join(backend, **options):
        seen.update(options, backend=backend)
        raise InterruptedError("seen enough")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.update(own=device))
    monkeypatch.setattr(dist, "init_process_group", join)
    for name, value in {**ONE_RANK, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InterruptedError):
        called(PARALLEL)
    own = torch.device("cuda", 1)
    assert seen == {"backend": "nccl", "own": own, "device_id": own}

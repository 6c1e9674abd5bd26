"""docs/examples/reinforce.py: one and two ranks reach the target, and leave the loop together."""

import importlib.util
import re

import pytest
import torch
from conftest import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "docs/examples/reinforce.py"
SPEC = importlib.util.spec_from_file_location("reinforce", SCRIPT)
reinforce = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reinforce)


def run(reader, ranks, flags="", script=SCRIPT):
    command = f"torchrun --standalone --nproc-per-node {ranks} {script} {flags}"
    return reader.run(command, timeout=170, OMP_NUM_THREADS="1")


def figures(result):
    """What a run prints -> {name: numbers}"""
    patterns = {
        "evaluated": r"^iteration +(\d+) +([\d,]+) samples: evaluated ([\d.]+) steps$",
        "left": r"^target reached, ranks left after iterations \[(.+)\]$",
        "total": r"^ +([\d,]+) samples in ([\d,]+) episodes",
        "rates": r"^ +([\d,]+) samples/s",
        "each": r"^first iteration: samples of each rank \[(.+)\]$",
        "distinct": r"^first iteration: (\d+) episodes, (\d+) of them distinct$",
    }
    assert result.code == 0, result
    found = {}
    for name, pattern in patterns.items():
        lines = re.findall(pattern, result.out, re.MULTILINE)
        words = [" ".join(line) if isinstance(line, tuple) else line for line in lines]
        found[name] = [
            [float(number.replace(",", "")) for number in re.split(r", | ", line)] for line in words
        ]
        assert found[name], (name, result)
    return found


@pytest.mark.parametrize(
    ("ranks", "seed"),
    [
        (ranks, seed) if seed == 0 else pytest.param(ranks, seed, marks=pytest.mark.slow)
        for ranks in (1, 2)
        for seed in (0, 1, 2)
    ],
)
def test_the_target_is_reached_with_as_many_samples(reader, ranks, seed):
    found = figures(run(reader, ranks, f"--seed {seed}"))
    (left,) = found["left"]
    assert left == [left[0]] * ranks and left[0] <= 40, "all ranks leave after the same iteration"
    assert [steps >= 190 for _, _, steps in found["evaluated"]][-2:] == [False, True]
    (samples, episodes), ((first, distinct),) = found["total"][0], found["distinct"]
    # Whole episodes of at most 200 steps: each rank has at least its part, and at most 199 more.
    assert 2000 <= samples / left[0] < 2000 + 200 * ranks
    assert samples / 200 <= episodes and first == distinct
    assert len(found["each"][0]) == ranks
    assert all(2000 / ranks <= number < 2000 / ranks + 200 for number in found["each"][0])
    (right,), (wrong,) = found["rates"]
    assert (right == wrong) if ranks == 1 else (1 < right / wrong < 2.01)


def test_with_one_seed_both_ranks_collect_the_same_episodes(reader):
    found = figures(run(reader, 2, "--same-seed --target 1"))
    ((episodes, distinct),), (samples,) = found["distinct"], found["each"]
    assert episodes == 2 * distinct and samples[0] == samples[1]
    assert found["left"] == [[5, 5]], "the first evaluation reaches a target of 1"


@pytest.mark.slow
def test_without_the_broadcast_of_the_verdict_the_other_rank_waits(reader):
    source = SCRIPT.read_text()
    for old, new in (("dist.broadcast_object_list(stop)", "pass"), ("seconds=30", "seconds=5")):
        assert source.count(old) == 1
        source = source.replace(old, new)
    (reader.folder / "alone.py").write_text(source)
    result = run(reader, 2, "--target 1", "alone.py")
    assert result.code == 1 and "left after" not in result.out, result
    assert "Timed out" in result.err or "Connection closed" in result.err, result


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gradient(monkeypatch, own, everyone):
    """The gradient of one rank's episodes, before DDP averages; the sums are those of all ranks."""
    sums = []

    def all_reduce(tensor):
        sums.append(tensor.clone())
        if len(sums) > len(everyone):
            tensor.copy_(sum(sums[:-1]))

    monkeypatch.setattr(reinforce.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(reinforce.dist, "get_world_size", lambda: len(everyone))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for episodes in [*everyone, own]:  # the first calls only bring the sums
        reinforce.update(model, optimizer, episodes, torch.device("cpu"))
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_unequal_ranks_have_the_gradient_of_all_samples(monkeypatch, in_float64):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    episodes = [reinforce.play(model, torch.device("cpu")) for _ in range(3)]
    ranks = [episodes[:1], episodes[1:]]
    own = [gradient(monkeypatch, rank, ranks) for rank in ranks]
    together = gradient(monkeypatch, episodes, [episodes])
    assert torch.allclose(sum(own) / 2, together, rtol=1e-9, atol=1e-12)

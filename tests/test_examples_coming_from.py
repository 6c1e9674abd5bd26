"""The examples of docs/your_script/coming_from.md and its neighbours, beyond what test_docs.py
runs."""

import importlib
import json
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from conftest import LINUX, ROOT, STAGES
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common
from lib.processes import free_port

by_hand = importlib.import_module("docs.your_script.examples.by_hand")
demo_recipe = importlib.import_module("docs.your_script.examples.demo_recipe")
dqn = importlib.import_module("docs.training.examples.dqn")
predict = importlib.import_module("docs.training.examples.predict")
seeding = importlib.import_module("03_ddp_spawn.shards_and_seeds")
PAGE = (ROOT / "docs/your_script/coming_from.md").read_text()


# ---------------------------------------------------------------- by_hand.py


def two_nodes(reader, flags):
    """Run by_hand.py as two nodes on this machine -> the Result of node 0 and of node 1."""
    command = f"python docs/your_script/examples/by_hand.py --master-port {free_port()} {flags}"
    nodes = [reader.start(f"{command} --node-rank {node}") for node in (0, 1)]
    return [reader.finish(node, 120) for node in nodes]


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--init env", "--init tcp --start spawn"])
def test_two_nodes_of_two_ranks(reader, flags):
    printed = []
    for result in two_nodes(reader, flags):
        assert result.code == 0, result
        printed += result.out.splitlines()
    expected = []
    for rank in range(4):
        numbers = f"node {rank // 2}, local rank {rank % 2}"
        expected.append(f"rank {rank} of 4: {numbers}, sum of the ranks 6")
    assert sorted(printed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("start", ["process", "spawn"])
def test_nobody_ends_the_ranks_that_wait(reader, start):
    """Rank 3 fails. Node 0 learns nothing of it, and its ranks wait for their timeout."""
    first, second = two_nodes(reader, f"--fail 3 --timeout 6 --start {start}")
    assert first.code == second.code == 1
    assert "rank 3 fails before it joins the group" in second.err
    assert "rank 3 fails" not in first.err
    if start == "process":
        assert "node 0: exit codes of failed ranks: [1, 1]" in first.err
        assert "node 1: exit codes of failed ranks: [1, 1]" in second.err
    else:
        assert "ProcessRaisedException" in first.err and "ProcessRaisedException" in second.err


# ---------------------------------------------------------------- predict.py


def test_the_networks_are_those_of_the_stages():
    for stage in STAGES:
        own = importlib.import_module(f"{stage}.train").make_model().state_dict()
        assert [*own] == [*predict.make_model(has_batchnorm=True).state_dict()]
    assert sum(tensor.numel() for tensor in predict.make_model(False).parameters()) == 28_938


@pytest.mark.parametrize("has_batchnorm", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
@pytest.mark.parametrize("nested", [False, True])
def test_files_of_any_kind_are_loaded(tmp_path, has_batchnorm, prefix, nested):
    model = predict.make_model(has_batchnorm)
    state = {prefix + key: tensor for key, tensor in model.state_dict().items()}
    torch.save({"model": state, "epochs": 1} if nested else state, tmp_path / "model.pt")
    loaded = predict.load_model(tmp_path / "model.pt")
    images = torch.randint(0, 256, (4, 28, 28), dtype=torch.uint8)
    assert not loaded.training
    found = predict.predict(loaded, images)
    expected = predict.predict(model.eval(), images)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


WRAPPED = {
    "DDP": DistributedDataParallel,
    "DataParallel": nn.DataParallel,
    "compile": torch.compile,
    "DDP of compile": lambda model: DistributedDataParallel(torch.compile(model)),
    "compile of DDP": lambda model: torch.compile(DistributedDataParallel(model)),
    "compile of DataParallel": lambda model: torch.compile(nn.DataParallel(model)),
}


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rank", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("order", WRAPPED)
def test_the_file_of_any_wrapper_is_loaded(group_of_one, tmp_path, order):
    """By predict.py, and with the prefixes that the page of messages names, in its order."""
    model = predict.make_model(has_batchnorm=True)
    torch.save(WRAPPED[order](model).state_dict(), tmp_path / "model.pt")
    loaded = [predict.load_model(tmp_path / "model.pt"), predict.make_model(has_batchnorm=True)]
    page = (ROOT / "docs/failures/messages/training.md").read_text()
    entry = page.partition("### The keys have the prefix of a wrapper")[2].partition("### ")[0]
    state = torch.load(tmp_path / "model.pt")
    for prefix in re.findall(r'`"(\w+\.)"`', entry):
        nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    loaded[1].load_state_dict(state)
    for copy in loaded:
        for name, tensor in model.state_dict().items():
            assert torch.equal(copy.state_dict()[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_as_right_in_predict_as_in_its_own_test(trained, reader, stage):
    folder, _ = trained(stage)
    record = json.loads((folder / "timings/runs.jsonl").read_text().splitlines()[-1])
    correct, total = record["history"][-1]["test"]
    result = reader.run(f"python docs/training/examples/predict.py {folder}/checkpoints/{stage}.pt")
    assert f"{correct} of {total} test images correct" in result.out, result


# ---------------------------------------------------------------- shards_and_seeds.py


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", pytest.param("fork", marks=LINUX)])
def test_the_table_of_generators(start_method):
    """How many of the numbers that two ranks draw are distinct, without and with loader workers."""
    drawn = seeding.drawn_by_ranks(start_method)
    first = 0 if start_method == "spawn" else 2
    for name in seeding.SEEDINGS:
        row = re.search(rf"^\| `?{re.escape(name)}`? \| (.*) \|$", PAGE, re.MULTILINE)
        cells = [int(cell) for cell in row[1].split(" | ")]
        for place, workers in enumerate((0, 2)):
            numbers = drawn[0][name, workers] + drawn[1][name, workers]
            assert cells[first + place] == len(set(numbers)), (name, workers)


# ---------------------------------------------------------------- dqn.py


def steps_of_the_environment(count):
    """So many steps of random play, as the replay buffer keeps them."""
    model = dqn.make_net()
    return dqn.collect(dqn.CartPole(), model, count, epsilon=1.0, device=common.CPU)


def gradients_of_a_batch():
    """On a rank -> the gradient of the whole batch in one process, and DDP's of its shards."""
    torch.manual_seed(0)
    dqn.random.seed(0)
    model = dqn.make_net()
    target = dqn.make_net()
    batch = steps_of_the_environment(8)
    found = []
    for trained, part in (
        (model, batch),
        (DistributedDataParallel(model), batch[dist.get_rank() :: 2]),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        dqn.update(trained, target, optimizer, part, common.CPU)
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append(nn.utils.parameters_to_vector(gradients).clone())
    return found


@pytest.mark.slow
def test_the_shards_of_a_batch_have_the_gradient_of_the_batch():
    for whole, averaged in on_ranks(2, gradients_of_a_batch):
        assert whole.abs().max() > 0
        assert torch.allclose(whole, averaged, rtol=1e-4, atol=1e-6)


def test_an_episode_that_is_cut_off_goes_on():
    """Only a fall ends the return. The time limit is not a state of the pole."""
    steps = steps_of_the_environment(300)
    ended = [step for step in steps if step[4] == 0.0]
    assert ended and all(abs(state[0]) > 2.4 or abs(state[2]) > 0.2 for *_, state, _ in ended)


def test_every_rank_explores_differently_in_the_end():
    assert dqn.epsilon_of(0, 3, progress=0.0) == 1
    assert [round(dqn.epsilon_of(rank, 3, 1.0), 2) for rank in range(3)] == [0.02, 0.11, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_budget_is_that_of_all_ranks(reader, ranks):
    flags = "--budget 2400 --warm-up 1200 --updates 1 --test-every 99"
    torchrun = f"torchrun --standalone --nproc-per-node {ranks}"
    result = reader.run(f"{torchrun} docs/training/examples/dqn.py {flags}", OMP_NUM_THREADS="1")
    assert "target not reached after 2,400 steps of all ranks" in result.out, result
    assert f"oldest steps in the buffers: {ranks} distinct of {ranks}" in result.out


# ---------------------------------------------------------------- demo_recipe.py


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "skipped"), [("", 0), ("--loss-outside", 1)])
def test_a_loss_in_16_bits_costs_a_step(called, flags, skipped):
    result = called("docs/your_script/examples/demo_recipe.py", f"--amp fp16 --steps 4 {flags}")
    assert f"4 steps, of which the GradScaler skipped {skipped}" in result.out, result
    assert "32 images per step, learning rate 0.0001, amp fp16" in result.out

"""docs/examples/compile_ddp.py and compile_time.py: graphs, keys, and weights equal to rounding."""

import importlib.util
import re

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "docs/examples"
SPEC = importlib.util.spec_from_file_location("compile_ddp", EXAMPLES / "compile_ddp.py")
compile_ddp = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compile_ddp)


def test_the_graphs_are_cut_where_ddpoptimizer_expects_the_buckets(reader):
    command = f"torchrun --standalone --nproc-per-node 2 {EXAMPLES}/compile_ddp.py"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    orders = re.findall(r"^(.*\)) +(\S+\.) +(\d+) +(\d+)$", result.out, re.MULTILINE)
    assert [(keys, int(own), int(sequential)) for _, keys, own, sequential in orders] == [
        ("module.", 2, 2),
        ("module._orig_mod.", 2, 2),
        ("_orig_mod.module.", 2, 0),
    ], result
    rows = re.findall(r"^ +(\w+) +(True|False) +(\d+)  (.+)$", result.out, re.MULTILINE)
    steps = {(cap, cut == "True"): events.split() for cap, cut, _, events in rows}
    assert len(steps) == 10, result
    for cap, cut, graphs, _ in rows:
        events = steps[cap, cut == "True"]
        for kind in "BA":  # every layer is in one graph, and in one bucket
            assert sum(int(event[1:]) for event in events if event[0] == kind) == 8
        assert sum(event[0] == "B" for event in events) == int(graphs)
        if cut == "False":
            assert graphs == "1" and events[0] == "B8", "all-reduces come after all of backward"
    assert steps["default", True] == ["B1", "A1", "B7", "A7"]
    assert steps["25", True] == ["B1", "B7", "A8"], "cut, though there is one bucket"
    caps = ("25", "4", "2", "1")
    counts = [sum(event[0] == "B" for event in steps[cap, True]) for cap in caps]
    assert counts == [2, 3, 5, 8]
    assert "batches of 4, 3 and 2 samples: 4 graphs\n" in result.out


@pytest.fixture
def one_rank():
    torch._dynamo.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def backward_of(model):
    model(torch.rand(2, 512)).sum().backward()


def test_a_first_bucket_below_1_mib_is_refused_only_when_compiled(one_rank):
    for compiled in (False, True):
        model = compile_ddp.Net()
        ddp_model = compile_ddp.DistributedDataParallel(model, bucket_cap_mb=0.5)
        if compiled:
            model.compile(backend="eager")
            with pytest.raises(AssertionError, match="First bucket should be smaller/equal"):
                backward_of(ddp_model)
        else:
            backward_of(ddp_model)


def test_fullgraph_is_for_the_inner_model(one_rank):
    model = compile_ddp.Net()
    model.compile(backend="eager", fullgraph=True)
    backward_of(compile_ddp.DistributedDataParallel(model))
    wrapper = compile_ddp.DistributedDataParallel(compile_ddp.Net())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        backward_of(torch.compile(wrapper, backend="eager", fullgraph=True))


@pytest.mark.slow
def test_compiled_and_uncompiled_steps_end_with_equal_weights(reader):
    command = f"torchrun --standalone --nproc-per-node 2 {EXAMPLES}/compile_time.py"
    result = reader.run(command, timeout=280, OMP_NUM_THREADS="1")
    assert result.code == 0, result
    found = re.findall(r"^(\w.+\w)  +first step +([\d.]+) s, later steps", result.out, re.MULTILINE)
    assert [name for name, _ in found] == ["not compiled", "compiled"], result
    difference = float(re.search(r"after 20 steps: (\S+)", result.out)[1])
    assert 0 < difference < 1e-5

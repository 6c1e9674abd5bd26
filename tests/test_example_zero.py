"""docs/examples/zero.py: bytes held, passed and sent, and the weights of DDP."""

import pytest
from conftest import NEEDS_HOSTS, ROOT, Reader, free_port

pytestmark = pytest.mark.slow

MODEL, LAYER = 400, 25  # KiB: 16 weights of 80 x 80 numbers in fp32
SENT = """
import sys, time, torch, torch.distributed as dist
import torch.distributed.nn

def sent():
    lines = open("/proc/self/net/dev").read().splitlines()
    return int([line for line in lines if "lo:" in line][0].split()[9])

def times(collective, *tensors):
    collective(*tensors)  # connections are made
    counts = []
    for part in (lambda *_: None, collective):
        dist.barrier()
        time.sleep(0.2)
        before = sent()
        dist.barrier()
        part(*tensors)
        time.sleep(0.2)
        counts.append(sent() - before)
    return (counts[1] - counts[0]) / ranks / whole.nbytes

dist.init_process_group("gloo")
ranks = dist.get_world_size()
whole, shard = torch.ones(1_200_000), torch.ones(1_200_000 // ranks)
found = [times(dist.all_reduce, whole), times(dist.all_gather_single, whole, shard),
         times(dist.reduce_scatter_single, shard, whole)]
if dist.get_rank() == 0:
    print(*(f"{times:.2f}" for times in found))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 4])
def table(request, tmp_path_factory, small_data):
    """(number of ranks, {row: its numbers}), as the script prints them."""
    reader = Reader(tmp_path_factory.mktemp("zero"), small_data)
    command = f"torchrun --standalone --nproc-per-node {request.param} {ROOT}/docs/examples/zero.py"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")
    assert result.code == 0 and "Warning" not in result.err, result
    titles, *lines = result.out.splitlines()
    rows = {
        line.split()[0]: [float(n.replace(",", "")) for n in line.split()[1:]] for line in lines
    }
    assert titles.split()[1:4] == ["parameters", "gradients", "optimizer"] and len(rows) == 4
    return request.param, rows


def test_what_a_rank_holds_is_sharded_stage_by_stage(table):
    ranks, rows = table
    shard = MODEL / ranks
    assert rows["averaging"][:3] == [MODEL, MODEL, 2 * MODEL]
    assert rows["ZeRO-1"][:3] == [MODEL, MODEL, 2 * shard]
    assert rows["ZeRO-2"][:3] == [MODEL, shard, 2 * shard]
    assert rows["ZeRO-3"][:3] == [shard, shard, 2 * shard]


def test_the_peak_has_whole_layers_at_most_one_at_a_time(table):
    _, rows = table
    peaks = {name: row[3] - sum(row[:3]) for name, row in rows.items()}
    one_gradient, one_layer = LAYER, 2 * LAYER
    expected = {"averaging": 0, "ZeRO-1": 0, "ZeRO-2": one_gradient, "ZeRO-3": one_layer}
    assert peaks == expected


def test_what_is_passed_to_collectives_and_what_a_ring_sends(table):
    ranks, rows = table
    once = MODEL * (ranks - 1) / ranks  # of an all-gather or a reduce-scatter of the whole model
    assert rows["averaging"][4:6] == [MODEL, 2 * once]
    assert rows["ZeRO-1"][4:6] == [2 * MODEL, 3 * once]
    assert rows["ZeRO-2"][4:6] == [2 * MODEL, 2 * once]
    assert rows["ZeRO-3"][4:6] == [3 * MODEL, 3 * once]


def test_the_weights_are_those_of_ddp_up_to_rounding(table):
    assert all(row[6] < 1e-6 for row in table[1].values())


@NEEDS_HOSTS
def test_gloo_sends_as_much_in_a_reduce_scatter_as_in_an_all_reduce(reader):
    """In times of the whole tensor, per rank; counted by the kernel in a network of their own."""
    (reader.folder / "sent.py").write_text(SENT)
    torchrun = f"torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {free_port()}"
    result = reader.run(f"unshare --net sh -c 'ip link set lo up && {torchrun} sent.py'")
    assert result.code == 0, result
    all_reduce, all_gather, reduce_scatter = map(float, result.out.split())
    assert all_reduce == pytest.approx(1, abs=0.1) == reduce_scatter
    assert all_gather == pytest.approx(0.5, abs=0.1)

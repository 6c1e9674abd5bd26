"""tools/replay.py: a rank of a recorded run, alone, computes what it computed among others."""

import json
import signal
import time

import pytest
import torch
from conftest import LINUX, ROOT, wait_for

REPLAY = "python tools/replay.py"
RECORD = "torchrun --standalone --nproc-per-node 2 tools/replay.py record runs"
SCRIPT = """
import torch, torch.distributed as dist, torch.distributed.nn, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.rand(8, 4)
        loss = ddp_model(x).sub(x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses, part = [None] * 2, torch.empty(2)
    dist.all_gather_object(losses, loss.item())
    dist.reduce_scatter(part, list(torch.rand(2, 2)))
    weights = sum(weight.sum() for weight in model.parameters())
    print(f"rank {dist.get_rank()}:", losses, part.tolist(), weights.item(), flush=True)

main()
dist.destroy_process_group()
"""


def refused(result, told, code=2):
    """It ended in one line of replay.py, next to the launcher's and PyTorch's warnings."""
    lines = [line for line in result.err.splitlines() if line.startswith("replay.py: ")]
    assert result.code == code and len(lines) == 1 and told in lines[0], result
    assert "]: Traceback" not in result.err, result  # a rank's; torchrun prints its own


@pytest.mark.slow
def test_each_rank_alone_computes_what_it_computed(reader):
    (reader.folder / "script.py").write_text(SCRIPT)
    printed = reader.run(f"{RECORD} script.py").out
    for rank in range(2):
        result = reader.run(f"{REPLAY} rank {rank} runs")
        own, end = result.out.splitlines()
        assert own in printed and own.startswith(f"rank {rank}: "), result
        assert end.startswith(f"rank {rank}: replayed ") and "different numbers" not in result.err
    assert "agree on all" in reader.run(f"{REPLAY} compare runs").out
    (reader.folder / "script.py").write_text(SCRIPT.replace("lr=0.01", "lr=0.02"))
    result = reader.run(f"{REPLAY} rank 1 runs")
    refused(result, "brings different numbers from here on: collective", code=0)
    one_more = SCRIPT.replace("    losses, ", "    dist.broadcast(x, 0)\n    losses, ")
    (reader.folder / "script.py").write_text(one_more)
    refused(reader.run(f"{REPLAY} rank 1 runs"), "recorded is allgather [1] int64 at", code=1)


@pytest.mark.slow
def test_a_stage_is_recorded_as_it_is(reader):
    command = f"{REPLAY} record runs 03_ddp_spawn/train.py --world-size 2"
    flags = "-e 1 -b 48 --lr 0.05 --device cpu --checkpoint all.pt"
    assert reader.run(f"{command} {flags}").code == 0
    whole = torch.load(reader.folder / "all.pt")["model"]
    (reader.folder / "all.pt").unlink()
    for rank in (1, 0):
        result = reader.run(f"{REPLAY} rank {rank} runs")
        assert result.code == 0 and f"\nrank {rank}: replayed" in f"\n{result.out}", result
    alone = torch.load(reader.folder / "all.pt")["model"]
    assert all(torch.equal(alone[name], tensor) for name, tensor in whole.items())


@pytest.mark.slow
@LINUX
def test_a_hang_is_between_these_lines(reader):
    process = reader.start(f"{RECORD} {ROOT}/exercises/fix/13_uneven_batches.py")
    logs = [reader.folder / f"runs/rank{rank}/calls" for rank in range(2)]
    wait_for(lambda: all(log.exists() for log in logs) and hangs(logs))
    process.send_signal(signal.SIGTERM)
    reader.finish(process)
    agree, first, second = reader.run(f"{REPLAY} compare runs").out.splitlines()
    assert agree.startswith("The ranks agree on ")
    for start, line in ("    rank 0: barrier", first), ("    rank 1: allreduce", second):
        assert line.startswith(start) and " at 13_uneven_batches.py:" in line


def hangs(logs):
    """Has nothing been called for some seconds?"""
    return time.time() - max(log.stat().st_mtime for log in logs) > 5


@pytest.mark.slow
def test_what_cannot_be_recorded_or_replayed_is_refused_in_a_line(reader):
    init = 'import torch, torch.distributed as dist\ndist.init_process_group("gloo")\n'
    bad = {
        "dist.recv(torch.ones(1))": "point-to-point",
        "dist.new_group([0])": "subgroups",
    }
    record = RECORD.replace("node 2", "node 1")
    for number, (line, told) in enumerate(bad.items()):
        (reader.folder / "script.py").write_text(init + line)
        command = f"{record.replace('runs', f'runs/{number}')} script.py"
        refused(reader.run(command), told, code=1)  # torchrun's own code
    refused(reader.run(command), "each recording, of one group, needs a new folder", code=1)
    (reader.folder / "script.py").write_text("print()")
    refused(reader.run(f"{REPLAY} record new script.py"), "made no process group")
    head = {"torch": "0.1", "rank": 0, "world_size": 1, "index": 0, "threads": 1}
    head.update(argv=["script.py"], launch={})
    (reader.folder / "old/rank0").mkdir(parents=True)
    (reader.folder / "old/rank0/calls").write_text(json.dumps(head))
    refused(reader.run(f"{REPLAY} rank 0 old"), "recorded with torch 0.1, this is")


def test_what_is_no_recording_is_refused_in_a_line(reader):
    refused(reader.run(f"{REPLAY} rank 0 nowhere"), "nowhere is no recording")
    (reader.folder / "runs/rank0").mkdir(parents=True)
    for text in (b"{", b"\xff", b'{"rank": 0}'):
        (reader.folder / "runs/rank0/calls").write_bytes(text)
        refused(reader.run(f"{REPLAY} compare runs"), "runs is damaged: record the run again")

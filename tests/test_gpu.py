"""What one hour on a machine with GPUs should show (make gpu): stages, launchers, failures.

Without a GPU all of it is skipped. tests/test_simulated_gpu.py runs it on two simulated ones.
"""

import importlib
import os
import re
import signal

import psutil
import pytest
import torch
from conftest import STAGES, TEST_IMAGES, ranks_of, record_of, wait_for_line

GPUS = torch.cuda.device_count()
OWN = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(GPUS)))).split(",")
TRAIN = "--epochs 3 --batch-size 48 --lr 0.03 --device cuda"
ALL = f"torchrun --standalone --nproc-per-node {GPUS}"
TWO = "torchrun --standalone --nproc-per-node 2"
COUNTED = f"of {TEST_IMAGES} test images correct"
FAULTY = "05_multinode/rehearsal/faulty_rank.py"
CAUSE = re.compile(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)(.*)", re.DOTALL)
REAL = pytest.mark.skipif("SIMULATED_GPUS" in os.environ, reason="needs real GPUs")
TWO_GPUS = pytest.mark.skipif(GPUS < 2, reason="on a machine with two GPUs: make gpu")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="on a machine with GPUs: make gpu"
)


def check_record(reader, world_size):
    record = record_of(reader.folder)
    assert (record["device"], record["world_size"]) == ("cuda", world_size)
    last = record["history"][-1]
    assert last["test"][1] == TEST_IMAGES and last["test"][0] > TEST_IMAGES / 3
    assert all(seconds > 0 for rank in last["phases"] for seconds in rank.values())


@pytest.mark.parametrize(
    ("stage", "amp"),
    [(stage, "off") for stage in STAGES] + [("03_ddp_spawn", amp) for amp in ("fp16", "bf16")],
)
def test_a_stage_on_one_gpu(reader, stage, amp):
    flags = f"{TRAIN} --amp {amp}" if amp != "off" else TRAIN
    result = reader.stage(stage, flags, ranks=1, CUDA_VISIBLE_DEVICES=OWN[0])
    assert result.code == 0, result
    check_record(reader, world_size=1)
    checkpoint = reader.folder / f"checkpoints/{stage}.pt"
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    importlib.import_module("01_baseline.train").make_model().load_state_dict(weights)


@TWO_GPUS
@pytest.mark.parametrize(
    ("stage", "flags"),
    [(stage, "") for stage in STAGES[1:4]]
    + [
        pytest.param("03_ddp_spawn", "--sync-batchnorm", marks=REAL),
        ("04_ddp_torchrun", "--amp fp16"),
    ],
)
def test_a_stage_on_all_gpus(reader, stage, flags):
    result = reader.stage(stage, f"{TRAIN} --batch-size {GPUS * 24} {flags}", ranks=GPUS)
    assert result.code == 0, result
    check_record(reader, world_size=GPUS)


@TWO_GPUS
def test_stage_5_by_two_torchruns_each_with_a_gpu(reader):
    nodes = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in OWN[:2]]
    result = reader.finish_all(reader.start_nodes(f"05_multinode/train.py {TRAIN}", 1, nodes))
    assert result.code == 0, result
    check_record(reader, world_size=2)


@pytest.mark.parametrize("stage", STAGES[2:])
def test_two_ranks_share_a_gpu_over_gloo(reader, stage):
    flags = f"{TRAIN} --backend gloo"
    if stage == STAGES[2]:
        result = reader.stage(stage, flags, ranks=2, CUDA_VISIBLE_DEVICES=OWN[0])
        minimal = f"python {stage}/minimal.py --world-size 2 --backend gloo"
    else:
        result = reader.run(f"{TWO} {stage}/train.py {flags}", CUDA_VISIBLE_DEVICES=OWN[0])
        minimal = f"{TWO} {stage}/minimal.py --backend gloo"
    assert result.code == 0, result
    check_record(reader, world_size=2)
    result = reader.run(minimal, CUDA_VISIBLE_DEVICES=OWN[0])
    assert result.code == 0 and COUNTED in result.out, result


@pytest.mark.parametrize("stage", STAGES[:3])
def test_a_minimal_script_runs_on_all_gpus(reader, stage):
    result = reader.run(f"python {stage}/minimal.py")
    assert result.code == 0 and COUNTED in result.out, result


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("04_ddp_torchrun/minimal.py", COUNTED),
        ("05_multinode/minimal.py", COUNTED),
        (f"docs/your_script/examples/ddp_complete.py --epochs 1 --batch-size {GPUS * 24}", COUNTED),
        (f"04_ddp_torchrun/rank_zero.py --epochs 2 -b {GPUS * 12}", "done after 2 epoch(s)"),
    ],
    ids=["stage 4", "stage 5", "complete", "rank zero"],
)
def test_a_script_runs_on_all_gpus_without_a_warning(reader, script, printed):
    result = reader.run(f"{ALL} {script}")
    assert result.code == 0 and printed in result.out, result
    assert "Warning" not in result.err and "device_id" not in result.err, result


@TWO_GPUS
def test_rank_0_that_stops_alone_does_not_end_well(reader):
    """Its barrier is an all_reduce, and meets the other rank's gradients."""
    flags = "--epochs 9 -b 24 --target 0.1 --alone --timeout 10"
    result = reader.run(f"{TWO} 04_ddp_torchrun/rank_zero.py {flags}")
    assert result.code == 1 and "done after" not in result.out, result


def test_preflight_finds_the_gpus_sound(reader):
    data = reader.env["MNIST_ROOT"]
    line = f"{ALL} doctor preflight --timeout 100 --data {data}"
    result = reader.run(line, timeout=280)
    assert result.code == 0 and "preflight: all checks pass" in result.out, result


def root_cause(result):
    """Whom torchrun names -> rank, exit code, what it says of them"""
    assert result.code == 1, result
    rank, code, rest = CAUSE.search(result.err).groups()
    return int(rank), int(code), rest


@TWO_GPUS
def test_a_rank_that_raises_is_the_root_cause_with_its_traceback(reader):
    result = reader.run(f"{TWO} {FAULTY} 'raises 1' {TRAIN} --timeout 30")
    rank, code, report = root_cause(result)
    assert (rank, code) == (1, 1) and "OSError: an image is missing" in report, result


@TWO_GPUS
def test_a_rank_that_is_killed_is_the_root_cause(reader):
    endless = TRAIN.replace("--epochs 3", "--epochs 100000")
    process = reader.start(f"{TWO} 04_ddp_torchrun/train.py {endless} --timeout 30")
    wait_for_line(process)
    ranks = {psutil.Process(pid).environ()["RANK"]: pid for pid in ranks_of(process)}
    os.kill(ranks["1"], signal.SIGKILL)
    result = reader.finish(process)
    assert root_cause(result)[:2] == (1, -signal.SIGKILL), result


@TWO_GPUS
def test_of_a_rank_that_hangs_the_watchdog_ends_the_one_that_waits(reader):
    result = reader.run(f"{TWO} {FAULTY} 'hangs 0' {TRAIN} --timeout 10")
    assert root_cause(result)[:2] == (1, -signal.SIGABRT), result


# Eight layers of 64 MiB: a bucket for each, all-reduced while backward computes the next.
OVERLAP = """
import os, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).to(device)
ddp_model = torch.nn.parallel.DistributedDataParallel(model)
x = torch.rand(2048, 4096, device=device)
for step in range(4):
    if step == 3:
        trace = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        trace.start()
    ddp_model(x).sum().backward()
    torch.cuda.synchronize()
trace.stop()
kernels = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
nccl = [e.time_range for e in kernels if "nccl" in e.name.lower()]
other = [e.time_range for e in kernels if "nccl" not in e.name.lower()]
during = [a for a in nccl if any(a.start < b.end and b.start < a.end for b in other)]
print(f"rank {dist.get_rank()}: {len(during)} during")
dist.destroy_process_group()
"""


@REAL
@TWO_GPUS
def test_all_reduces_run_during_the_kernels_of_backward(reader):
    (reader.folder / "overlap.py").write_text(OVERLAP)
    result = reader.run(f"{ALL} overlap.py")
    assert result.code == 0, result
    found = re.findall(r"rank \d+: (\d+) during", result.out)
    assert len(found) == GPUS and min(map(int, found)) > 0, result

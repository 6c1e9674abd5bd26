"""Likely mistakes end in one clear line and exit code 2, before any rank is started."""

import importlib
import shutil

import pytest
import torch
from conftest import LINUX, NO_NETWORK, STAGES, one_line, record_of

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# What checks these stands below the ruled line, where every stage is stage 1.
FLAGS = [
    ("--batch-size 0", "--batch-size 0: from 1 to"),
    ("--lr nan", "--lr nan: from 0 to 100"),
    ("--workers 1000000", "--workers 1000000: from 0 to 512"),
    (f"--seed {'9' * 23}", "from 0 to 2147483648"),
    ("--checkpoint .", "cannot write to .: it is a folder"),
    ("--record same --checkpoint ./same", "same: it is a folder, or two flags name it"),
    (f"--checkpoint {'x' * 300}", "File name too long"),
    ("--record text/runs.jsonl", "cannot write to text: File exists"),
    ("--checkpoint /dev/null/here/model.pt", "cannot write to /dev/null/here"),
]
FLAGS_OF_STAGE = [
    ("03_ddp_spawn", "--timeout 0", "--timeout 0.0: from 1 to"),
    ("03_ddp_spawn", "--world-size -1", "--world-size -1: from 0 to 512"),
    ("03_ddp_spawn", "--sync-batchnorm", "SyncBatchNorm needs GPUs"),
    ("03_ddp_spawn", "--world-size 7", "not divisible by 7 ranks"),
    ("04_ddp_torchrun", "--batch-size 25", "--batch-size 25 is not divisible by 2 ranks"),
    ("05_multinode", "--batch-size 1", "--batch-size 1 is not divisible by 2 ranks"),
    ("05_multinode", "--snapshot /dev/null/here/s", "cannot write to /dev/null/here"),
]


@pytest.fixture
def refused(reader, called, monkeypatch):
    """Call a stage's main() in this process -> the one line with which it refused."""
    (reader.folder / "text").write_text("not a folder")

    def call(stage, flags):
        for name in TORCHRUN:
            monkeypatch.setenv(name, "2" if name == "WORLD_SIZE" else "0")
        result = called(f"{stage}/train.py", flags)
        one_line(result, stage, "")
        assert not list(reader.folder.rglob("*.jsonl")), "nothing is half written"
        return result.err

    return call


@pytest.mark.parametrize(
    ("stage", "flags", "reason"), [("01_baseline", *row) for row in FLAGS] + FLAGS_OF_STAGE
)
def test_flags(refused, stage, flags, reason):
    assert reason in refused(stage, flags)


@pytest.mark.parametrize("stage", STAGES[3:])
@pytest.mark.parametrize("there", [0, 3])
def test_without_torchrun_it_names_what_is_missing(called, monkeypatch, stage, there):
    for name in TORCHRUN[:there]:  # RANK and the like are there if srun or mpirun has started it
        monkeypatch.setenv(name, "0")
    result = called(f"{stage}/train.py")
    missing = ", ".join(sorted(TORCHRUN[there:]))
    one_line(result, stage, f"start it with torchrun, see --help: {missing} not set")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here --device cuda works")
def test_cuda_without_cuda(refused):
    assert "no CUDA device" in refused("01_baseline", "--device cuda")


@pytest.mark.parametrize("stage", STAGES[2:])
def test_more_ranks_than_gpus(refused, stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(stage == STAGES[2]))
    flags = "--device cuda" + (" --world-size 2" if stage == STAGES[2] else "")
    assert "start at most one rank per GPU" in refused(stage, flags)


def test_the_number_of_ranks_follows_the_device(called, monkeypatch):
    started = []
    stage3 = importlib.import_module("03_ddp_spawn.train")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(stage3.mp, "spawn", lambda worker, args, nprocs: started.append(nprocs))
    assert called("03_ddp_spawn/train.py").code == 0
    assert called("03_ddp_spawn/train.py", "--device cpu").code == 0
    assert started == [4, 2], "on a CPU two, whatever the number of GPUs"


def test_damaged_data(refused, small_data, tmp_path_factory):
    root = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(small_data, root)
    path = root / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"--data {root}: no MNIST (" in refused("01_baseline", f"--data {root}")


# ---------------------------------------------------------------- as commands


def test_without_mnist_and_network_it_is_one_line(refused, monkeypatch):
    for name, address in NO_NETWORK.items():
        monkeypatch.setenv(name, address)
    line = refused("01_baseline", "--data nowhere")
    assert "--data nowhere: no MNIST (RuntimeError(" in line and "tools/draw_digits.py" in line


@LINUX
def test_a_checkpoint_that_does_not_fit_is_an_error_and_the_record_is_written(reader):
    # No file may have more than 40 KiB: the checkpoint has 118, the record 2.
    result = reader.run("bash -c 'ulimit -f 40; python 01_baseline/train.py -e 1 --device cpu'")
    assert result.code == 1 and "torch.save(parts, args.checkpoint)" in result.err, result
    assert record_of(reader.folder)

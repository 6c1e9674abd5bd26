"""Mistakes that learners really make end in a clear message, before any rank trains."""

import importlib
import shutil

import pytest
import torch
from conftest import LINUX, NO_NETWORK, STAGES, record_of, usage_error

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCRIPTS = ("train.py", "minimal.py")


@pytest.fixture
def on_rank_1_of_2(monkeypatch):
    """The variables of a rank that torchrun has started."""
    for name in TORCHRUN:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.parametrize("stage", STAGES[3:])
@pytest.mark.parametrize("script", SCRIPTS)
def test_without_torchrun(called, monkeypatch, stage, script):
    monkeypatch.delenv("RANK", raising=False)
    usage_error(called(f"{stage}/{script}"), "start it with torchrun, as --help shows")


@pytest.mark.parametrize(
    ("stage", "flags", "told"),
    [
        ("03_ddp_spawn", "--device cpu --world-size 7", "240 is not divisible by 7 ranks"),
        ("04_ddp_torchrun", "--batch-size 25", "25 is not divisible by 2 ranks"),
        ("05_multinode", "--batch-size 1", "1 is not divisible by 2 ranks"),
        ("03_ddp_spawn", "--device cpu --sync-batchnorm", "SyncBatchNorm works on GPUs only"),
    ],
)
def test_flags(called, on_rank_1_of_2, stage, flags, told):
    usage_error(called(f"{stage}/train.py", flags), told)


@pytest.mark.parametrize("stage", STAGES[2:])
@pytest.mark.parametrize("script", SCRIPTS)
def test_more_ranks_than_gpus(called, on_rank_1_of_2, one_gpu, stage, script):
    """NCCL cannot share a GPU. The line names the backend that can."""
    flags = "--world-size 2" if stage == STAGES[2] else ""
    result = called(f"{stage}/{script}", flags)
    usage_error(result, "more ranks than")
    assert "--backend gloo lets" in result.err.splitlines()[-1], result


@pytest.mark.skipif(torch.cuda.is_available(), reason="here --device cuda works")
@pytest.mark.parametrize("stage", STAGES)
def test_cuda_without_a_gpu(called, on_rank_1_of_2, stage):
    usage_error(called(f"{stage}/train.py", "--device cuda"), "invalid choice: 'cuda'")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("flag", ["--record", "--checkpoint"])
def test_a_folder_in_place_of_a_file(called, on_rank_1_of_2, stage, flag):
    usage_error(called(f"{stage}/train.py", f"--device cpu {flag} tools"), "tools is a folder")


def test_the_number_of_ranks_follows_the_device(called, monkeypatch):
    started = []
    stage3 = importlib.import_module("03_ddp_spawn.train")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(stage3.mp, "spawn", lambda worker, args, nprocs: started.append(nprocs))
    assert called("03_ddp_spawn/train.py").code == 0
    assert called("03_ddp_spawn/train.py", "--device cpu").code == 0
    assert started == [4, 2], "on a CPU two, whatever the number of GPUs"


def test_a_folder_that_cannot_be_made_fails_before_the_training(called):
    with pytest.raises(OSError):
        called("01_baseline/train.py", "--checkpoint /dev/null/here/model.pt")


# ---------------------------------------------------------------- data


def no_mnist(result, root):
    """Two lines say what is wrong and what helps, once, and there is no traceback of ours."""
    assert result.code == 1 and result.out == "", result
    first, second = result.err.splitlines()
    assert first.startswith(f"MNIST cannot be read from the folder {root} or downloaded: "), result
    assert second.startswith("Set MNIST_ROOT to a folder that has it."), result


@pytest.mark.parametrize("stage", STAGES)
def test_without_mnist_and_network(reader, called, monkeypatch, on_rank_1_of_2, stage):
    for name, address in NO_NETWORK.items():
        monkeypatch.setenv(name, address)
    monkeypatch.setenv("LOCAL_RANK", "0")  # the rank that downloads
    monkeypatch.setitem(reader.env, "MNIST_ROOT", "nowhere")
    no_mnist(called(f"{stage}/train.py"), "nowhere")


def test_damaged_data(reader, called, monkeypatch, small_data):
    root = reader.folder / "mnist"
    shutil.copytree(small_data, root)
    path = root / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setitem(reader.env, "MNIST_ROOT", str(root))
    no_mnist(called("01_baseline/train.py"), root)


@pytest.mark.slow
def test_two_ranks_without_mnist_do_not_wait_for_each_other(reader):
    command = "torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/train.py --data nowhere"
    result = reader.run(command, **NO_NETWORK)
    assert result.code == 1, result
    assert result.err.count("MNIST cannot be read from the folder nowhere") >= 1, result


@LINUX
def test_a_checkpoint_that_does_not_fit_is_an_error_and_the_record_is_written(reader):
    # No file may have more than 40 KiB: the checkpoint has 118, the record 2.
    result = reader.run("bash -c 'ulimit -f 40; python 01_baseline/train.py -e 1 --device cpu'")
    assert result.code == 1 and "args.checkpoint" in result.err, result
    assert record_of(reader.folder)

"""Bad input ends in one clear line and exit code 2, before anything is started or written."""

import shutil
import struct

import pytest
import torch
from conftest import STAGES

NO_NETWORK = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
FILES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]

FLAGS = [
    ("--batch-size 0", "--batch-size"),
    ("-b -3", "--batch-size"),
    ("--epochs -1", "--epochs"),
    ("--epochs 2.5", "--epochs"),
    ("--lr -0.1", "--lr"),
    ("--lr nan", "--lr"),
    ("--lr fast", "--lr"),
    ("--workers -1", "--workers"),
    ("--threads 0", "--threads"),
    ("--seed -1", "--seed"),
    ("--seed 99999999999999999999", "--seed"),
    ("--device tpu", "--device"),
    ("--no-such-flag", "--no-such-flag"),
    ("--record /dev/null/here", "cannot write to /dev/null/here"),
    ("--checkpoint /dev/null/here/model.pt", "cannot write to /dev/null/here"),
    ("--checkpoint folder", "--checkpoint folder"),
    ("--load nowhere.pt", "--load nowhere.pt"),
    ("--load text.pt", "--load text.pt"),
    ("--load other.pt", "--load other.pt"),
    ("--load folder", "--load folder"),
]
FLAGS_OF_DDP = [
    ("--amp fp8", "--amp"),
    ("--timeout 0", "--timeout"),
    ("--timeout soon", "--timeout"),
    ("--batch-size 121", "120"),  # the nearest that divides
    ("--batch-size 1", "2"),
]
FLAGS_OF_STAGE = {
    "01_baseline": [("--amp bf16", "--amp"), ("--world-size 2", "--world-size")],
    "02_dp": [("--amp bf16", "--amp")],
    "03_ddp_spawn": [("--world-size 0", "--world-size"), ("--world-size 7", "119")],
    "04_ddp_torchrun": [
        ("--target-accuracy 1.5", "--target-accuracy"),
        ("--tensorboard /dev/null/here", "cannot write to /dev/null/here"),
    ],
    "05_multinode": [
        ("--target-accuracy -1", "--target-accuracy"),
        ("--snapshot-every 3", "give --snapshot PATH"),
        ("--snapshot-every 0 --snapshot s", "--snapshot-every"),
        ("--snapshot folder", "is a folder"),
        ("--snapshot /dev/null/s", "cannot write"),
    ],
}
ALL_FLAGS = [
    (stage, flags, says)
    for stage in STAGES
    for flags, says in FLAGS + FLAGS_OF_STAGE[stage] + (FLAGS_OF_DDP if stage > "03" else [])
]


@pytest.fixture
def folder(reader):
    """The reader's folder, with files that are not checkpoints in it."""
    (reader.folder / "folder").mkdir()
    (reader.folder / "text.pt").write_text("not a checkpoint")
    torch.save({"model": {"weight": torch.zeros(3)}}, reader.folder / "other.pt")
    return reader.folder


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def refused(folder, called, monkeypatch):
    """Call a stage's main() in this process -> the one line with which it refused."""

    def call(stage, flags):
        ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        for name, value in (ranks | {"GROUP_WORLD_SIZE": 1}).items():
            monkeypatch.setenv(name, str(value))
        before = contents(folder)
        result = called(f"{stage}/train.py", flags)
        assert result.code == 2, result
        assert contents(folder) == before, "nothing is left behind"
        assert result.err.startswith(f"{stage}: error: ") and result.err.count("\n") == 1, result
        return result.err

    return call


@pytest.mark.parametrize(("stage", "flags", "says"), ALL_FLAGS)
def test_flags(refused, stage, flags, says):
    assert says in refused(stage, flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here --device cuda works")
@pytest.mark.parametrize("stage", STAGES)
def test_cuda_without_cuda(refused, stage):
    assert "no CUDA device" in refused(stage, "--device cuda")


@pytest.mark.parametrize("stage", STAGES[2:])
def test_more_ranks_than_gpus(refused, stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    flags = "--device cuda" + (" --world-size 2" if stage == "03_ddp_spawn" else "")
    assert "1 GPUs, and each rank needs its own" in refused(stage, flags)


@pytest.mark.parametrize("stage", STAGES[2:])
def test_bf16_on_a_gpu_that_lacks_it(refused, stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert "--amp bf16" in refused(stage, "--device cuda --amp bf16")


def test_a_batch_that_the_gpus_of_stage_2_do_not_divide(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert "128 does" in refused("02_dp", "--device cuda --batch-size 125")


# ---------------------------------------------------------------- data


def damage(root, file, how):
    path = root / "MNIST" / "raw" / f"{file}-ubyte"
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(whole[:-100])
    elif how == "too long":
        path.write_bytes(whole + b"more")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("<html>404 Not Found</html>")


@pytest.mark.parametrize("how", ["missing", "truncated", "too long", "empty", "text"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_named(refused, small_data, tmp_path_factory, file, how):
    root = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(small_data, root)
    damage(root, file, how)
    line = refused("01_baseline", f"--data {root}")
    assert f"{file}-ubyte is missing or damaged" in line


def test_labels_that_do_not_go_with_the_images(refused, small_data, tmp_path_factory):
    root = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(small_data, root)
    labels = struct.pack(">4BI", 0, 0, 8, 1, 10) + bytes(range(10))
    (root / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(labels)
    assert "1,200 images do not go with 10 labels" in refused("01_baseline", f"--data {root}")


@pytest.mark.parametrize("stage", STAGES)
def test_damaged_data_in_every_stage(refused, small_data, tmp_path_factory, stage):
    root = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(small_data, root)
    damage(root, FILES[2], "truncated")
    assert f"{FILES[2]}-ubyte is missing or damaged" in refused(stage, f"--data {root}")


# ---------------------------------------------------------------- as commands


@pytest.mark.parametrize(
    ("stage", "flags", "says"),
    [
        ("01_baseline", "--no-such-flag", "--no-such-flag"),
        ("01_baseline", "--data nowhere", "python tools/draw_digits.py data/drawn"),
        ("02_dp", "--record /dev/null/here", "cannot write"),
        ("03_ddp_spawn", "--batch-size 121", "120"),
        ("03_ddp_spawn", "--load text.pt", "--load text.pt"),
    ],
)
def test_a_command_is_refused_in_one_line(reader, folder, stage, flags, says):
    before = contents(folder)
    result = reader.run(f"python {stage}/train.py {flags}", **NO_NETWORK)
    assert result.code == 2, result
    assert says in result.err and result.err.count("\n") == 1, result
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("stage", "flags"),
    [
        ("04_ddp_torchrun", "--batch-size 121"),
        ("05_multinode", "--data nowhere"),
    ],
)
def test_under_torchrun_one_rank_speaks_once_above_the_report(reader, folder, stage, flags):
    before = contents(folder)
    result = reader.stage(stage, flags, **NO_NETWORK)
    assert result.code == 1, result
    hosts = 2 if stage == "05_multinode" else 1
    assert result.err.count(f"{stage}: error: ") == hosts, result
    for report in result.err.split(f"{stage}: error: ")[:1]:
        assert "Traceback" not in report, "the line stands above torchrun's own report"
    assert "RuntimeError" not in result.err, "no rank had begun to talk to another"
    assert contents(folder) == before

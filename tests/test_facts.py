"""Facts that pages state about PyTorch, and that no example on them runs."""

import io
import warnings
import zipfile

import pytest
import torch
import torch.nn as nn
from torch.distributed import run


def test_data_parallel_does_not_warn_and_its_replicas_have_no_parameters():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.DataParallel(nn.Linear(1, 1))
    replica = nn.Linear(1, 1)._replicate_for_data_parallel()  # torch.nn.parallel.replicate calls it
    with pytest.raises(StopIteration):
        next(replica.parameters())


def test_torch_load_compares_no_checksums():
    file, weights = io.BytesIO(), torch.arange(1000.0)
    torch.save(weights, file)
    damaged = bytearray(file.getvalue())
    damaged[damaged.index(weights.numpy().tobytes()) + 2002] ^= 1  # one bit
    assert (torch.load(io.BytesIO(damaged)) != weights).sum() == 1
    assert zipfile.ZipFile(io.BytesIO(damaged)).testzip()


@pytest.mark.parametrize(
    ("flags", "endpoint", "warns"),
    [
        ("", "localhost:0", False),
        ("--master-port 29511", "127.0.0.1:29511", False),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1 --node-rank 0", "a:1", False),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1 --node-rank 1", "a:1", True),
    ],
)
def test_what_torchrun_makes_of_its_flags(monkeypatch, caplog, flags, endpoint, warns):
    found = []
    monkeypatch.setattr(run, "elastic_launch", lambda **given: lambda *_: found.append(given))
    run.run(run.parse_args([*flags.split(), "script.py"]))
    assert found[0]["config"].rdzv_endpoint == endpoint
    assert ("node_rank is only used for static" in caplog.text) == warns

"""Before the job: no alarm on sound nodes, and what is wrong is found by its name."""

import socket
from argparse import Namespace

import pytest
import torch.distributed as dist
from conftest import DOCTOR
from ddp_doctor import preflight
from ddp_doctor.__main__ import NEEDED

FLAGS = "preflight --device cpu --timeout 60"
NODE = {"versions": "torch 2.0", "data": "crc32 1", "own name": "a is 10.0.0.1"}


def test_two_sound_ranks(user):
    line = f"torchrun --standalone --nproc-per-node 2 {DOCTOR} {FLAGS} --data {DOCTOR}/ddp_doctor"
    done = user.run(*line.split())
    assert done.returncode == 0 and done.stdout.count("\nok ") == 5, done
    assert done.stdout.endswith("preflight: all checks pass\n"), done


@pytest.mark.parametrize("check, found", [("versions", "torch 1.0"), ("data", "crc32 2")])
def test_nodes_that_do_not_agree(check, found, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = {0: {"node": "a", **NODE}, 1: {"node": "b", **NODE, check: found}}
    assert preflight.compare(ranks)
    out = capsys.readouterr().out
    assert out.count("FAILED") == 1 and f"b: {found}" in out and preflight.TO_DO[check] in out


def test_a_folder_is_compared_by_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    before = preflight.look_at_data(tmp_path)
    (tmp_path / "a").write_text("2")
    after = preflight.look_at_data(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({before, after, preflight.look_at_data(tmp_path)}) == 3
    assert preflight.look_at_data(tmp_path / "none").startswith("no files in ")


def test_wrong_sums_are_counted(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in zip(NEEDED, ("0", "1", "0", "1", "127.0.0.1", str(port))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "all_reduce", lambda vector: vector[-1:].add_(1))
    try:
        result = preflight.measure(Namespace(device="cpu", timeout=60))
    finally:
        dist.destroy_process_group()
    assert result["error"] == "1 wrong numbers"

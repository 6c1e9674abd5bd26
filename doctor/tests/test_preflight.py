"""Before the job: no alarm on sound nodes, and what is wrong is found by its name."""

import socket
from argparse import Namespace

import pytest
import torch.distributed as dist
from conftest import DOCTOR
from ddp_doctor.__main__ import NEEDED
from ddp_doctor.preflight import host, nodes

FLAGS = "preflight --device cpu --timeout 60"
NODE = {"versions": "torch 2.0", "data": "crc32 1", "own name": "a is 10.0.0.1"}


def test_two_sound_ranks(user):
    torchrun = "torchrun --standalone --nproc-per-node 2".split()
    done = user.run(*torchrun, DOCTOR, *FLAGS.split(), "--data", DOCTOR / "ddp_doctor")
    assert done.returncode == 0 and done.stdout.count("\nok ") == 6, done
    assert done.stdout.endswith("preflight: all checks pass\n"), done


@pytest.mark.parametrize("check, found", [("versions", "torch 1.0"), ("data", "crc32 2")])
def test_nodes_that_do_not_agree(check, found, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = {0: {"node": "a", **NODE}, 1: {"node": "b", **NODE, check: found}}
    assert nodes.compare(ranks)
    out = capsys.readouterr().out
    assert out.count("FAILED") == 1 and f"b: {found}" in out and nodes.TO_DO[check] in out


def test_a_folder_is_compared_by_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    before = nodes.look_at_data(tmp_path)
    (tmp_path / "a").write_text("2")
    after = nodes.look_at_data(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({before, after, nodes.look_at_data(tmp_path)}) == 3
    assert nodes.look_at_data(tmp_path / "none").startswith("no files in ")


def test_wrong_sums_are_counted(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in zip(NEEDED, ("0", "1", "0", "1", "127.0.0.1", str(port))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "all_reduce", lambda vector: vector[-1:].add_(1))
    try:
        result = nodes.measure(Namespace(device="cpu", timeout=60))
    finally:
        dist.destroy_process_group()
    assert result["error"] == "1 wrong numbers"


def test_the_bandwidth_is_that_of_nccl_tests():
    """On 2 ranks busbw is the data over the time, on 8 ranks 1.75 times as much."""
    assert nodes.busbw(1e9, 1, 2) == 1
    assert nodes.busbw(1e9, 1, 8) == 1.75


@pytest.mark.parametrize(("least", "failed"), [(None, False), (0.1, False), (100, True)])
def test_a_network_that_is_too_slow(least, failed, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    result = {"large": 25, "huge": 250, "transport": "gloo over TCP"}
    assert nodes.judge_bandwidth({0: result, 1: result}, least) == failed
    out = capsys.readouterr().out
    assert "1.07 GB/s for 256 MiB" in out and out.startswith("FAILED" if failed else "ok")


# ---------------------------------------------------------------- one machine


def test_one_machine(user):
    done = user.run("python", str(DOCTOR), "preflight")
    assert done.returncode in (0, 1), done
    for check in ("cores", "open files", "/dev/shm", "memory", "card", "own name", "IPv6"):
        assert check in done.stdout, done
    last = done.stdout.splitlines()[-1]
    assert last.startswith("preflight: FAILED" if done.returncode else "preflight: this machine is")


GIB = 2**30


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (host.judge_cores(2, 64, None, 8), "warn"),
        (host.judge_cores(64, 64, 4, 8), "warn"),
        (host.judge_cores(64, 64, None, 8), "ok"),
        (host.judge_open_files(1024), "warn"),
        (host.judge_open_files(128), "FAILED"),
        (host.judge_open_files(-1), "ok"),
        (host.judge_shared_memory(64 * 2**20, 60 * 2**20), "warn"),
        (host.judge_shared_memory(64 * 2**20, 0), "FAILED"),
        (host.judge_memory(64 * GIB, 3 * GIB, 8), "warn"),
        (host.judge_memory(64 * GIB, None, 8), "ok"),
        (host.judge_card(0, "0000:01:00", "A", (8, 6), ["sm_80", "sm_90"]), "ok"),
        (host.judge_card(0, "0000:01:00", "A", (12, 0), ["sm_80", "compute_90"]), "ok"),
        (host.judge_card(0, "0000:01:00", "A", (12, 0), ["sm_80", "sm_90a"]), "FAILED"),
        (
            host.judge_card(0, "0000:01:00", "A", (7, 0), ["sm_75", "compute_75"]),
            "FAILED",
        ),
        (host.judge_name("a", []), "FAILED"),
        (host.judge_name("a", ["127.0.1.1"]), "warn"),
        (host.judge_name("a", ["10.0.0.1", "127.0.1.1"]), "ok"),
    ],
)
def test_what_is_too_little(result, level):
    assert result.level == level and bool(result.to_do) == (level != "ok")


def test_cards_in_two_orders():
    assert host.judge_order({"A", "B"}, None)[0].level == "warn"
    assert not host.judge_order({"A", "B"}, "PCI_BUS_ID")

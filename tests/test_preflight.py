"""Before the job: no alarm on sound nodes, and what is wrong is found by its name."""

import importlib
from argparse import Namespace

import pytest
import torch.distributed as dist
from conftest import NEEDS_HOSTS, NET, free_port, hosts, one_line

preflight = importlib.import_module("05_multinode.rehearsal.preflight")

SCRIPT = "05_multinode/rehearsal/preflight.py --device cpu --timeout 60"
NODE = {"versions": "torch 2.0", "data": "crc32 1", "own name": "a is 10.0.0.1"}


def test_two_sound_torchruns(reader):
    result = reader.finish_all(reader.start_nodes(SCRIPT, 1, [{}, {}]))
    assert result.code == 0 and result.out.count("\nok ") == 5, result
    assert result.out.endswith("preflight: all checks pass\n"), result


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_name_that_leads_to_the_wrong_address(reader):
    with hosts.hosts_for_a_while(2, NET) as net:
        file = net.etc_hosts("host1")
        file.write_text(file.read_text().replace("10.5.0.2 host1", "127.0.1.1 host1"))
        line = "exec torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
        command = ["sh", "-c", f"{line} --rdzv-endpoint host0:29500 {SCRIPT}"]
        options = {"cwd": reader.folder, "env": reader.env, "stdout": -1, "text": True}
        started = [net.start(name, command, **options) for name in net.names()]
        (first, _), (second, _) = (process.communicate(timeout=150) for process in started)
    assert "host1 is 127.0.1.1, but others reach it at 10.5.0.2" in first
    assert first.endswith("preflight: FAILED\n") and second == ""
    assert [process.returncode for process in started] == [1, 1]


@pytest.mark.parametrize("check, found", [("versions", "torch 1.0"), ("data", "crc32 2")])
def test_nodes_that_do_not_agree(check, found, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = {0: {"node": "a", **NODE}, 1: {"node": "b", **NODE, check: found}}
    assert preflight.compare(ranks)
    out = capsys.readouterr().out
    assert out.count("FAILED") == 1 and f"b: {found}" in out and preflight.TO_DO[check] in out


def test_wrong_sums_are_counted(monkeypatch):
    for name, value in zip(preflight.NEEDED, ("0", "1", "0", "1", "127.0.0.1", str(free_port()))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "all_reduce", lambda vector: vector[-1:].add_(1))
    try:
        result = preflight.measure(Namespace(device="cpu", timeout=60))
    finally:
        dist.destroy_process_group()
    assert result["error"] == "1 wrong numbers"


@pytest.mark.parametrize(
    "flags, words", [("--timeout 0", "from 1 to 600"), ("", "RANK, WORLD_SIZE")]
)
def test_bad_input(called, flags, words):
    one_line(called("05_multinode/rehearsal/preflight.py", flags), "preflight", words)

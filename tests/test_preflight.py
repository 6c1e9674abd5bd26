"""Before the job: no alarm on sound nodes, and every fault that is put in is found by its name."""

import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import NEEDS_HOSTS, Result, free_port, hosts, one_line

preflight = importlib.import_module("05_multinode.rehearsal.preflight")

NET = f"pre{os.getpid()}"  # tests that run at the same time have nets of their own
TORCHRUN = "exec torchrun --nnodes 2 --nproc-per-node {ranks} --rdzv-backend c10d"


class Nodes:
    """Two hosts of hosts.py, and what runs preflight on them."""

    def __init__(self, net, reader):
        self.net, self.reader, self.folder = net, reader, Path(reader.folder)

    def torchrun(self, flags="", endpoint="host0:29500", ranks=(1, 1), **env):
        """The job's line on both nodes -> [Result, Result]; env: {name of a node: environment}"""
        processes = {}
        for name, number in zip(("host0", "host1"), ranks):
            line = TORCHRUN.format(ranks=number) + f" --rdzv-endpoint {endpoint} "
            line += f"05_multinode/rehearsal/preflight.py --device cpu {flags}"
            own = self.reader.env | env.get(name, {})
            with open(self.folder / f"{name}.out", "w") as out:
                with open(self.folder / f"{name}.err", "w") as err:
                    options = {"cwd": self.folder, "stdout": out, "stderr": err}
                    processes[name] = self.net.start(name, ["sh", "-c", line], env=own, **options)
        return [self.finish(name, process) for name, process in processes.items()]

    def finish(self, name, process):
        code = process.wait(120)
        out, err = ((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))
        return Result(code, out, err)

    def resolve(self, on, name, address):
        """On this node the name leads to that address; without one, nowhere."""
        path = self.net.etc_hosts(on)
        lines = [line for line in path.read_text().splitlines() if line.split()[1] != name]
        path.write_text("\n".join(lines + [f"{address} {name}"] * bool(address)) + "\n")


@pytest.fixture
def nodes(reader):
    with hosts.hosts_for_a_while(2, NET) as net:
        yield Nodes(net, reader)


def at_start(folder, code):
    """-> environment in which the ranks of preflight, and only they, begin with this code"""
    folder.mkdir()
    body = code.strip().replace("\n", "\n    ")
    condition = 'os.environ.get("RANK") and "preflight.py" in " ".join(sys.orig_argv)'
    (folder / "sitecustomize.py").write_text(f"import os, sys\nif {condition}:\n    {body}\n")
    return {"PYTHONPATH": str(folder)}


def rows(result, status="FAILED"):
    """What the table has with this status: {check: what was found, on several lines perhaps}"""
    row = rf"^{status} +(\S+(?: \S+)*)  +(.*(?:\n {{12,}}\S.*)*)"
    return dict(re.findall(row, result.out, re.MULTILINE))


def failed(result, faults):
    """Just these checks have failed: {check: words that its row has}; each with what to do."""
    assert result.code == 1 and 'preflight.py", line' not in result.err, result
    assert set(rows(result)) == set(faults), result
    for check, words in faults.items():
        assert words in rows(result)[check], result
    assert result.out.count("\n        to do ") >= len(faults), result
    assert result.out.endswith(f"preflight: FAILED: {', '.join(rows(result))}\n"), result


@pytest.mark.slow
@NEEDS_HOSTS
def test_no_alarm_on_sound_nodes(nodes):
    first, second = nodes.torchrun("--timeout 60")
    assert first.code == 0 and first.out.endswith("preflight: all sound\n"), first
    assert "Traceback" not in first.err and not rows(first)
    assert (second.code, second.out) == (0, "")
    checks = {"nodes", "versions", "device", "own name", "data", "paths", "all-reduce"}
    assert checks <= set(rows(first, "ok"))
    assert "host1 is 10.5.0.2" in rows(first, "ok")["own name"]


@NEEDS_HOSTS
@pytest.mark.slow
def test_names_that_are_wrong(nodes):
    nodes.resolve("host1", "host1", "127.0.1.1")
    first, second = nodes.torchrun("--timeout 5")
    assert rows(first)["own name"].endswith("host1 is 127.0.1.1, the others reach it at 10.5.0.2")
    assert first.code == 1 and second.out == "", first
    nodes.resolve("host1", "host1", "10.5.0.2")
    nodes.resolve("host1", "host0", None)
    first, second = nodes.torchrun("--timeout 5", endpoint="10.5.0.1:29500")
    assert "nothing from rank 1" in rows(first)["nodes"], first
    failed(second, {"store": "the name host0 does not resolve"})


@NEEDS_HOSTS
@pytest.mark.slow
def test_nodes_that_are_not_alike(nodes, small_data, tmp_path):
    """Several faults at once: each has a row of its own."""
    shutil.copytree(small_data, tmp_path / "other")
    labels = tmp_path / "other/MNIST/raw/t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x0b")
    code = """
import torch
torch.__version__ = "2.0.0"
import torch.distributed as dist
right = dist.all_reduce
def wrong(vector):
    right(vector)
    vector[-1] += 1
dist.all_reduce = wrong"""
    env = at_start(tmp_path / "code", code) | {"MNIST_ROOT": str(tmp_path / "other")}
    first, _ = nodes.torchrun("--timeout 60", ranks=(1, 2), host1=env)
    faults = {"versions": "host1 (10.5.0.2): Python", "data": "host1 (10.5.0.2): crc32"}
    faults["all-reduce"] = "rank 2: 1 wrong numbers"
    failed(first, faults)
    assert "torch 2.0.0" in rows(first)["versions"]


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_port_that_is_closed_in_one_direction(nodes, tmp_path):
    """On host1 nothing can be reached at the address that the others were told."""
    code = """
import socket
right = socket.create_server
def closed(*arguments, **more):
    server = right(*arguments, **more)
    taken, server = server, right(("127.0.0.1", 0))
    return server
socket.create_server = closed"""
    first, _ = nodes.torchrun("--timeout 30", host1=at_start(tmp_path / "code", code))
    failed(first, {"paths": "host0 (10.5.0.1) -> host1 (10.5.0.2): Connection refused"})


@pytest.mark.slow
def test_two_torchruns_on_one_machine(reader):
    """As in a first try, whatever this machine's name leads to: there a loopback will do."""
    meet = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    line = f"torchrun --nnodes 2 --nproc-per-node 1 {meet} 05_multinode/rehearsal/preflight.py"
    line += " --timeout 60 --device cpu"
    # torch's own store of rank 0, as launch/torchrun.sh sets it for restarts
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    result = reader.finish_all([reader.start(line, **env) for _ in range(2)])
    assert result.code == 0 and {"nodes", "all-reduce"} <= set(rows(result, "ok")), result


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--timeout 0", "--timeout 0.0: from 1 to 600 seconds"),
        ("--device cpu", "start it with torchrun"),
    ],
)
def test_bad_input(flags, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["preflight.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        preflight.parse_args()
    one_line(Result(stopped.value.code, *capsys.readouterr()), "preflight", words)


def test_a_rank_has_a_gpu_with_an_index(monkeypatch):
    """PyTorch refuses a device_id without one. With too few GPUs ranks share them."""
    chosen = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [preflight.rank_device("cuda")] == chosen == [torch.device("cuda", 1)]

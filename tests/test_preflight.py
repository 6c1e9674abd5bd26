"""Before the job: no alarm on sound nodes, and every fault that is put in is found by its name."""

import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import NEEDS_HOSTS, Result, free_port, hosts, one_line, wait_for

preflight = importlib.import_module("05_multinode.rehearsal.preflight")

NET = f"pre{os.getpid()}"  # tests that run at the same time have nets of their own
ALONE = "exec python 05_multinode/rehearsal/preflight.py --device cpu"
TORCHRUN = "exec torchrun --nnodes 2 --nproc-per-node {ranks} --rdzv-backend c10d"
HOLD = """
import pathlib, time
pathlib.Path("held").touch()
while not pathlib.Path("cut").exists():
    time.sleep(0.05)
"""


class Nodes:
    """Two hosts of hosts.py, and what runs preflight on them."""

    def __init__(self, net, reader):
        self.net, self.reader, self.folder = net, reader, Path(reader.folder)

    def start(self, name, line, **env):
        """A shell line on a node -> its process; stdout and stderr go to files."""
        with open(self.folder / f"{name}.out", "w") as out:
            with open(self.folder / f"{name}.err", "w") as err:
                options = {"cwd": self.folder, "stdout": out, "stderr": err}
                return self.net.start(
                    name, ["sh", "-c", line], env=self.reader.env | env, **options
                )

    def finish(self, name, process):
        code = process.wait(120)
        out, err = ((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))
        return Result(code, out, err)

    def alone(self, name, flags="", **env):
        return self.finish(name, self.start(name, f"{ALONE} {flags}", **env))

    def torchrun(self, flags="", endpoint="host0:29500", cut=None, ranks=(1, 1), **env):
        """The job's line on both nodes -> [Result, Result]; env: {name of a node: environment}"""
        processes = {}
        for name, number in zip(("host0", "host1"), ranks):
            line = TORCHRUN.format(ranks=number) + f" --rdzv-endpoint {endpoint} "
            line += f"05_multinode/rehearsal/preflight.py --device cpu {flags}"
            processes[name] = self.start(name, line, **env.get(name, {}))
        if cut:
            self.cut(cut, processes[cut])
        return [self.finish(name, process) for name, process in processes.items()]

    def cut(self, name, process):
        """Cut a node off while its rank is held; when the rank has printed, end its torchrun."""
        wait_for((self.folder / "held").exists)
        self.net.cut(name)
        (self.folder / "cut").touch()
        wait_for(lambda: "\npreflight: " in (self.folder / f"{name}.out").read_text())
        os.killpg(process.pid, signal.SIGKILL)  # it would look for the other node for minutes

    def resolve(self, on, name, address):
        """On this node the name leads to that address; without one, nowhere."""
        path = self.net.etc_hosts(on)
        lines = [line for line in path.read_text().splitlines() if line.split()[1] != name]
        path.write_text("\n".join(lines + [f"{address} {name}"] * bool(address)) + "\n")

    @contextmanager
    def waiting_torchrun(self):
        """On host0 a torchrun waits for host1."""
        line = TORCHRUN.format(ranks=1) + " --rdzv-endpoint host0:29500 /dev/null"
        waiting = self.start("host0", line)
        call = [sys.executable, "-c", "import socket; socket.create_connection(('host0', 29500))"]
        try:
            wait_for(lambda: self.net.start("host1", call, stderr=subprocess.DEVNULL).wait(30) == 0)
            yield waiting
        finally:
            os.killpg(waiting.pid, signal.SIGKILL)
            waiting.wait(30)


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


def sound(result):
    assert result.code == 0 and "Traceback" not in result.err, result
    assert not rows(result) and result.out.endswith("preflight: all sound\n"), result


def failed(result, faults, code=1):
    """Just these checks have failed: {check: words that its row has}; each with what to do."""
    assert result.code == code and 'preflight.py", line' not in result.err, result
    assert set(rows(result)) == set(faults), result
    for check, words in faults.items():
        assert words in rows(result)[check], result
    assert result.out.count("\n        to do ") >= len(faults), result
    assert result.out.endswith(f"preflight: FAILED: {', '.join(rows(result))}\n"), result


@pytest.mark.slow
@NEEDS_HOSTS
def test_no_alarm_on_sound_nodes(nodes):
    first, second = nodes.torchrun("--timeout 60")
    sound(first)
    assert (second.code, second.out) == (0, "")
    assert {"nodes", "versions", "data", "paths", "all-reduce"} <= set(rows(first, "ok"))
    assert "host1 is 10.5.0.2" in rows(first, "ok")["own name"]


@pytest.mark.slow
@NEEDS_HOSTS
def test_the_endpoint_of_a_torchrun_that_waits(nodes):
    """Also where small packets pass and large ones do not: torchrun fails on such a path."""
    with nodes.waiting_torchrun():
        result = nodes.alone("host1", "--endpoint host0:29500 --timeout 60")
        sound(result)
        assert "torchrun waits at host0:29500" in rows(result, "ok")["endpoint"]
        mtu = ["ip", "-n", f"{NET}-switch", "link", "set", "host1", "mtu", "600"]
        subprocess.run(mtu, check=True, timeout=30)
        result = nodes.alone("host1", "--endpoint host0:29500")
        failed(result, {"endpoint": "small packets pass, large ones"})
        assert "MTU" in rows(result)["endpoint"] and "ping -M do" in result.out


@NEEDS_HOSTS
@pytest.mark.slow
def test_endpoints_that_are_wrong(nodes):
    faults = {"endpoint": "host0:29500 (10.5.0.1): Connection refused"}
    failed(nodes.alone("host1", "--endpoint host0:29500"), faults)
    nodes.net.cut("host1")
    result = nodes.alone("host1", "--endpoint host0:29500 --timeout 3")
    failed(result, {"endpoint": "host0:29500 (10.5.0.1): "})
    nodes.resolve("host1", "host0", "127.0.1.1")
    nodes.resolve("host1", "host1", None)
    faults = {"endpoint": "every node would wait for itself", "own name": "host1 does not resolve"}
    failed(nodes.alone("host1", "--endpoint host0:29500"), faults)
    nodes.resolve("host1", "host1", "10.5.0.9")
    faults = {
        "endpoint": "the name host9 does not resolve",
        "own name": "host1 is 10.5.0.9, and no",
    }
    failed(nodes.alone("host1", "--endpoint host9:29500"), faults)


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_rank_whose_torchrun_was_killed(nodes):
    line = "import time, sys; print('trains', flush=True); time.sleep(100)"
    (nodes.folder / "script.py").write_text(line)
    process = nodes.start("host0", "exec torchrun --nproc-per-node 1 script.py")
    wait_for(lambda: "trains" in (nodes.folder / "host0.out").read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    sound(nodes.alone("host1"))
    result = nodes.alone("host0")
    failed(result, {"orphans": "script.py"})
    pid = int(rows(result)["orphans"].split("pid ")[1].split()[0])
    assert f"kill {pid}\n" in result.out
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    sound(nodes.alone("host0"))


@NEEDS_HOSTS
@pytest.mark.slow
def test_names_and_interfaces_that_are_wrong(nodes):
    nodes.resolve("host1", "host1", "127.0.1.1")
    env = {"host0": {"GLOO_SOCKET_IFNAME": "eth9"}, "host1": {"NCCL_SOCKET_IFNAME": "lo"}}
    first, second = nodes.torchrun(**env)
    faults = {"own name": "host1 is 127.0.1.1, a loopback"}
    faults |= {"GLOO_SOCKET_IFNAME": "eth9, and no", "NCCL_SOCKET_IFNAME": "lo, a loopback"}
    failed(first, faults)
    assert "not tried" in rows(first, "note")["all-reduce"]
    assert (second.code, second.out) == (1, "")
    nodes.resolve("host1", "host1", "10.5.0.2")
    nodes.resolve("host1", "host0", None)
    first, second = nodes.torchrun("--timeout 5", endpoint="10.5.0.1:29500")
    failed(first, {"nodes": "nothing from rank 1"})
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
    env |= {"GLOO_SOCKET_IFNAME": "eth0"}
    first, _ = nodes.torchrun("--timeout 60", ranks=(1, 2), host1=env)
    faults = {"versions": "host1 (10.5.0.2): Python", "ranks": "host1 (10.5.0.2): 2 per node"}
    faults |= {"data": "host1 (10.5.0.2): crc32", "all-reduce": "rank 2: 1 wrong numbers"}
    failed(first, faults)
    assert "torch 2.0.0" in rows(first)["versions"]
    assert {"GLOO_SOCKET_IFNAME", "paths"} <= set(rows(first, "ok"))


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.parametrize(
    "before, fault",
    [("facts", {"nodes": "nothing from rank 1"}), ("sum", {"all-reduce": "rank 1: no answer"})],
)
def test_a_node_that_is_cut_off(nodes, tmp_path, before, fault):
    if before == "facts":
        code = HOLD
    else:
        hold = HOLD.replace("\n", "\n    ")
        code = f"import torch.distributed as dist\nright = dist.all_reduce\ndef held(vector):{hold}"
        code += "right(vector)\ndist.all_reduce = held"
    env = at_start(tmp_path / "code", code)
    first, second = nodes.torchrun("--timeout 4", cut="host1", host1=env)
    failed(first, fault)
    failed(second, {"store": "10.5.0.1" if before == "facts" else "does not answer"}, code=-9)


@pytest.mark.slow
def test_two_torchruns_on_one_machine(reader):
    """As in a first try, whatever this machine's name leads to: there a loopback will do."""
    meet = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    line = f"torchrun --nnodes 2 --nproc-per-node 1 {meet} 05_multinode/rehearsal/preflight.py"
    line += " --timeout 60 --device cpu"
    # torch's own store of rank 0, as launch/torchrun.sh sets it for restarts
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    result = reader.finish_all([reader.start(line, **env) for _ in range(2)])
    assert "preflight: FAILED: orphans" in result.out or result.code == 0, result
    assert {"nodes", "all-reduce"} <= set(rows(result, "ok"))


def test_a_port_that_another_program_holds(reader):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"python 05_multinode/rehearsal/preflight.py --endpoint 127.0.0.1:{port} --timeout 2"
        result = reader.run(f"{line} --device cpu")
    assert result.code == 1 and "Traceback" not in result.err, result
    assert (
        f"held by pid {os.getpid()}" in rows(result)["endpoint"]
        and f"kill {os.getpid()}" in result.out
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--endpoint host0", "argument --endpoint: HOST:PORT is needed"),
        ("--endpoint host0:0", "argument --endpoint: HOST:PORT is needed"),
        ("--timeout 0", "--timeout 0.0: from 1 to 600 seconds"),
        ("--timeout soon", "argument --timeout: invalid float value: 'soon'"),
        ("--device tpu", "argument --device"),
        ("host0:29500", "unrecognized arguments: host0:29500"),
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
    assert preflight.rank_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    "check, first, second, status",
    [
        ("data", ("ok", "crc32 1"), ("ok", "crc32 1"), "ok"),
        ("data", ("ok", "crc32 1"), ("ok", "crc32 2"), "FAILED"),
        ("data", ("ok", "crc32 1"), ("note", "no such file"), "note"),
        ("GPUs", ("ok", "8: H200"), ("ok", "8: H100"), "note"),
        ("GPUs", ("ok", "8: H200"), ("FAILED", "7: H200"), "FAILED"),
        ("device", ("ok", "cpu"), ("ok", "cuda"), "FAILED"),
        ("orphans", ("ok", "none"), ("FAILED", "pid 5"), "FAILED"),
    ],
)
def test_what_two_nodes_report(check, first, second, status):
    reports = [
        {"label": label, "findings": {check: (*found, "repair it")}}
        for label, found in (("a", first), ("b", second))
    ]
    (finding,) = preflight.compare(reports, several=True)
    assert finding.status == status and finding.found.count("\n") == (first != second)


def test_data_that_is_missing(small_data, tmp_path):
    assert preflight.look_at_data(tmp_path)[0] == "note"
    assert preflight.look_at_data(small_data / "MNIST/raw")[0] == "ok"


@pytest.mark.parametrize(
    "variable, setting, status",
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth", "FAILED"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth", "FAILED"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", "ok"),
        ("NCCL_SOCKET_IFNAME", "lo", "FAILED"),
    ],
)
def test_interfaces(variable, setting, status, monkeypatch):
    there = {"lo": ["127.0.0.1"], "eth0": ["10.5.0.1"]}
    monkeypatch.setattr(preflight, "interface_addresses", lambda: there)
    monkeypatch.setenv(variable, setting)
    address, findings = preflight.look_at_network("cpu", 5)
    assert (address, findings[variable][0]) == ("10.5.0.1", status)

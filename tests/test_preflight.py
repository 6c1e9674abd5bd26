"""Before the job: no alarm on sound hosts, and every fault that is put in is found by its name."""

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import NEEDS_HOSTS, Result, free_port, hosts, one_line, wait_for

preflight = importlib.import_module("05_multinode.rehearsal.preflight")

NET = f"pre{os.getpid()}"  # tests that run at the same time have nets of their own
PREFLIGHT = "05_multinode/rehearsal/preflight.py"
ALONE = f"python {PREFLIGHT}"
TORCHRUN = "exec torchrun --nnodes 2 --nproc-per-node {ranks} --rdzv-backend c10d"
LISTEN = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); print(s)"
LISTEN += "; time.sleep(60)"
HOLD = """
import pathlib, time
pathlib.Path("held").touch()
while not pathlib.Path("cut").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def net():
    with hosts.hosts_for_a_while(2, NET):
        yield hosts.Hosts(NET)


class Pair:
    """Two hosts, and what runs preflight on them."""

    def __init__(self, net, reader):
        self.net, self.reader, self.patience = net, reader, 120

    def start(self, name, line, **env):
        """A shell line on a host -> its process; stdout and stderr go to files."""
        out, err = (Path(self.reader.folder, f"{name}.{kind}") for kind in ("out", "err"))
        with open(out, "w") as stdout, open(err, "w") as stderr:
            return self.net.start(
                name,
                ["sh", "-c", line],
                cwd=self.reader.folder,
                env=self.reader.env | env,
                stdout=stdout,
                stderr=stderr,
            )

    def finish(self, name, process):
        code = process.wait(self.patience)
        folder = Path(self.reader.folder)
        out, err = ((folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))
        return Result(code, out, err, 0)

    def alone(self, name, flags, **env):
        return self.finish(name, self.start(name, f"exec {ALONE} {flags}", **env))

    def torchrun(self, flags="", endpoint="host0:29500", cut=None, **special):
        """The job's line on both hosts. special: before, ranks, env: {host: what is so there}"""
        before, ranks, env = (special.get(word, {}) for word in ("before", "ranks", "env"))
        processes = {}
        for name in self.net.names():
            line = TORCHRUN.format(ranks=ranks.get(name, 1)) + f" --rdzv-endpoint {endpoint}"
            line += f" 05_multinode/rehearsal/preflight.py --device cpu {flags}"
            line = f"{before.get(name, '')} {line}"
            processes[name] = self.start(name, line, **env.get(name, {}))
        if cut:
            self.cut(cut, processes)
        return {name: self.finish(name, process) for name, process in processes.items()}

    def cut(self, name, processes):
        """Cut a host off while its rank is held; when its rank has told, end its torchrun."""
        folder = Path(self.reader.folder)
        wait_for((folder / "held").exists)
        self.net.cut(name)
        (folder / "cut").touch()
        wait_for(lambda: "\npreflight: " in (folder / f"{name}.out").read_text())
        os.killpg(processes[name].pid, signal.SIGKILL)  # it would look for the other for minutes

    def resolve(self, on, name, address):
        """On this host the name leads to that address; without one, nowhere."""
        path = self.net.etc_hosts(on)
        lines = [line for line in path.read_text().splitlines() if line.split()[1] != name]
        path.write_text("\n".join(lines + [f"{address} {name}"] * bool(address)) + "\n")


@pytest.fixture
def pair(net, reader):
    return Pair(net, reader)


def at_start(folder, code):
    """-> environment in which the ranks of preflight, and only they, begin with this code"""
    folder.mkdir()
    body = code.strip().replace("\n", "\n    ")
    condition = 'os.environ.get("RANK") and "preflight.py" in " ".join(sys.orig_argv)'
    (folder / "sitecustomize.py").write_text(f"import os, sys\nif {condition}:\n    {body}\n")
    return {"PYTHONPATH": str(folder)}


def checks(result, status="FAILED"):
    """What a table says with this status: {check: what was found}"""
    lines = [line for line in result.out.splitlines() if line.startswith(f"{status:8}")]
    return {line[8:23].strip(): line[23:] for line in lines}


def sound(result):
    assert result.code == 0 and "Traceback" not in result.err, result
    assert not checks(result) and result.out.endswith("preflight: all sound\n"), result


def found(result, faults, code=1):
    """Just these faults are told: {check: words that are in its line}; each with what to do."""
    assert result.code == code and 'preflight.py", line' not in result.err, result
    told = checks(result)
    assert set(told) == set(faults), result
    for check, words in faults.items():
        assert words in told[check], result
    assert result.out.count("\n        to do: ") >= len(faults), result
    assert result.out.endswith(f"preflight: FAILED: {', '.join(told)}\n"), result


@NEEDS_HOSTS
def test_no_alarm_on_sound_hosts(pair):
    results = pair.torchrun("--timeout 60")
    sound(results["host0"])
    assert (results["host1"].code, results["host1"].out) == (0, "")
    table = checks(results["host0"], "ok")
    assert table["hosts"] == "2 host(s), 2 rank(s): all are there"
    assert table["own name"] == "host0: 10.5.0.1; host1: 10.5.0.2"
    assert {"versions", "data", "connections", "names", "all-reduce"} <= set(table)


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_name_that_is_a_loopback(pair):
    pair.resolve("host1", "host1", "127.0.1.1")
    faults = {
        "own name": "host1: host1 is 127.0.1.1 there, a loopback",
        "connections": "host0 -> host1: nobody listens at 127.0.1.1",
    }
    results = pair.torchrun()
    found(results["host0"], faults)
    assert "not tried" in checks(results["host0"], "note")["all-reduce"]
    assert (results["host1"].code, results["host1"].out) == (1, "")
    alone = pair.alone("host1", "--device cpu")
    found(alone, {"own name": "host1 is 127.0.1.1 there, a loopback"})


@NEEDS_HOSTS
@pytest.mark.slow
def test_names_that_do_not_resolve(pair):
    pair.resolve("host1", "host0", None)
    results = pair.torchrun("--timeout 5", endpoint="10.5.0.1:29500")
    found(results["host1"], {"rank 0": "host1 does not hear it: the name host0 does not resolve"})
    found(results["host0"], {"hosts": "nothing from rank 1 within 5 s, only from host0"})
    pair.resolve("host1", "host1", None)
    alone = pair.alone("host1", "--device cpu --endpoint host0:29500")
    own = {"own name": "host1 does not resolve", "endpoint": "the name host0 does not resolve"}
    found(alone, own)


@NEEDS_HOSTS
@pytest.mark.slow
def test_wrong_interfaces(pair):
    env = {"host0": {"GLOO_SOCKET_IFNAME": "lo"}, "host1": {"GLOO_SOCKET_IFNAME": "eth9"}}
    faults = {
        "gloo": "host0: GLOO_SOCKET_IFNAME=lo: lo, 127.0.0.1, a loopback; "
        "host1: GLOO_SOCKET_IFNAME=eth9: there is no such interface",
        "connections": "host1 -> host0: nobody listens at 127.0.0.1",
    }
    found(pair.torchrun(env=env)["host0"], faults)
    alone = pair.alone("host1", "--device cpu", NCCL_SOCKET_IFNAME="=eth")
    found(alone, {"NCCL": "NCCL_SOCKET_IFNAME==eth: there is no such interface"})
    assert "set NCCL_SOCKET_IFNAME to the interface that leads to the others: eth0" in alone.out


@NEEDS_HOSTS
@pytest.mark.slow
def test_hosts_that_are_not_alike(pair, small_data, tmp_path):
    """Several faults at once: each has a line of its own. None of them keeps gloo from working."""
    other = tmp_path / "other"
    shutil.copytree(small_data, other)
    labels = other / "MNIST/raw/t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x0b")
    env = at_start(tmp_path / "code", 'import torch\ntorch.__version__ = "2.0.0"')
    pair.resolve("host0", "host1", None)
    results = pair.torchrun(
        "--timeout 60",
        env={"host1": env | {"MNIST_ROOT": str(other)}},
        before={"host1": "ulimit -n 200; mount -t tmpfs -o size=16m tmpfs /dev/shm;"},
        ranks={"host1": 2},
    )
    faults = {
        "versions": "host1: torch 2.0.0",
        "ranks": "host0: 1 per host; host1: 2 per host",
        "shared memory": "host1: /dev/shm has 16 MiB",
        "limits": "host1: 200 open files",
        "data": "host1: not MNIST itself, crc32 ",
        "names": "host0 -> host1: the name host1 does not resolve",
    }
    found(results["host0"], faults)
    table = checks(results["host0"], "ok")
    assert "3 rank(s): all are there" in table["hosts"] and "correct" in table["all-reduce"]


@NEEDS_HOSTS
@pytest.mark.slow
def test_an_all_reduce_that_is_wrong(pair, tmp_path):
    """And an interface that is set rightly is no fault."""
    code = """
import torch.distributed as dist
right = dist.all_reduce
def wrong(vector):
    right(vector)
    vector[-1] += 1
dist.all_reduce = wrong"""
    env = {"host0": {}, "host1": at_start(tmp_path / "code", code)}
    env = {name: special | {"GLOO_SOCKET_IFNAME": "eth0"} for name, special in env.items()}
    result = pair.torchrun("--timeout 60", env=env)["host0"]
    found(result, {"all-reduce": "host1 (rank 1): 35 wrong numbers"})
    assert "host1: GLOO_SOCKET_IFNAME=eth0: eth0, 10.5.0.2" in checks(result, "ok")["gloo"]


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_host_that_is_cut_off_before_it_has_told_anything(pair, tmp_path):
    env = {"host1": at_start(tmp_path / "code", HOLD)}
    results = pair.torchrun("--timeout 4", env=env, cut="host1")
    found(results["host0"], {"hosts": "nothing from rank 1 within 4 s, only from host0"})
    found(results["host1"], {"rank 0": "host1 does not hear it: no "}, code=-9)


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_host_that_is_cut_off_in_the_all_reduce(pair, tmp_path):
    held = HOLD.replace("\n", "\n    ")
    code = f"""
import torch.distributed as dist
right = dist.all_reduce
def hold(vector):{held}right(vector)
dist.all_reduce = hold"""
    env = {"host1": at_start(tmp_path / "code", code)}
    results = pair.torchrun("--timeout 4", env=env, cut="host1")
    found(results["host0"], {"all-reduce": "host1 (rank 1): no answer within 4 s"})
    found(results["host1"], {"rank 0": "host1 does not hear it: "}, code=-9)


@NEEDS_HOSTS
@pytest.mark.slow
def test_the_endpoint_from_every_host(pair):
    endpoint = "--device cpu --endpoint host0:29500"
    sound(pair.alone("host0", endpoint))
    found(pair.alone("host1", endpoint), {"endpoint": "nobody listens at host0:29500 (10.5.0.1)"})
    listen = [sys.executable, "-c", LISTEN, "29500"]
    program = pair.net.start("host0", listen, stdout=subprocess.PIPE, text=True)
    assert "29500" in program.stdout.readline()
    taken = {"endpoint": "at host0:29500 is something else than torchrun"}
    found(pair.alone("host0", endpoint + " --timeout 3"), taken)
    hosts.end([program])
    program.stdout.close()
    with waiting_torchrun(pair):
        for name in ("host0", "host1"):
            result = pair.alone(name, endpoint + " --timeout 60")
            sound(result)
            assert "a torchrun waits at host0:29500" in checks(result, "ok")["endpoint"]
        wrong = pair.alone("host1", "--device cpu --endpoint host0:29501")
        found(wrong, {"endpoint": "nobody listens at host0:29501"})
        pair.net.cut("host1")
        lost = pair.alone("host1", endpoint + " --timeout 3")
        found(lost, {"endpoint": "host0:29500 (10.5.0.1)"})
        assert "no way to" in lost.out or "no answer from" in lost.out


@contextmanager
def waiting_torchrun(pair):
    line = TORCHRUN.format(ranks=1) + " --rdzv-endpoint host0:29500 /dev/null"
    waiting = pair.net.start("host0", ["sh", "-c", line], env=pair.reader.env)
    call = [sys.executable, "-c", "import socket; socket.create_connection(('host0', 29500))"]
    try:
        wait_for(lambda: pair.net.start("host1", call, stderr=subprocess.DEVNULL).wait(30) == 0)
        yield
    finally:
        hosts.end([waiting])


def test_rehearsal_in_two_terminals(reader):
    """One machine, whatever its name leads to: no alarm, for there a loopback will do."""
    meet = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    line = f"torchrun --nnodes 2 --nproc-per-node 1 {meet} {PREFLIGHT} --timeout 60"
    result = reader.finish_all([reader.start(f"{line} --device cpu --json") for _ in range(2)])
    assert result.code == 0, result
    told = json.loads(result.out)
    names = [f"{socket.gethostname()}#{number}" for number in range(2)]
    assert told["sound"] and sorted(told["hosts"]) == names
    assert {check["status"] for check in told["checks"]} <= {"ok", "note"}
    assert "all-reduce" in [check["name"] for check in told["checks"] if check["status"] == "ok"]


def test_alone(reader):
    port = free_port()
    endpoint = f"--endpoint localhost:{port}"
    result = reader.run(f"{ALONE} --device cpu --json {endpoint}", GLOO_SOCKET_IFNAME="")
    told = json.loads(result.out)
    failed = [check["name"] for check in told["checks"] if check["status"] == "FAILED"]
    assert failed in ([], ["own name"])  # as the name of this machine is
    assert (told["sound"], result.code) == (not failed, len(failed)) and result.err == ""
    (check,) = [check for check in told["checks"] if check["name"] == "endpoint"]
    assert check["status"] == "ok" and f"localhost:{port}" in check["found"]


@pytest.mark.parametrize(
    "flags, told",
    [
        ("--endpoint host0", "argument --endpoint: invalid HOST:PORT value: 'host0'"),
        ("--endpoint host0:0", "argument --endpoint: invalid HOST:PORT value"),
        ("--timeout 0", "argument --timeout: invalid number of seconds from 1 to 600 value"),
        ("--timeout soon", "argument --timeout: invalid number of seconds"),
        ("--device tpu", "argument --device"),
        ("host0:29500", "unrecognized arguments: host0:29500"),
    ],
)
def test_bad_input(flags, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["preflight.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        preflight.parse()
    one_line(Result(stopped.value.code, *capsys.readouterr(), 0), "preflight", told)


def test_bad_input_from_a_terminal(reader):
    result = reader.run(f"{ALONE} --timeout 0")
    one_line(result, "preflight", "--timeout")


def test_data_that_is_damaged_or_missing(small_data, tmp_path):
    look = preflight.data_facts
    assert look(tmp_path / "none") == {
        "crc": None,
        "found": f"nothing at {tmp_path}/none/MNIST/raw",
        "sound": True,
    }
    assert look(small_data)["sound"] and "crc32" in look(small_data)["found"]
    shutil.copytree(small_data, tmp_path / "copy")
    assert look(tmp_path / "copy") == look(small_data)
    path = tmp_path / "copy/MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = look(tmp_path / "copy")
    assert not damaged["sound"] and f"{path} is damaged" in damaged["found"]
    path.write_bytes(b"")
    assert "is damaged" in look(tmp_path / "copy")["found"]
    path.unlink()
    missing = look(tmp_path / "copy")
    assert not missing["sound"] and f"{path}: No such file" in missing["found"]
    for crcs, status in ((2, "note"), (1, "FAILED")):  # nobody has it; only one has not
        facts = {"a": look(tmp_path / "none"), "b": look(tmp_path / "none")}
        facts["b"] = facts["a"] if crcs == 2 else look(small_data)
        check = preflight.check_data({host: {"data": data} for host, data in facts.items()})
        assert check.status == status
    check = preflight.check_data({"a": {"data": missing}, "b": {"data": missing}})
    assert check.status == "FAILED", "the same fault everywhere is a fault"


@pytest.mark.parametrize(
    "special, status, words",
    [
        ({}, "ok", "8 GPUs for 8 ranks: H200, driver 1"),
        ({"gpus": ["H200"] * 7}, "FAILED", "b: 7 GPUs for 8 ranks"),
        ({"gpus": []}, "FAILED", "b: 0 GPUs for 8 ranks"),
        ({"device": "cpu"}, "FAILED", "b: CPU"),
        ({"gpus": ["H100"] * 8}, "note", "H100"),
        ({"driver": "2"}, "note", "driver 2"),
    ],
)
def test_gpus_of_two_hosts(special, status, words):
    fact = {"device": "cuda", "gpus": ["H200"] * 8, "ranks": 8, "driver": "1"}
    check = preflight.check_devices({"a": fact, "b": fact | special})
    assert check.status == status and words in check.found


@pytest.mark.parametrize(
    "setting, taken",
    [
        ("", ["eth0", "eth1"]),
        ("eth1", ["eth1"]),
        ("eth", ["eth0", "eth1"]),
        ("=eth", []),
        ("=eth1,lo", ["lo", "eth1"]),
        ("^lo,docker", ["eth0", "eth1"]),
        ("^=eth0,lo", ["docker0", "eth1"]),
    ],
)
def test_interfaces_that_nccl_takes(setting, taken):
    assert preflight.nccl_takes(setting, ["lo", "docker0", "eth0", "eth1"]) == taken
    assert preflight.nccl_takes("", ["lo", "docker0"]) == ["docker0"]
    assert preflight.nccl_takes("", ["lo", "eth0", "ib0"]) == ["ib0"]

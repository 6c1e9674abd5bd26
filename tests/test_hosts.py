"""Hosts out of namespaces: they train, their cables can be pulled, and nothing of them is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import (
    NEEDS_HOSTS,
    NET,
    ROOT,
    TEST_IMAGES,
    hosts,
    left,
    one_line,
    record_of,
    wait_for,
    wait_for_line,
)

HOSTS = f"python 05_multinode/rehearsal/hosts.py --net {NET}"
LISTEN = "import socket, time; s = socket.create_server(('', 5000)); print(s); time.sleep(60)"
CONNECT = "import socket; socket.create_connection(('host1', 5000), timeout=2)"


@pytest.fixture
def net():
    yield hosts.Hosts(NET)
    hosts.Hosts(NET).down()


def runs_on(net, name, word):
    """Does a command with this word in it run on the host?"""
    if not (hosts.NAMESPACES / f"{net.net}-{name}").exists():
        return False
    commands = [Path(f"/proc/{pid}/cmdline") for pid in net.pids([f"{net.net}-{name}"])]
    return any(word in file.read_text().split("\0") for file in commands if file.exists())


def start_sleep(reader, net):
    process = reader.start(f"{HOSTS} with 2 -- sleep 1000")
    wait_for(lambda: runs_on(net, "host0", "sleep") and runs_on(net, "host1", "sleep"))
    return process


@NEEDS_HOSTS
@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_hosts_train_together(reader, number):
    torchrun = f"torchrun --nnodes {number} --nproc-per-node 1 --rdzv-backend c10d"
    train = f"{torchrun} --rdzv-endpoint host0:29500 05_multinode/train.py -e 1 --device cpu"
    result = reader.run(f'{HOSTS} with {number} -- sh -c "echo I am $(hostname); exec {train}"')
    assert result.code == 0, result
    _, record = record_of(reader.folder / "timings")
    names = [f"host{i}" for i in range(number)]
    assert (record["hosts"], record["world_size"]) == (number, number)
    assert record["history"][0]["test"][1] == TEST_IMAGES and record["host"] in names
    assert all(f"{name} | I am {name}\n" in result.out for name in names)
    assert f"{record['host']} | 05_multinode: " in result.out
    assert all(line.split(" | ")[0] in names for line in result.out.splitlines())
    assert not left()


@NEEDS_HOSTS
def test_a_host_that_is_cut_off_cannot_be_reached_and_joins_again(net):
    def connects():
        client = net.start("host0", [sys.executable, "-c", CONNECT], stderr=subprocess.DEVNULL)
        return client.wait(20) == 0

    with hosts.hosts_for_a_while(2, NET):
        listen = [sys.executable, "-c", LISTEN]
        server = net.start("host1", listen, stdout=subprocess.PIPE, text=True)
        assert "5000" in server.stdout.readline()
        found = [connects()]
        net.cut("host1")
        found += [connects()]
        net.join("host1")
        found += [connects()]
        assert found == [True, False, True]
    assert server.wait(10) and not left()


@NEEDS_HOSTS
def test_hosts_that_stay_until_they_are_taken_down(reader, net):
    assert reader.run(f"{HOSTS} up 3").out == "host0  10.5.0.1\nhost1  10.5.0.2\nhost2  10.5.0.3\n"
    every = reader.run(f"{HOSTS} run --all -- uname -n")
    assert sorted(every.out.splitlines()) == [f"host{i} | host{i}" for i in range(3)]
    own = reader.run(f"{HOSTS} run host2 -- sh -c 'getent hosts $(uname -n); exit 7'")
    assert own.code == 7 and own.out.split() == ["host2", "|", "10.5.0.3", "host2"]
    carrier = f"{HOSTS} run host1 -- cat /sys/class/net/eth0/carrier"
    for action, expected in (("cut", "0"), ("join", "1")):
        assert reader.run(f"{HOSTS} {action} host1").code == 0
        assert reader.run(carrier).out == f"host1 | {expected}\n"
    again = reader.run(f"{HOSTS} up 2")
    assert again.code == 0 and "taking down what was left" in again.err
    assert reader.run(f"{HOSTS} cut host2").code == 2
    down = reader.run(f"{HOSTS} down")
    assert (down.code, down.out, down.err, left()) == (0, "", "", [])


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_lost_host_ends_the_run_of_the_others(reader, net):
    """The connections only fall silent: nobody knows before --timeout is over."""
    endless = "05_multinode/train.py -e 100000 --lr 0.001 -b 24 --device cpu --timeout 3"
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
    net.up(2)
    runs = [
        reader.start(f"{HOSTS} run {name} -- {torchrun} --rdzv-endpoint host0:29500 {endless}")
        for name in net.names()
    ]
    wait_for_line(*runs, start=("host0 | epoch", "host1 | epoch"))
    net.cut("host1")
    result = reader.finish(runs[0], timeout=40)
    assert result.code == 1 and "Timed out waiting 3000ms" in result.out, result
    net.down()  # the lost host's torchrun would look for host0 for minutes
    reader.finish(runs[1], timeout=40)


@NEEDS_HOSTS
def test_what_a_killed_one_has_left_is_cleaned_by_the_next(reader, net):
    killed = start_sleep(reader, net)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert runs_on(net, "host0", "sleep")
    foreign = f"{NET}-foreign"
    subprocess.run(["ip", "netns", "add", foreign], check=True, timeout=30)
    try:
        result = reader.run(f"{HOSTS} with 1 -- true")
        assert result.code == 0 and "taking down what was left" in result.err
        assert left() == [hosts.NAMESPACES / foreign]
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True, timeout=30)
    reader.finish(killed)  # fails if a process of it is left


@NEEDS_HOSTS
@pytest.mark.parametrize("send, number", [("kill", 2), ("killpg", 2), ("kill", 15)])
def test_whatever_stops_it_leaves_nothing(reader, net, send, number):
    process = start_sleep(reader, net)
    getattr(os, send)(process.pid, number)
    result = reader.finish(process, timeout=30)
    assert result.code == 128 + number and not left()
    assert result.err == ("\nhosts: interrupted\n" if number == signal.SIGINT else "")


@NEEDS_HOSTS
def test_ctrl_c_while_the_hosts_are_made(reader):
    process = reader.start(f"{HOSTS} with 32 -- sleep 1000")
    wait_for(left)
    os.killpg(process.pid, signal.SIGINT)
    assert reader.finish(process, timeout=30).code == 130
    assert not left()


@NEEDS_HOSTS
def test_a_reader_that_goes_away_ends_it(reader):
    result = reader.run(f"bash -c '{HOSTS} with 2 -- yes | head -1'", timeout=30)
    assert result.out in ("host0 | y\n", "host1 | y\n") and not left()


@NEEDS_HOSTS
def test_names_that_are_in_use_are_left_alone(reader, net):
    running = start_sleep(reader, net)
    for action in ("with 2 -- true", "up 2"):
        result = reader.run(f"{HOSTS} {action}")
        assert result.code == 2 and "are in use" in result.err, result
    assert running.poll() is None and runs_on(net, "host1", "sleep")
    assert reader.run(f"{HOSTS} down").code == 0
    assert reader.finish(running, timeout=30).code == 128 + signal.SIGTERM
    subprocess.run(["ip", "netns", "add", f"{NET}-host1"], check=True, timeout=30)
    try:
        result = reader.run(f"{HOSTS} with 2 -- true")
        assert result.code == 2 and f"{NET}-host1 that is not ours" in result.err
        assert left() == [hosts.NAMESPACES / f"{NET}-host1"]
    finally:
        subprocess.run(["ip", "netns", "delete", f"{NET}-host1"], check=True, timeout=30)


@NEEDS_HOSTS
@pytest.mark.parametrize(
    "command, told",
    [
        ("run host0 -- true", "no hosts of net"),
        ("run --all host0 -- true", "run --all, or run HOST"),
        ("run -- true", "run --all, or run HOST"),
        ("cut host0", "no hosts of net"),
        ("with 2", "a command is missing"),
        ("with 0 -- true", "number from 1 to 32"),
        ("up many", "number from 1 to 32"),
        ("down -- true", "takes no command"),
        ("--net A up 2", "small letters"),
        ("", "ACTION"),
    ],
)
def test_bad_input(reader, command, told):
    one_line(reader.run(f"{HOSTS} {command}"), "hosts", told)
    assert not left()


def test_without_the_program_ip(reader):
    result = reader.run(
        f"python {ROOT}/05_multinode/rehearsal/hosts.py up 2", PATH=str(Path(sys.executable).parent)
    )
    one_line(
        result, "hosts", "the program ip is needed" if sys.platform == "linux" else "only Linux"
    )


@NEEDS_HOSTS
def test_without_being_root(reader):
    """In a user namespace of its own a process is nobody, whoever has started it."""
    if subprocess.run(["unshare", "--user", "true"], timeout=30).returncode:
        pytest.skip("no user namespaces here")
    one_line(reader.run(f"unshare --user {HOSTS} up 2"), "hosts", "only root may")

"""Nodes out of namespaces: they train, their links can be cut, and nothing of them is left."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from conftest import NEEDS_HOSTS, NET, hosts, left, one_line, wait_for

HOSTS = f"python 05_multinode/rehearsal/hosts.py --net {NET}"


@pytest.fixture
def net():
    yield hosts.Hosts(NET)
    hosts.Hosts(NET).down()


def commands(net, name):
    """The programs and arguments of all processes on a node."""
    words = []
    for pid in net.pids([f"{net.net}-{name}"]):
        if psutil.pid_exists(pid):
            words += Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words


def start_sleep(reader, net):
    process = reader.start(f"{HOSTS} with 2 -- sleep 1000")
    wait_for(lambda: "sleep" in commands(net, "host0") and "sleep" in commands(net, "host1"))
    return process


@NEEDS_HOSTS
def test_links_are_cut_and_joined_while_a_command_runs(reader, net):
    running = start_sleep(reader, net)
    own = reader.run(f"{HOSTS} run host1 -- sh -c 'getent hosts $(uname -n); exit 7'")
    assert own.code == 7 and own.out.split() == ["host1", "|", "10.5.0.2", "host1"]
    for action, carrier in (("cut", "0"), ("join", "1")):
        assert reader.run(f"{HOSTS} {action} host1").code == 0
        shown = reader.run(f"{HOSTS} run host1 -- cat /sys/class/net/eth0/carrier")
        assert shown.out == f"host1 | {carrier}\n"
    one_line(reader.run(f"{HOSTS} cut host2"), "hosts", "there is no host2")
    running.terminate()
    assert reader.finish(running).code == 128 + signal.SIGTERM and not left()


@NEEDS_HOSTS
def test_what_a_killed_one_has_left_is_removed_by_the_next(reader, net):
    killed = start_sleep(reader, net)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert net.list.exists()
    result = reader.run(f"{HOSTS} with 1 -- true")
    assert result.code == 0 and "taking down what was left" in result.err and not left()
    reader.finish(killed)  # fails if a process of it is left


@NEEDS_HOSTS
@pytest.mark.parametrize("send, number", [("killpg", signal.SIGINT), ("kill", signal.SIGTERM)])
def test_a_signal_leaves_nothing(reader, net, send, number):
    process = start_sleep(reader, net)
    getattr(os, send)(process.pid, number)
    result = reader.finish(process)
    assert result.code == 128 + number and not left()
    assert result.err == ("\nhosts: interrupted\n" if number == signal.SIGINT else "")


@NEEDS_HOSTS
def test_names_that_are_in_use_are_left_alone(reader, net):
    running = start_sleep(reader, net)
    one_line(reader.run(f"{HOSTS} with 2 -- true"), "hosts", "are in use")
    assert running.poll() is None and "sleep" in commands(net, "host1")
    running.terminate()
    assert reader.finish(running).code == 128 + signal.SIGTERM


@NEEDS_HOSTS
@pytest.mark.parametrize(
    "command, message",
    [
        ("run host0 -- true", "no nodes of net"),
        ("with 2", "required: command"),
        ("with 0 -- true", "number from 1 to 32"),
        ("--net A with 2 -- true", "small letters"),
    ],
)
def test_bad_input(reader, command, message):
    one_line(reader.run(f"{HOSTS} {command}"), "hosts", message)
    assert not left()

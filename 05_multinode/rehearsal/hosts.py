r"""Several nodes on one Linux machine: a network for rehearsals, with links that can be cut.

Each node is a network namespace with an address, a host name, an /etc/hosts that lists all nodes,
and a link to a switch. The nodes share the machine's disk, memory and cores, and have no other
network. Needs root and the programs ip (package iproute2) and unshare (util-linux).

    python 05_multinode/rehearsal/hosts.py with 2 -- torchrun --nnodes 2 --nproc-per-node 1 \
        --rdzv-backend c10d --rdzv-endpoint host0:29500 05_multinode/train.py

makes two nodes, runs the command on both, and removes the nodes, also after Ctrl-C. Meanwhile run,
cut and join work on these nodes from another terminal (README.md shows them).
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lib import processes

NAMESPACES = Path("/run/netns")  # Here ip keeps the names of the namespaces.
ETC = Path("/etc/netns")  # Each namespace has a folder here, which it sees as /etc.


class RehearsalError(Exception):
    """Something cannot be done; the message is one line that says what and why."""


class Parser(argparse.ArgumentParser):
    """Reports bad input in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def main() -> int:
    args = parse()
    if reason := missing():
        fail(reason)
    processes.exit_on_signals()
    hosts = Hosts(args.net)
    if args.action == "with":
        with hosts_for_a_while(args.number, args.net):
            return report(hosts.run(hosts.names(), args.command))
    if args.action == "run":
        return report(hosts.run([args.host], args.command))
    if args.action == "cut":
        hosts.cut(args.host)
    else:
        hosts.join(args.host)
    return 0


def report(codes: dict[str, int]) -> int:
    """Print the exit codes of all nodes -> the largest."""
    listed = ", ".join(f"{name} {code}" for name, code in codes.items())
    print(f"hosts: exit codes {listed}", file=sys.stderr)
    return max(codes.values())


@contextmanager
def hosts_for_a_while(number: int, net: str = "stage5") -> Iterator["Hosts"]:
    """Nodes that are removed whatever happens. Raises RehearsalError if they cannot be made.

    The net is reserved for this process; the kernel releases it when the process ends.
    """
    hosts = Hosts(net)
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0hosts.py {net}")  # an abstract name: no file can be left behind
        except OSError:
            message = f"nodes of net {net} are in use; --net NAME makes further ones"
            raise RehearsalError(message) from None
        try:
            hosts.up(number)
            yield hosts
        finally:
            hosts.down()


class Hosts:
    """The nodes host0, host1, ... of a net, whether they are up or not.

    net: small letters and digits, at most 20. Nodes of different nets cannot reach each other.
    """

    def __init__(self, net: str = "stage5"):
        if not re.fullmatch("[a-z0-9]{1,20}", net):
            raise RehearsalError(f"--net {net}: use at most 20 small letters and digits")
        self.net = net
        self.switch = f"{net}-switch"
        # Names and addresses of the nodes. This file is made first and removed last: what it lists
        # is ours.
        self.list = ETC / self.switch / "made-by-hosts.py"

    def names(self) -> dict[str, str]:
        """-> {name: address}. Raises RehearsalError if no nodes are up."""
        if not self.list.exists():
            raise RehearsalError(f"no nodes of net {self.net} are up: hosts.py with 2")
        return dict(line.split() for line in self.list.read_text().splitlines())

    def etc_hosts(self, name: str) -> Path:
        """The file that is /etc/hosts for what is started on this node from now on."""
        return ETC / f"{self.net}-{name}" / "hosts"

    def up(self, number: int) -> None:
        """Make nodes host0 to host<number - 1>; those that are still there are removed first.

        Raises RehearsalError if something that is not ours has a name that we need.
        """
        if not 1 <= number <= 32:
            raise RehearsalError(f"{number} nodes: a number from 1 to 32 is needed")
        if self.list.exists():
            print(f"hosts: taking down what was left of net {self.net}", file=sys.stderr)
            self.down()
        addresses = {f"host{i}": f"10.5.0.{i + 1}" for i in range(number)}
        for name in ("switch", *addresses):
            space = NAMESPACES / f"{self.net}-{name}"
            folder = ETC / f"{self.net}-{name}"
            if space.exists() or (folder.exists() and any(folder.iterdir())):
                raise RehearsalError(f"there is a namespace {space.name} that is not ours")
        self.build(addresses)

    def build(self, addresses: dict[str, str]) -> None:
        self.list.parent.mkdir(parents=True, exist_ok=True)
        self.list.write_text("".join(f"{name} {addresses[name]}\n" for name in addresses))
        table = ["127.0.0.1 localhost"]
        table += [f"{address} {name}" for name, address in addresses.items()]
        # As PyTorch's store sees its clients: without these lines it warns that they have no name.
        table += [f"::ffff:{address} {name}.{self.net}" for name, address in addresses.items()]
        for name in addresses:
            self.etc_hosts(name).parent.mkdir(exist_ok=True)
            self.etc_hosts(name).write_text("\n".join(table) + "\n")
        for name in ("switch", *addresses):
            ip(f"netns add {self.net}-{name}")
        ip(f"-n {self.switch} link add bridge type bridge")
        ip(f"-n {self.switch} link set bridge up")
        for name, address in addresses.items():  # a veth pair connects the node to the switch
            node = f"{self.net}-{name}"
            ip(f"-n {self.switch} link add {name} type veth peer name eth0 netns {node}")
            ip(f"-n {self.switch} link set {name} master bridge up")
            ip(f"-n {node} address add {address}/24 dev eth0")
            ip(f"-n {node} link set eth0 up")
            ip(f"-n {node} link set lo up")

    def down(self) -> None:
        """End all processes on the nodes and remove the nodes, also those of a half-made set.

        Raises RehearsalError if a process does not end.
        """
        if not self.list.exists():
            return
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # they wait for the end of this
        try:
            spaces = [f"{self.net}-{name}" for name in (*self.names(), "switch")]
            self.end_processes(spaces)
            for space in spaces:
                if (NAMESPACES / space).exists():
                    ip(f"netns delete {space}")
                shutil.rmtree(ETC / space, ignore_errors=True)
            with suppress(OSError):  # it holds nodes of other nets
                ETC.rmdir()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end_processes(self, spaces: list[str]) -> None:
        deadline = time.monotonic() + 10
        while left := self.pids(spaces):
            if time.monotonic() > deadline:
                raise RehearsalError(f"these processes do not end: {left}")
            for pid in left:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def pids(self, spaces: list[str]) -> list[int]:
        """The processes in these namespaces, as far as the namespaces exist."""
        existing = [space for space in spaces if (NAMESPACES / space).exists()]
        return [int(pid) for space in existing for pid in ip(f"netns pids {space}").split()]

    def cut(self, name: str) -> None:
        """Take the node's link down at the switch. Connections stay open, but nothing arrives."""
        ip(f"-n {self.switch} link set {self.known(name)} down")

    def join(self, name: str) -> None:
        """Take the link up again."""
        ip(f"-n {self.switch} link set {self.known(name)} up")

    def known(self, name: str) -> str:
        if name not in self.names():
            raise RehearsalError(f"there is no {name}, only {', '.join(self.names())}")
        return name

    def start(self, name: str, command: list[str], env=None, mark=None, **options):
        """Start a command on a node, as processes.start does. options: those of Popen."""
        name_and_run = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        inside = ["ip", "netns", "exec", f"{self.net}-{self.known(name)}", "unshare", "--uts"]
        inside += ["sh", "-c", name_and_run, name, *command]
        options = {"stdin": subprocess.DEVNULL, **options}
        return processes.start(inside, {"PYTHONUNBUFFERED": "1", **(env or {})}, mark, **options)

    def run(self, names: Iterable[str], command: list[str], env=None) -> dict[str, int]:
        """Run a command on nodes at once, its output behind their names -> {name: exit code}."""
        mark = processes.new_mark()
        running = {}
        printers = []
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            for name in map(self.known, names):
                running[name] = self.start(name, command, env, mark, **output)
                with running[name].stdout as pipe:
                    print_it = ["sed", "--unbuffered", f"s/^/{name} | /"]
                    printers.append(subprocess.Popen(print_it, stdin=pipe))
            codes = {name: process.wait() for name, process in running.items()}
        finally:
            processes.end(mark)
            for printer in printers:
                printer.wait()
        return {name: code if code >= 0 else 128 - code for name, code in codes.items()}


def ip(arguments: str) -> str:
    """Run ip -> its output. Raises RehearsalError with its message if it fails."""
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RehearsalError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str | None:
    """What this machine lacks for nodes, in one line; None if they can be made."""
    if sys.platform != "linux":
        return "nodes are network namespaces, and only Linux has them"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(program):
            return f"the program {program} is needed; it comes with the package {package}"
    if os.geteuid() != 0:
        return 'only root may make nodes: sudo env "PATH=$PATH" python ...'
    probe = ["unshare", "--net", "--uts", "--mount", "true"]
    probed = subprocess.run(probe, capture_output=True, text=True, timeout=30)
    return f"no namespaces here: {probed.stderr.strip()}" if probed.returncode else None


def parser_of(docstring: str, net: str):
    """-> a parser with --net and the action "with", and what takes further actions."""
    parser = Parser(description=docstring.partition("\n")[0])
    parser.add_argument("--net", default=net, help="which set of nodes: one word")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = actions.add_parser("with", help="NUMBER -- COMMAND: make so many nodes for it")
    action.add_argument("number", type=int)
    action.add_argument("command", nargs="+")
    return parser, actions


def parse() -> argparse.Namespace:
    parser, actions = parser_of(__doc__, "stage5")
    action = actions.add_parser("run", help="HOST -- COMMAND: on a node that is up")
    action.add_argument("host")
    action.add_argument("command", nargs="+")
    actions.add_parser("cut", help="HOST: take its link down").add_argument("host")
    actions.add_parser("join", help="HOST: take its link up").add_argument("host")
    return parser.parse_args()


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2."""
    print(f"{Path(sys.argv[0]).stem}: error: {message}", file=sys.stderr)
    sys.exit(2)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exit with what main returns. An expected error and Ctrl-C end in one line, no traceback."""
    try:
        sys.exit(main())
    except (RehearsalError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print(f"\n{Path(sys.argv[0]).stem}: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run_main(main)

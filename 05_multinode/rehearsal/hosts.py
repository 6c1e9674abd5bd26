r"""Several hosts on one Linux machine: a network to rehearse on, with cables that can be pulled.

Each host is a network namespace: an address of its own, a host name, an /etc/hosts that knows all
hosts, and a cable to a switch. They share the machine's disk, memory and cores, and reach nothing
else. Needs root and the programs ip (package iproute2) and unshare (util-linux).

Hosts for one command, which runs on all of them; afterwards they are gone, also after Ctrl-C:

    python 05_multinode/rehearsal/hosts.py with 2 -- torchrun --nnodes 2 --nproc-per-node 1 \
        --rdzv-backend c10d --rdzv-endpoint host0:29500 05_multinode/train.py

Hosts that stay until they are taken down:

    python 05_multinode/rehearsal/hosts.py up 3
    python 05_multinode/rehearsal/hosts.py run --all -- hostname
    python 05_multinode/rehearsal/hosts.py run host0 -- ip address
    python 05_multinode/rehearsal/hosts.py cut host1
    python 05_multinode/rehearsal/hosts.py join host1
    python 05_multinode/rehearsal/hosts.py down
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAMESPACES, ETC = Path("/run/netns"), Path("/etc/netns")  # where ip keeps names, and /etc of each


class HostsError(Exception):
    """What cannot be done, in one line."""


def main() -> None:
    args, command = parse()
    if reason := missing():
        raise HostsError(reason)
    leave_when_told()
    hosts = Hosts(args.net)
    if args.action == "with":
        with hosts_for_a_while(args.number, args.net):
            finish(hosts.run(hosts.names(), command))
    elif args.action == "up":
        with alone(args.net):
            hosts.up(args.number)
        print("\n".join(f"{name}  {address}" for name, address in hosts.names().items()))
    elif args.action == "run":
        finish(hosts.run(hosts.names() if args.all else args.host, command))
    elif args.action == "down":
        hosts.down()
    else:
        {"cut": hosts.cut, "join": hosts.join}[args.action](args.host)


def finish(codes: dict[str, int]) -> None:
    told = ", ".join(f"{name} {code}" for name, code in codes.items())
    print(f"hosts: exit codes {told}", file=sys.stderr)
    sys.exit(max(codes.values()))


@contextmanager
def hosts_for_a_while(number: int, net: str = "stage5") -> Iterator["Hosts"]:
    """Hosts that are taken down whatever happens. Raises HostsError if they cannot be made."""
    hosts = Hosts(net)
    with alone(net):
        try:
            hosts.up(number)
            yield hosts
        finally:
            hosts.down()


class Hosts:
    """The hosts host0, host1, ... of a net, whether they are up or not.

    net: small letters and digits, at most 20; sets of hosts with different nets do not meet.
    """

    def __init__(self, net: str = "stage5"):
        if not re.fullmatch("[a-z0-9]{1,20}", net):
            raise HostsError(f"--net {net}: small letters and digits are allowed, at most 20")
        self.net = net
        self.switch = f"{net}-switch"
        # Names and addresses of the hosts. This file is there before anything else is made, and is
        # removed after all else: by it we know what is ours.
        self.list = ETC / self.switch / "made-by-hosts.py"

    def names(self) -> dict[str, str]:
        """-> {name: address}. Raises HostsError if no hosts are up."""
        if not self.list.exists():
            raise HostsError(f"no hosts of net {self.net} are up; hosts.py up 2 makes two")
        return dict(line.split() for line in self.list.read_text().splitlines())

    def etc_hosts(self, name: str) -> Path:
        """The file that is /etc/hosts for what is started on this host from now on."""
        return ETC / f"{self.net}-{name}" / "hosts"

    def up(self, number: int) -> None:
        """Make hosts host0 to host<number - 1>, in the place of those that are there.

        Raises HostsError if something that is not ours has a name that we need.
        """
        if self.ours():
            print(f"hosts: taking down what was left of net {self.net}", file=sys.stderr)
            self.down()
        addresses = {f"host{i}": f"10.5.0.{i + 1}" for i in range(number)}
        for name in ("switch", *addresses):
            space, folder = NAMESPACES / f"{self.net}-{name}", ETC / f"{self.net}-{name}"
            if space.exists() or folder.exists() and any(folder.iterdir()):
                raise HostsError(f"there is a namespace {space.name} that is not ours")
        try:
            self.build(addresses)
        except BaseException:
            self.down()
            raise

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
        for name, address in addresses.items():  # a cable has two ends, and each is named: veth
            host = f"{self.net}-{name}"
            ip(f"-n {self.switch} link add {name} type veth peer name eth0 netns {host}")
            ip(f"-n {self.switch} link set {name} master bridge up")
            ip(f"-n {host} address add {address}/24 dev eth0")
            ip(f"-n {host} link set eth0 up")
            ip(f"-n {host} link set lo up")

    def down(self) -> None:
        """End all that runs on the hosts and remove them; nothing is left, not even of half a set.

        Raises HostsError if a process does not even end when it is killed.
        """
        import fcntl  # only here: Windows has none, and hears from missing() why it needs none

        if not ETC.exists():
            return
        with undisturbed(), open_folder(ETC) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)  # if two do this at once, one waits for the other
            spaces = self.ours()
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                patience = time.monotonic() + 5
                while (pids := self.pids(spaces)) and time.monotonic() < patience:
                    for pid in pids:
                        send(os.kill, pid, signal_number)
                    time.sleep(0.2)
            if pids:
                raise HostsError(f"these processes do not end: {pids}")
            for space in spaces:
                if (NAMESPACES / space).exists():
                    ip(f"netns delete {space}")
                shutil.rmtree(ETC / space, ignore_errors=True)
            if ETC.exists() and not any(ETC.iterdir()):
                ETC.rmdir()

    def ours(self) -> list[str]:
        """Our namespaces, of a half-made set too; the switch comes last, for it has the list."""
        names = [*self.names(), "switch"] if self.list.exists() else []
        return [f"{self.net}-{name}" for name in names]

    def pids(self, spaces: list[str]) -> list[int]:
        there = [space for space in spaces if (NAMESPACES / space).exists()]
        return [int(pid) for space in there for pid in ip(f"netns pids {space}").split()]

    def cut(self, name: str) -> None:
        """Pull the host's cable out of the switch. Nobody is told: connections fall silent."""
        ip(f"-n {self.switch} link set {self.known(name)} down")

    def join(self, name: str) -> None:
        """Put the cable back."""
        ip(f"-n {self.switch} link set {self.known(name)} up")

    def known(self, name: str) -> str:
        if name not in self.names():
            raise HostsError(f"there is no {name}, only {', '.join(self.names())}")
        return name

    def start(self, name: str, command: list[str], **options) -> subprocess.Popen:
        """Start a command on a host, in a session of its own. options: those of Popen."""
        name_and_run = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        inside = ["ip", "netns", "exec", f"{self.net}-{self.known(name)}", "unshare", "--uts"]
        inside += ["sh", "-c", name_and_run, name, *command]
        env = options.pop("env", os.environ) | {"PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, start_new_session=True, env=env, **options
        )

    def run(self, names: list[str], command: list[str]) -> dict[str, int]:
        """Run a command on hosts at once, its output behind their names -> {name: exit code}."""
        processes, relays = {}, []
        try:
            for name in map(self.known, names):
                output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
                process = self.start(name, command, text=True, errors="replace", **output)
                processes[name] = process
                relays.append(threading.Thread(target=relay, args=(name, process), daemon=True))
                relays[-1].start()
            for process in processes.values():
                process.wait()
        finally:
            end(processes.values())
        for thread in relays:
            thread.join(timeout=1)  # longer only if a process in the background has the pipe
        codes = {name: process.returncode for name, process in processes.items()}
        return {name: code if code >= 0 else 128 - code for name, code in codes.items()}


def relay(name: str, process: subprocess.Popen) -> None:
    """Print what a command says, line by line, until it says no more."""
    try:
        for line in process.stdout:
            sys.stdout.write(f"{name} | {line.rstrip()}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads us any more
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


def end(processes: list[subprocess.Popen]) -> None:
    """Ask commands that still run to end; whoever has not done so after 5 s is killed."""
    with undisturbed():
        running = [process for process in processes if process.poll() is None]
        for process in running:
            send(os.killpg, process.pid, signal.SIGTERM)
        patience = time.monotonic() + 5
        for process in running:
            try:
                process.wait(max(0, patience - time.monotonic()))
            except subprocess.TimeoutExpired:
                send(os.killpg, process.pid, signal.SIGKILL)
                process.wait()


def send(kill, pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except ProcessLookupError:  # it has ended by itself
        pass


@contextmanager
def alone(net: str) -> Iterator[None]:
    """Hold the net for this process. The kernel gives it back, whatever this process dies of.

    Raises HostsError if another process has it.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0hosts.py {net}")  # an abstract name: there is no file to be left behind
        except OSError:
            raise HostsError(
                f"hosts of net {net} are in use; --net NAME makes further ones"
            ) from None
        yield


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """-> a file descriptor of the folder"""
    folder = os.open(path, os.O_RDONLY)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whoever asks us to stop has to wait until this is done."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_when_told() -> None:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: by an exception, with nothing behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup has told us not to care
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def ip(arguments: str) -> str:
    """Run ip -> what it prints. Raises HostsError with what it says went wrong."""
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise HostsError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str | None:
    """What this machine lacks for hosts, in one line; None if they can be made."""
    if sys.platform != "linux":
        return "hosts are network namespaces, and only Linux has them"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(program):
            return f"the program {program} is needed; it comes with the package {package}"
    if os.geteuid() != 0:
        return 'only root may make hosts: sudo env "PATH=$PATH" python ...'
    probe = ["unshare", "--net", "--uts", "--mount", "true"]
    probed = subprocess.run(probe, capture_output=True, text=True, timeout=30)
    return f"no namespaces here: {probed.stderr.strip()}" if probed.returncode else None


def parse() -> tuple[argparse.Namespace, list[str]]:
    """-> flags, and the command after "--" """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], usage="hosts.py [--net NAME] ACTION ... [-- COMMAND]"
    )
    parser.error = fail
    parser.add_argument("--net", default="stage5", help="which set of hosts: one word")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (("with", "make hosts, run COMMAND on all"), ("up", "make hosts that stay")):
        action = actions.add_parser(name, help=f"NUMBER: {text}")
        action.add_argument("number", type=number(1, 32), metavar="NUMBER")
    action = actions.add_parser("run", help="--all or HOST ...: run COMMAND there")
    action.add_argument("--all", action="store_true")
    action.add_argument("host", nargs="*")
    for name, text in (("cut", "pull its cable"), ("join", "put its cable back")):
        actions.add_parser(name, help=f"HOST: {text}").add_argument("host")
    actions.add_parser("down", help="end all that runs on the hosts and remove them")
    for action in actions.choices.values():
        action.error = fail
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:split]), words[split + 1 :]
    if args.action in ("with", "run") and not command:
        fail("a command is missing: -- COMMAND")
    if args.action not in ("with", "run") and command:
        fail(f"{args.action} takes no command")
    if args.action == "run" and args.all == bool(args.host):
        fail("run --all, or run HOST")
    return args, command


def number(low: int, high: int) -> Callable[[str], int]:
    """-> an argparse type: an int from low to high"""

    def read(text: str) -> int:
        if not low <= int(text) <= high:
            raise ValueError
        return int(text)

    read.__name__ = f"number from {low} to {high}"  # argparse prints it when read refuses
    return read


def fail(message: str) -> None:
    print(f"hosts: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        main()
    except (HostsError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("\nhosts: interrupted", file=sys.stderr)
        sys.exit(130)

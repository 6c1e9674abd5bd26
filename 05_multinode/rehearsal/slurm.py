r"""A real Slurm on one machine: its daemons run on the nodes that hosts.py makes.

host0 is the login node, the controller and a compute node; host1, host2, ... are further compute
nodes. For trying job files out. Needs root and Debian's packages slurmctld, slurmd, slurm-client,
munge, iproute2 and util-linux.

    python 05_multinode/rehearsal/slurm.py with 2 -- sbatch --wait 05_multinode/launch/job.sbatch

makes two nodes with Slurm, runs the command on host0, and removes all of it, also after Ctrl-C.
Meanwhile run starts further commands there, from another terminal (README.md shows it).
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lib import processes

hosts = importlib.import_module("05_multinode.rehearsal.hosts")

PATIENCE = 60  # seconds for the daemons to be ready
CONFIGURATION = Path(__file__).with_name("slurm.conf")


class Slurm:
    """Slurm on the nodes of a net, which are up."""

    def __init__(self, net: str = "slurm"):
        self.hosts = hosts.Hosts(net)
        self.state = self.hosts.list.parent / "slurm"  # in a folder that Hosts.down removes
        self.env = os.environ | {"PATH": path(), "SLURM_CONF": str(self.state / "slurm.conf")}

    def write_files(self) -> None:
        self.state.mkdir(mode=0o755)
        (self.state / "munge.key").touch(mode=0o600)
        (self.state / "munge.key").write_bytes(os.urandom(1024))
        (self.state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded, never used
        configuration = CONFIGURATION.read_text().format(
            net=self.hosts.net,
            state=self.state,
            first_job=int(time.time()) % 10**6 + 1,
            nodes=",".join(self.hosts.names()),
        )
        (self.state / "slurm.conf").write_text(configuration)

    def start_daemons(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"seed-file": "munged.seed", "log-file": "munged.log"}
        munged = [f"--{option}={self.state / name}" for option, name in files.items()]
        daemons = [self.daemon("host0", "munged", "--foreground", *munged)]
        wait(daemons, (self.state / "munge.socket").exists)
        daemons.append(self.daemon("host0", "slurmctld", "-D"))
        for name in self.hosts.names():
            daemons.append(self.daemon(name, "slurmd", "-D"))
        wait(daemons, self.ready)

    def daemon(self, name: str, *command: str) -> subprocess.Popen:
        """Start a daemon on a node. Its output, until it has a log of its own, is in its .out."""
        with open(self.state / f"{command[0]}-{name}.out", "w") as out:
            process = self.hosts.start(name, list(command), env=self.env, stdout=out, stderr=out)
        process.out = Path(out.name)
        return process

    def ready(self) -> bool:
        """Are all nodes idle?"""
        command = ["sinfo", "--partition=all", "--noheader", "--Node", "--format=%T"]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with self.hosts.start("host0", command, env=self.env, **options) as process:
            states = process.communicate(timeout=PATIENCE)[0]
        return states.split() == ["idle"] * len(self.hosts.names())

    def run(self, command: list[str]) -> int:
        """Run a command on host0, its output behind the name -> exit code."""
        return self.hosts.run(["host0"], command, self.env)["host0"]


@contextmanager
def slurm_for_a_while(number: int, net: str = "slurm") -> Iterator[Slurm]:
    """Slurm that is removed whatever happens. Raises RehearsalError if it cannot be made."""
    with hosts.hosts_for_a_while(number, net):
        slurm = Slurm(net)
        slurm.write_files()
        slurm.start_daemons()
        yield slurm


def wait(daemons: list[subprocess.Popen], ready: Callable[[], bool]) -> None:
    """Wait until it is ready. Raises RehearsalError if a daemon has ended, or after a minute."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        for process in daemons:
            if process.poll() is not None:
                name = process.out.stem
                code = process.returncode
                reason = process.out.read_text().strip().rpartition("\n")[2]
                raise hosts.RehearsalError(f"{name} ended with exit code {code}: {reason}")
        if time.monotonic() > deadline:
            raise hosts.RehearsalError(f"Slurm was not ready within {PATIENCE} s")
        time.sleep(0.1)


def path() -> str:
    """Where programs are looked for: daemons are in /usr/sbin, which is not in every PATH."""
    return f"{os.environ['PATH']}{os.pathsep}/usr/sbin"


def missing() -> str | None:
    """What this machine lacks for Slurm, in one line; None if nothing."""
    packages = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}
    packages |= {"sbatch": "slurm-client", "srun": "slurm-client", "sinfo": "slurm-client"}
    for program, package in packages.items():
        if not shutil.which(program, path=path()):
            return f"the program {program} is needed; it comes with Debian's package {package}"
    return hosts.missing()


def main() -> int:
    args = parse()
    if reason := missing():
        hosts.fail(reason)
    processes.exit_on_signals()
    if args.action == "run":
        return Slurm(args.net).run(args.command)
    with slurm_for_a_while(args.number, args.net) as slurm:
        return slurm.run(args.command)


def parse() -> argparse.Namespace:
    parser, actions = hosts.parser_of(__doc__, "slurm")
    actions.add_parser("run", help="-- COMMAND: on host0").add_argument("command", nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    hosts.run_main(main)

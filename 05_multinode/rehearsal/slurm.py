r"""A real Slurm on one machine: its daemons on the hosts of 05_multinode/rehearsal/hosts.py.

host0 is the login node, the controller and a node; host1, host2, ... are further nodes. For trying
job files out, and for the tests. Needs root and Debian's packages slurmctld, slurmd, slurm-client,
munge, iproute2 and util-linux.

Slurm for one command, which runs on host0; afterwards all of it is gone, also after Ctrl-C:

    python 05_multinode/rehearsal/slurm.py with 2 -- sbatch --wait 05_multinode/launch/job.sbatch

Slurm that stays until it is taken down:

    python 05_multinode/rehearsal/slurm.py up 3
    python 05_multinode/rehearsal/slurm.py run -- sinfo
    python 05_multinode/rehearsal/hosts.py --net slurm cut host1
    python 05_multinode/rehearsal/slurm.py down
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
hosts = importlib.import_module("05_multinode.rehearsal.hosts")

PATIENCE = 60  # seconds for the daemons to find each other
CONFIGURATION = """\
ClusterName={net}
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is requeued waits until its credentials have expired: otherwise for two minutes.
AuthInfo=socket={state}/munge.socket,cred_expire=5
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool-%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
# Nothing here touches control groups, which hosts do not see.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
# A node that has been silent for so long is lost.
SlurmdTimeout=10
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
# The nodes share this machine. Each may have as many tasks as tests need.
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


class Slurm:
    """Slurm on the hosts of a net, whether it is up or not."""

    def __init__(self, net: str = "slurm"):
        self.hosts = hosts.Hosts(net)
        # In a folder of the hosts': whoever takes them down removes this, too.
        self.state = self.hosts.list.parent / "slurm"
        self.env = os.environ | {"PATH": path(), "SLURM_CONF": str(self.state / "slurm.conf")}

    def up(self, number: int) -> None:
        """Make host0 to host<number - 1> with Slurm on them, in the place of those that are there.

        Raises HostsError if it cannot be done; then nothing is left.
        """
        if not self.hosts.list.exists():  # somebody was killed between two files
            shutil.rmtree(self.state, ignore_errors=True)
        self.hosts.up(number)
        try:
            self.write_files()
            self.start_daemons()
        except BaseException:
            self.hosts.down()
            raise

    def write_files(self) -> None:
        self.state.mkdir(mode=0o755)
        (self.state / "munge.key").touch(mode=0o600)
        (self.state / "munge.key").write_bytes(os.urandom(1024))
        (self.state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded, never used
        values = {"net": self.hosts.net, "state": self.state, "nodes": ",".join(self.hosts.names())}
        (self.state / "slurm.conf").write_text(CONFIGURATION.format(**values))

    def start_daemons(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"seed-file": "munged.seed", "log-file": "munged.log"}
        munged = [f"--{option}={self.state / name}" for option, name in files.items()]
        started = {"munged": self.daemon("host0", "munged", "--foreground", *munged)}
        wait(started, (self.state / "munge.socket").exists)
        started["slurmctld"] = self.daemon("host0", "slurmctld", "-D")
        for name in self.hosts.names():
            started[f"slurmd on {name}"] = self.daemon(name, "slurmd", "-D")
        wait(started, self.ready)

    def daemon(self, name: str, *command: str) -> subprocess.Popen:
        """Start a daemon on a host. What it says before it has a log of its own is in its .out."""
        with open(self.state / f"{command[0]}-{name}.out", "w") as out:
            process = self.hosts.start(name, [*command], env=self.env, stdout=out, stderr=out)
        process.out = Path(out.name)
        return process

    def ready(self) -> bool:
        """Do all nodes wait for work?"""
        nodes = self.ask("sinfo", "--noheader", "--Node", "--format=%T")
        return nodes.split() == ["idle"] * len(self.hosts.names())

    def ask(self, *command: str) -> str:
        """-> what a command says on host0; nothing if it fails"""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with self.hosts.start("host0", [*command], env=self.env, **options) as process:
            return process.communicate(timeout=PATIENCE)[0]

    def run(self, command: list[str]) -> int:
        """Run a command on host0, its output behind the name -> exit code."""
        os.environ.update(self.env)
        return self.hosts.run(["host0"], command)["host0"]

    def down(self) -> None:
        self.hosts.down()


@contextmanager
def slurm_for_a_while(number: int, net: str = "slurm") -> Iterator[Slurm]:
    """Slurm that is taken down whatever happens. Raises HostsError if it cannot be made."""
    slurm = Slurm(net)
    with hosts.alone(net):
        try:
            slurm.up(number)
            yield slurm
        finally:
            slurm.down()


def wait(started: dict[str, subprocess.Popen], ready) -> None:
    """Wait until it is ready. Raises HostsError if a daemon has ended, or after a minute."""
    patience = time.monotonic() + PATIENCE
    while not ready():
        for name, process in started.items():
            if process.poll() is not None:
                said = process.out.read_text().strip().rpartition("\n")[2]
                raise hosts.HostsError(f"{name} ended with exit code {process.returncode}: {said}")
        if time.monotonic() > patience:
            raise hosts.HostsError(f"Slurm was not ready within {PATIENCE} s")
        time.sleep(0.1)


def path() -> str:
    """Where programs are looked for: daemons are in /usr/sbin, which not every shell knows."""
    return f"{os.environ['PATH']}{os.pathsep}/usr/sbin"


def missing() -> str | None:
    """What this machine lacks for Slurm on hosts, in one line; None if nothing."""
    packages = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}
    packages |= {"sbatch": "slurm-client", "srun": "slurm-client", "sinfo": "slurm-client"}
    for program, package in packages.items():
        if not shutil.which(program, path=path()):
            return f"the program {program} is needed; it comes with Debian's package {package}"
    return hosts.missing()


def main() -> None:
    args, command = parse()
    if reason := missing():
        raise hosts.HostsError(reason)
    hosts.leave_when_told()
    slurm = Slurm(args.net)
    if args.action == "with":
        with slurm_for_a_while(args.number, args.net):
            sys.exit(slurm.run(command))
    elif args.action == "run":
        sys.exit(slurm.run(command))
    elif args.action == "down":
        slurm.down()
    else:
        with hosts.alone(args.net):
            slurm.up(args.number)
        print(f"{slurm.state / 'slurm.conf'}")


def parse() -> tuple[argparse.Namespace, list[str]]:
    """-> flags, and the command after "--" """
    usage = "slurm.py [--net NAME] ACTION ... [-- COMMAND]"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=usage)
    parser.add_argument("--net", default="slurm", help="which set of hosts: one word")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (("with", "make Slurm, run COMMAND"), ("up", "make Slurm that stays")):
        action = actions.add_parser(name, help=f"NUMBER: {text}")
        action.add_argument("number", type=hosts.number(1, 32), metavar="NUMBER")
    actions.add_parser("run", help="run COMMAND on host0")
    actions.add_parser("down", help="end all that runs on the hosts and remove them")
    for each in (parser, *actions.choices.values()):
        each.error = fail
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:split]), words[split + 1 :]
    if (args.action in ("with", "run")) != bool(command):
        fail(f"{args.action} needs a command, after --" if not command else f"{args.action}: no --")
    return args, command


def fail(message: str) -> None:
    print(f"slurm: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        main()
    except (hosts.HostsError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("\nslurm: interrupted", file=sys.stderr)
        sys.exit(130)

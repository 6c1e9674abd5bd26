"""A real Slurm on hosts out of namespaces: the jobs train, and go on after they were disturbed."""

import importlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Reader, hosts, left, one_line, record_of, wait_for
from killed_ranks import distance

slurm_py = importlib.import_module("05_multinode.rehearsal.slurm")

NET = f"slurm{os.getpid()}"  # of the tool; the cluster that several tests share has its own
CLUSTER = f"cluster{os.getpid()}"
TOOL = f"python 05_multinode/rehearsal/slurm.py --net {NET}"
WHY_NOT = slurm_py.missing()
NEEDS_SLURM = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
EPOCHS = 20
PATIENCE = 180  # seconds, for what takes 20 on two idle cores
FLAGS = f"-e {EPOCHS} -b 24 --lr 0.01 --device cpu"


class Cluster:
    """Slurm on three hosts, and what a user of it does, in a folder of their own."""

    def __init__(self, slurm, reader):
        self.slurm, self.folder = slurm, reader.folder
        self.env = reader.env | {"SLURM_CONF": slurm.env["SLURM_CONF"]}

    def do(self, command):
        """Run a command on the login node -> what it says."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.slurm.hosts.start(
            "host0", command.split(), cwd=self.folder, env=self.env, **options
        )
        out = process.communicate(timeout=60)[0]
        assert process.returncode == 0, out
        return out

    def submit(self, job, name, options):
        flags = f"{FLAGS} --checkpoint {name}.pt --record {name}"
        command = f"sbatch --parsable {options} 05_multinode/launch/{job} {flags}"
        return self.do(command).strip()

    def show(self, number):
        """What Slurm knows about a job, and what the job has said."""
        (out,) = [*self.folder.glob(f"*-{number}.out")] or [Path(os.devnull)]
        return self.do(f"scontrol --oneliner show job {number}"), out.read_text()

    def finish(self, number):
        """Wait for a job's end -> as show. Fails if it did not go well."""
        over = r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)"
        wait_for(lambda: re.search(over, self.show(number)[0]), PATIENCE)
        known, said = self.show(number)
        assert "JobState=COMPLETED" in known, f"{known}\n{said}"
        return known, said

    def snapshot(self, number):
        """When the last snapshot was written; 0 before the first one."""
        path = self.folder / f"checkpoints/stage5-{number}.snapshot"
        return path.stat().st_mtime_ns if path.exists() else 0

    def record(self, name):
        return record_of(self.folder / name)[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, small_data):
    reader = Reader(tmp_path_factory.mktemp("slurm"), small_data)
    with slurm_py.slurm_for_a_while(3, CLUSTER) as slurm:
        yield Cluster(slurm, reader)
    assert not left(CLUSTER)


@NEEDS_SLURM
@pytest.mark.slow
def test_every_task_becomes_the_rank_that_it_is(cluster):
    ranks = "env MASTER_ADDR=host0 MASTER_PORT=11234 05_multinode/launch/srun_rank.sh sh"
    tell = "echo $RANK/$WORLD_SIZE,$LOCAL_RANK/$LOCAL_WORLD_SIZE,$GROUP_RANK/$GROUP_WORLD_SIZE"
    (cluster.folder / "tell.sh").write_text(f"{tell},$(hostname)\n")
    said = cluster.do(f"srun --nodes=2 --ntasks-per-node=2 {ranks} tell.sh")
    told = "0/4,0/2,0/2,host0 1/4,1/2,0/2,host0 2/4,0/2,1/2,host1 3/4,1/2,1/2,host1"
    assert sorted(said.split()) == told.split()


@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute, on two idle cores
def test_a_job_whose_time_is_up_and_that_then_loses_a_node(cluster):
    """Twice it goes back into the queue, and it ends with the weights of one left in peace.

    That one runs at the same time on the same nodes, and without torchrun.
    """
    peaceful = cluster.submit("job_srun.sbatch", "srun", "--ntasks-per-node=1")
    number = cluster.submit("job.sbatch", "torchrun", "--nodelist=host0")
    wait_for(lambda: cluster.snapshot(number), PATIENCE)
    cluster.do(f"scancel --batch --signal=USR1 {number}")  # as Slurm does when time is nearly up
    known, said = cluster.finish(peaceful)
    assert "Restarts=0 " in known and "NodeList=host[0-1] " in known
    assert epochs_done(said) == [0]
    assert cluster.record("srun")["host"] == "host0"  # where rank 0 is looked for

    wait_for(lambda: sum(epochs_done(cluster.show(number)[1])) > 0, PATIENCE)
    before = cluster.snapshot(number)
    wait_for(lambda: cluster.snapshot(number) > before, PATIENCE)
    assert "NodeList=host[0-1] " in cluster.show(number)[0]
    cluster.slurm.hosts.cut("host1")  # Slurm would see it in half a minute: let us say so
    cluster.do("scontrol update NodeName=host1 State=DOWN Reason=cable")
    known, said = cluster.finish(number)
    assert "Restarts=2 " in known and "NodeList=host[0,2] " in known
    assert said.count("back into the queue") == 1 and "DUE TO NODE FAILURE" in said, said
    begun, first, second = epochs_done(said)
    assert begun == 0 < first < second < EPOCHS == len(cluster.record("torchrun")["history"])
    assert distance(cluster.folder / "srun.pt", cluster.folder / "torchrun.pt") == 0


def epochs_done(said):
    """How many epochs were done each time that the two nodes began to train."""
    return [int(done) for done in re.findall(r"2 rank\(s\) on 2 node\(s\), (\d+) epoch", said)]


# ---------------------------------------------------------------- the tool


def start_job(reader, net):
    """Slurm with a job that takes long -> the process of the tool"""
    (reader.folder / "job").write_text("#!/bin/sh\nsrun --nodes=2 sleep 1000\n")
    process = reader.start(f"{TOOL} with 2 -- sbatch --wait --nodes=2 job")
    wait_for(lambda: left(NET) and sum(map(sleeps, net.pids(net.ours()))) == 2)
    return process


def sleeps(pid):
    command = Path(f"/proc/{pid}/cmdline")  # srun has looked up where sleep is
    return command.exists() and command.read_text().endswith("/sleep\x001000\0")


@pytest.fixture
def net():
    yield hosts.Hosts(NET)
    hosts.Hosts(NET).down()


@NEEDS_SLURM
@pytest.mark.slow
def test_whatever_stops_the_tool_leaves_nothing(reader, net):
    process = start_job(reader, net)
    os.kill(process.pid, signal.SIGINT)
    result = reader.finish(process, timeout=60)
    assert result.code == 130 and result.err.endswith("slurm: interrupted\n")
    assert not left(NET)
    killed = start_job(reader, net)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert left(NET)
    again = reader.run(f"{TOOL} with 1 -- sh -c 'sinfo --noheader --format=%D; exit 7'")
    assert (again.code, again.out) == (7, "host0 | 1\n") and "what was left" in again.err
    reader.finish(killed)  # fails if a process of it is left
    assert not left(NET)


@NEEDS_SLURM
@pytest.mark.slow
def test_slurm_that_stays_until_it_is_taken_down(reader, net):
    up = reader.start(f"{TOOL} up 2")
    assert up.communicate(timeout=120)[0].endswith("/slurm.conf\n") and up.returncode == 0
    ran = reader.run(f"{TOOL} run -- srun --nodes=2 hostname")
    assert sorted(ran.out.splitlines()) == ["host0 | host0", "host0 | host1"], ran
    down = reader.run(f"{TOOL} down")
    assert (down.code, down.out, down.err, left(NET)) == (0, "", "", [])
    reader.finish(up)  # fails if a daemon is left


@pytest.mark.parametrize(
    "command, told",
    [
        ("with 2", "with needs a command"),
        ("run", "run needs a command"),
        ("with 0 -- true", "number from 1 to 32"),
        ("down -- true", "down: no --"),
        ("", "ACTION"),
    ],
)
def test_bad_input(reader, command, told):
    one_line(reader.run(f"{TOOL} {command}"), "slurm", told)


def test_without_the_programs(reader, monkeypatch):
    if any(Path("/usr/sbin", name).exists() for name in ("slurmctld", "slurmd")):
        monkeypatch.setattr(slurm_py, "path", lambda: str(reader.folder))
        assert "it comes with Debian's package slurmctld" in slurm_py.missing()
    else:
        one_line(reader.run(f"{TOOL} up 2"), "slurm", "it comes with Debian's package")


@NEEDS_SLURM
def test_run_without_slurm(reader):
    one_line(reader.run(f"{TOOL} run -- sinfo"), "slurm", "no hosts of net")

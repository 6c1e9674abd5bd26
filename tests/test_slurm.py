"""A real Slurm on nodes out of namespaces: the jobs train, and resume after they were disturbed."""

import importlib
import os
import re
import signal
import subprocess

import psutil
import pytest
from conftest import Reader, hosts, left, record_of, wait_for
from killed_ranks import distance

slurm_py = importlib.import_module("05_multinode.rehearsal.slurm")

NET = f"slurm{os.getpid()}"  # of the tool; the cluster that several tests share has its own
CLUSTER = f"cluster{os.getpid()}"
TOOL = f"python 05_multinode/rehearsal/slurm.py --net {NET}"
WHY_NOT = slurm_py.missing()
NEEDS_SLURM = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
EPOCHS = 20
PATIENCE = 240  # seconds, for what takes 20 on two idle cores
FLAGS = f"-e {EPOCHS} -b 24 --lr 0.01 --device cpu"


class Cluster:
    """Slurm on three nodes, and what a user of it does, in a folder of their own."""

    def __init__(self, slurm, reader):
        self.slurm, self.folder = slurm, reader.folder
        self.env = reader.env | {"SLURM_CONF": slurm.env["SLURM_CONF"]}

    def run(self, command):
        """Run a command on the login node -> its output."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.slurm.hosts.start(
            "host0", command.split(), cwd=self.folder, env=self.env, **options
        )
        out = process.communicate(timeout=60)[0]
        assert process.returncode == 0, out
        return out

    def submit(self, job, name, options, more=""):
        """Submit a job file -> the job's number."""
        flags = f"{FLAGS} --checkpoint {name}.pt --record {name}.jsonl {more}"
        return self.run(f"sbatch --parsable {options} 05_multinode/launch/{job} {flags}").strip()

    def state(self, number):
        """What Slurm shows of a job."""
        return self.run(f"scontrol --oneliner show job {number}")

    def output(self, number):
        """What a job has printed so far."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{number}.out"))

    def epochs_done(self, number):
        """How many epochs were done each time that the two nodes began to train."""
        begin = r"2 rank\(s\) on 2 node\(s\), (\d+) epoch"
        return [int(done) for done in re.findall(begin, self.output(number))]

    def finish(self, number):
        """Wait for a job's end -> its last state. Fails if it was not completed."""
        over = r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)"
        wait_for(lambda: re.search(over, self.state(number)), PATIENCE)
        state = self.state(number)
        assert "JobState=COMPLETED" in state, f"{state}\n{self.output(number)}"
        return state

    def snapshot(self, number):
        """When the last snapshot was written; 0 before the first one."""
        path = self.folder / f"checkpoints/stage5-{number}.snapshot"
        return path.stat().st_mtime_ns if path.exists() else 0


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
    show = "echo $RANK/$WORLD_SIZE,$LOCAL_RANK/$LOCAL_WORLD_SIZE,$GROUP_RANK/$GROUP_WORLD_SIZE"
    (cluster.folder / "show.sh").write_text(f"{show},$(hostname)\n")
    shown = cluster.run(f"srun --nodes=2 --ntasks-per-node=2 {ranks} show.sh")
    expected = "0/4,0/2,0/2,host0 1/4,1/2,0/2,host0 2/4,0/2,1/2,host1 3/4,1/2,1/2,host1"
    assert sorted(shown.split()) == expected.split()


@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute, on two idle cores
@pytest.mark.parametrize("job", ["job.sbatch", "job_srun.sbatch --ntasks-per-node=1"])
def test_told_in_the_middle_of_an_epoch_all_ranks_save_and_resume_with_the_next_step(cluster, job):
    job, *options = job.split()
    command = ["sbatch", "--parsable", "--nodelist=host0", "--export=ALL,SCRIPT=resume.py"]
    command = [*command, *options, f"05_multinode/launch/{job}", "--steps=300", "--pause=0.05"]
    undisturbed, told = (cluster.run(" ".join(command)).strip() for _ in range(2))
    wait_for(lambda: "0 of 300 steps done" in cluster.output(told), PATIENCE)
    cluster.run(f"scancel --batch --signal=USR1 {told}")  # as Slurm does when time is nearly up
    assert "Restarts=1 " in cluster.finish(told) and "Restarts=0 " in cluster.finish(undisturbed)
    saved = int(re.search(r"saved after step (\d+)", cluster.output(told))[1])
    assert f"{saved} of 300 steps done" in cluster.output(told) and 0 < saved < 300
    ends = [re.search("sum of the weights .*", cluster.output(n))[0] for n in (told, undisturbed)]
    assert ends[0] == ends[1]


@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_told_by_a_preemption_a_job_saves_in_time(cluster):
    """A job in the partition `urgent` needs all CPUs of the two nodes."""
    nodes = "--nodelist=host[0-1] --export=ALL,SCRIPT=resume.py"
    job = f"sbatch --parsable {nodes} 05_multinode/launch/job.sbatch --steps=300 --pause=0.05"
    job = cluster.run(job).strip()
    wait_for(lambda: "0 of 300 steps done" in cluster.output(job), PATIENCE)
    cluster.run("srun --partition=urgent --nodelist=host[0-1] --nodes=2 --exclusive sleep 5")
    assert "JobState=COMPLETED" in cluster.finish(job)
    saved = int(re.search(r"saved after step (\d+)", cluster.output(job))[1])
    assert f"{saved} of 300 steps done" in cluster.output(job) and 0 < saved < 300


@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute, on two idle cores
def test_a_job_whose_time_is_up_and_that_then_loses_a_node(cluster):
    """Twice it goes back into the queue, and it ends with the weights of an undisturbed one.

    That one runs at the same time on the same nodes, and without torchrun.
    """
    undisturbed = cluster.submit("job_srun.sbatch", "srun", "--ntasks-per-node=1")
    job = cluster.submit("job.sbatch", "torchrun", "--nodelist=host0")
    wait_for(lambda: cluster.snapshot(job), PATIENCE)
    cluster.run(f"scancel --batch --signal=USR1 {job}")  # as Slurm does when time is nearly up
    state = cluster.finish(undisturbed)
    assert "Restarts=0 " in state and "NodeList=host[0-1] " in state
    assert cluster.epochs_done(undisturbed) == [0]
    assert record_of(cluster.folder, "srun.jsonl")["host"] == "host0"  # where MASTER_ADDR leads

    wait_for(lambda: sum(cluster.epochs_done(job)) > 0, PATIENCE)
    before = cluster.snapshot(job)
    wait_for(lambda: cluster.snapshot(job) > before, PATIENCE)
    assert "NodeList=host[0-1] " in cluster.state(job)
    cluster.slurm.hosts.cut("host1")  # Slurm notices within a minute; here at once
    cluster.run("scontrol update NodeName=host1 State=DOWN Reason=cut")
    state = cluster.finish(job)
    assert "Restarts=2 " in state and "NodeList=host[0,2] " in state
    output = cluster.output(job)
    assert output.count("back into the queue") == 1 and "DUE TO NODE FAILURE" in output, output
    begun, first, second = cluster.epochs_done(job)
    history = record_of(cluster.folder, "torchrun.jsonl")["history"]
    assert begun == 0 < first < second < EPOCHS == len(history)
    assert distance(cluster.folder / "srun.pt", cluster.folder / "torchrun.pt") == 0


@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_without_torchrun_that_loses_a_node_goes_back_into_the_queue(cluster):
    """Slurm's default is 300 s and the job's timeout 900; here 10 (slurm.py) and 30 seconds."""
    cluster.slurm.hosts.join("host1")  # if the test before has cut it off
    states = "sinfo --partition=all --noheader --Node --format=%N_%t"
    if "host1_idle" not in cluster.run(states):
        cluster.run("scontrol update NodeName=host1 State=RESUME")
        wait_for(lambda: "host1_idle" in cluster.run(states), 60)
    job = cluster.submit(
        "job_srun.sbatch", "lost", "--ntasks-per-node=1 --nodelist=host0", "--timeout 30"
    )
    wait_for(lambda: cluster.snapshot(job), PATIENCE)
    before = cluster.snapshot(job)
    wait_for(lambda: cluster.snapshot(job) > before, PATIENCE)
    nodes = re.search(r" NodeList=(\S+)", cluster.state(job))[1]
    cluster.slurm.hosts.cut(
        {"host[0-1]": "host1", "host[0,2]": "host2"}[nodes]
    )  # nobody tells Slurm
    assert "Restarts=1 " in cluster.finish(job)
    assert "DUE TO NODE FAILURE" in cluster.output(job)
    begun, resumed = cluster.epochs_done(job)
    assert begun == 0 < resumed


# ---------------------------------------------------------------- the tool


@pytest.fixture
def net():
    yield hosts.Hosts(NET)
    hosts.Hosts(NET).down()


@NEEDS_SLURM
@pytest.mark.slow
def test_commands_run_while_slurm_is_there(reader, net):
    slurm = reader.start(f"{TOOL} with 2 -- sleep 1000")
    wait_for(lambda: "sleep" in programs(net), 120)
    ran = reader.run(f"{TOOL} run -- srun --nodes=2 hostname")
    assert sorted(ran.out.splitlines()) == ["host0 | host0", "host0 | host1"], ran
    slurm.terminate()
    assert reader.finish(slurm).code == 128 + signal.SIGTERM and not left(NET)


def programs(net):
    return [psutil.Process(pid).name() for pid in net.pids([f"{net.net}-host0"])]

"""A real Slurm on nodes out of namespaces: the jobs train, and resume after they were disturbed."""

import importlib
import os
import re
import subprocess

import pytest
from conftest import ROOT, Reader, left, record_of, wait_for
from killed_ranks import distance

slurm_py = importlib.import_module("05_multinode.rehearsal.slurm")
CLUSTER = f"cluster{os.getpid()}"
EPOCHS = 20
PATIENCE = 240  # seconds, for what takes 20 on two idle cores
FLAGS = f"-e {EPOCHS} -b 24 --lr 0.01 --device cpu"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a minute, on two idle cores
    pytest.mark.skipif(slurm_py.missing() is not None, reason=str(slurm_py.missing())),
]


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

    def other_node(self, number):
        """The node of a job that is not host0."""
        nodes = re.search(r" NodeList=(\S+)", self.state(number))[1]
        return {"host[0-1]": "host1", "host[0,2]": "host2"}[nodes]

    def all_nodes_join(self):
        """Connect the nodes that a test has cut off, and let Slurm use them."""
        states = "sinfo --partition=all --noheader --Node --format=%N_%t"
        for node in ("host1", "host2"):
            self.slurm.hosts.join(node)
            if f"{node}_idle" not in self.run(states):
                self.run(f"scontrol update NodeName={node} State=RESUME")
        wait_for(lambda: self.run(states).count("_idle") == 3, 60)

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


def test_every_task_becomes_the_rank_that_it_is(cluster):
    ranks = "env MASTER_ADDR=host0 MASTER_PORT=11234 05_multinode/launch/srun_rank.sh sh"
    show = "echo $RANK/$WORLD_SIZE,$LOCAL_RANK/$LOCAL_WORLD_SIZE,$GROUP_RANK/$GROUP_WORLD_SIZE"
    (cluster.folder / "show.sh").write_text(f"{show},$(hostname)\n")
    shown = cluster.run(f"srun --nodes=2 --ntasks-per-node=2 {ranks} show.sh")
    expected = "0/4,0/2,0/2,host0 1/4,1/2,0/2,host0 2/4,0/2,1/2,host1 3/4,1/2,1/2,host1"
    assert sorted(shown.split()) == expected.split()


def test_an_interactive_srun_starts_one_rank_per_task(cluster):
    """The line of docs/your_script/cheatsheet.md on one node, without its GPUs."""
    (cluster.folder / "hello.py").write_text(
        "import os, torch.distributed as dist\n"
        'dist.init_process_group("gloo")\n'
        "print(f\"{dist.get_rank()}/{dist.get_world_size()},{os.environ['LOCAL_RANK']}\")\n"
        "dist.destroy_process_group()\n"
    )
    page = (ROOT / "docs/your_script/cheatsheet.md").read_text()
    line = re.search("`(MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 srun .*?)`", page)[1]
    line = line.replace("--gres gpu:2 --cpus-per-task 8 ", "").replace("SCRIPT", "hello.py")
    ranks = re.findall(r"\d/\d,\d", cluster.run(f"env {line}"))  # There are warnings, too.
    assert sorted(ranks) == ["0/2,0", "1/2,1"]


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


@pytest.mark.parametrize("job", ["job.sbatch", "job_srun.sbatch --ntasks-per-node=1"])
def test_a_job_that_loses_a_node_goes_back_into_the_queue_and_resumes(cluster, job):
    """Slurm notices it within 300 s by default, here within 10 (slurm.py)."""
    cluster.all_nodes_join()
    job, *options = job.split()
    number = cluster.submit(job, job, " ".join(["--nodelist=host0", *options]), "--timeout 30")
    wait_for(lambda: cluster.snapshot(number), PATIENCE)
    before = cluster.snapshot(number)
    wait_for(lambda: cluster.snapshot(number) > before, PATIENCE)
    other = cluster.other_node(number)
    cluster.slurm.hosts.cut(other)
    if job == "job.sbatch":  # and here at once
        cluster.run(f"scontrol update NodeName={other} State=DOWN Reason=cut")
    assert "Restarts=1 " in cluster.finish(number)
    assert "DUE TO NODE FAILURE" in cluster.output(number)
    begun, resumed = cluster.epochs_done(number)
    record = record_of(cluster.folder, f"{job}.jsonl")
    assert begun == 0 < resumed < EPOCHS == len(record["history"])
    assert record["host"] == "host0"  # where MASTER_ADDR leads
    ends = list(cluster.folder.glob("job*.pt"))  # of the other job, too, if that came first
    assert distance(ends[0], ends[-1]) == 0

"""05_multinode/launch/: bad input is one line, and what the scripts start trains.

The job files are tried out on a real Slurm in test_slurm.py.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from conftest import NEEDS_HOSTS, NET, ROOT, hosts, record_of, wait_for

LAUNCH = ROOT / "05_multinode/launch"
JOBS = sorted(LAUNCH.glob("*.sbatch"))
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")


def manifest():
    """kubernetes.yaml and the claim's file -> {kind: object}"""
    text = "---\n".join((LAUNCH / f"{name}.yaml").read_text() for name in ("kubernetes", "volume"))
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container():
    (container,) = manifest()["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-euc"] and len(container["args"]) == 1
    return container


def fake(folder, name, script):
    """Put a program of that name where `run` looks first."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / name).chmod(0o755)


def environment(folder, **env):
    return os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"} | env


def run(command, folder, below=".", **env):
    options = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command, cwd=folder / below, env=environment(folder, **env), **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with stage 5 in it; torchrun and srun only print how they are called."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "05_multinode").symlink_to(LAUNCH.parent)
    for name in ("torchrun", "srun"):
        fake(tmp_path, name, f'for word in {name} "$@"; do echo "<$word>"; done; exit 3')
    fake(tmp_path, "nvidia-smi", "exit 9")
    fake(tmp_path, "scontrol", 'test "$*" = "show hostnames n[7-8]" && printf "n7\\nn8\\n"')
    return tmp_path


@pytest.mark.parametrize("version", ["1.26", kubernetes_validate.latest_version()])
def test_the_manifest_is_valid(version):
    for resource in manifest().values():
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_names_and_numbers_in_the_manifest_fit_together():
    service, claim, job = (manifest()[kind] for kind in ("Service", "PersistentVolumeClaim", "Job"))
    spec, template = job["spec"], job["spec"]["template"]
    pod, script = template["spec"], container()["args"][0]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert f"until getent hosts {first};" in script and f"--rdzv-endpoint {first}:" in script
    assert f"--nnodes {spec['completions']} " in script
    assert spec["completions"] == spec["parallelism"] and spec["completionMode"] == "Indexed"
    assert pod["restartPolicy"] == "Never"  # a failed pod is replaced, and its log stays
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["stage5"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    comment = (LAUNCH / "kubernetes.yaml").read_text()
    made = re.search(r"create configmap (\S+) --from-file=(\S+)", comment)
    assert volumes["code"]["configMap"]["name"] == made[1] and (ROOT / made[2]).is_file()
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    assert f" {mounts['code']}/{Path(made[2]).name} --snapshot" in script
    assert container()["workingDir"] == mounts["stage5"]


@pytest.mark.parametrize(
    "env, expected",
    [
        ({}, "--nproc-per-node 1 --max-restarts 3 --rdzv-endpoint h0:29500 --rdzv-id stage5"),
        ({"PORT": "7", "RUN_ID": "a b", "MAX_RESTARTS": "0"}, "--max-restarts 0 h0:7 'a b'"),
        ({"RANKS": "4", "LOCAL_ADDR": "10.5.0.1"}, "--nproc-per-node 4 --local-addr 10.5.0.1"),
        ({"CUDA_VISIBLE_DEVICES": "0,2,5"}, "--nproc-per-node 3"),
    ],
)
def test_the_dry_run_prints_what_is_run(folder, env, expected):
    words = ["h0", "2", "--data", "it's a folder", "--snapshot", "x"]
    printed = run([LAUNCH / "torchrun.sh", "--dry-run", *words], folder, **env)
    ran = run([LAUNCH / "torchrun.sh", *words], folder, **env)
    again = run(["sh", "-c", printed.stdout], folder)
    assert ran.stdout == again.stdout and (ran.returncode, printed.returncode) == (3, 0), ran
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in printed.stdout
    called = [line[1:-1] for line in ran.stdout.splitlines()]
    assert called[0] == "torchrun" and set(shlex.split(expected)) <= set(called), called
    assert called[-5:] == [str(LAUNCH.parent / "train.py"), *words[2:]]


def test_a_rank_per_gpu(folder):
    gpus = "GPU 0: A (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\nGPU 1: A (UUID: GPU-2)\n"
    fake(folder, "nvidia-smi", f"test $1 = --list-gpus && printf '{gpus}'")
    result = run([LAUNCH / "torchrun.sh", "--dry-run", "h0", "2"], folder)
    assert "--nproc-per-node 2 " in result.stdout, result


@pytest.mark.parametrize(
    "command, env, message",
    [
        ("torchrun.sh h0", {}, "ENDPOINT_NODE NUMBER_OF_NODES"),
        ("torchrun.sh h0:29500 2", {}, "without a port"),
        ("torchrun.sh h0 2", {"PORT": "65536"}, "PORT: a number from 1 to 65535"),
        ("torchrun.sh h0 2", {"PATH": "/usr/bin:/bin"}, "there is no torchrun"),
        ("srun_rank.sh env", {"SLURM_PROCID": ""}, "SLURM_PROCID is not set"),
        ("job.sbatch", {}, "submit it from the folder"),
    ],
)
def test_bad_input(folder, command, env, message):
    (folder / "elsewhere").mkdir()
    script, *words = command.split()
    result = run(["bash", LAUNCH / script, *words], folder, "elsewhere", **env)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result
    assert result.stderr.startswith(f"{script}: error: ") and message in result.stderr


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
@pytest.mark.parametrize(("restarts", "requeued"), [("19", True), ("20", False)])
def test_a_job_whose_time_is_up_is_requeued_at_most_20_times(folder, job, restarts, requeued):
    wait = "touch started; for i in $(seq 600); do test -e end || sleep 0.1; done; exit 3"
    fake(folder, "srun", wait)
    fake(folder, "scontrol", 'echo "$*" | sed s/show.*/n7/')
    fake(folder, "scancel", 'echo "$*"; touch end')
    slurm = {"SLURM_JOB_ID": "21234", "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_NNODES": "2"}
    slurm |= {"SLURM_CPUS_PER_TASK": "3", "SLURM_RESTART_COUNT": restarts}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = environment(folder, **slurm)
    process = subprocess.Popen(["bash", job], cwd=folder, env=env, **pipes)
    wait_for((folder / "started").exists)
    process.send_signal(signal.SIGUSR1)
    if not requeued:
        (folder / "end").touch()
    out, err = process.communicate(timeout=120)
    assert requeued or process.returncode == 3, "the exit code of srun"
    assert ("--signal=TERM 21234\nrequeue 21234\n" in out) == requeued, (out, err)
    assert ("giving up" in err) != requeued


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_a_script_of_the_readers_gets_only_their_flags(folder, job):
    fake(folder, "srun", 'env | grep -E "^(NCCL|TORCH_FR)_"; echo "$@"')
    slurm = {"SLURM_JOB_ID": "21234", "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_NNODES": "2"}
    slurm |= {"SLURM_CPUS_PER_TASK": "3", "IMAGE": "my image.sqsh"}
    result = run(["bash", job, "--mine", "a b"], folder, SCRIPT="../my/train.py", **slurm)
    assert result.returncode == 0 and "--snapshot" not in result.stdout, result
    assert result.stdout.endswith(" --mine a b\n")
    in_container = "--container-image=my image.sqsh --container-mounts="
    assert (in_container in result.stdout) == (job.name != "job_srun.sbatch")
    if job.name == "job_gpus.sbatch":
        assert f"NCCL_DEBUG_FILE={folder}/logs/21234/nccl-%h-%p.log" in result.stdout
        assert f"TORCH_FR_DUMP_TEMP_FILE={folder}/logs/21234/flight-rank" in result.stdout
    stage5 = run(["bash", job], folder, **slurm)
    assert "--snapshot checkpoints/stage5-21234.snapshot" in stage5.stdout


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.timeout(600)  # half a minute, on two idle cores
def test_the_pods_command_trains_and_a_lost_pod_comes_back(reader):
    """The script in the manifest on nodes that have the pods' names; the second one is killed."""
    script = container()["args"][0].replace(" /code/", f" {ROOT}/05_multinode/").strip()
    snapshot = reader.folder / re.search(r"--snapshot (\S+)", script)[1]
    env = reader.env | {each["name"]: each["value"] for each in container()["env"]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    with hosts.hosts_for_a_while(2, NET) as net:

        def pod(number):
            command = ["sh", "-euc", f"{script} -e 20 -b 24 --lr 0.01 --device cpu"]
            return net.start(f"host{number}", command, cwd=reader.folder, env=env, **pipes)

        pods = [pod(0), pod(1)]
        for name in net.names():  # the pods' names are known a moment later, as in a cluster
            with open(net.etc_hosts(name), "a") as file:
                file.write("10.5.0.1 stage5-0.stage5\n10.5.0.2 stage5-1.stage5\n")
        wait_for(snapshot.exists, 240)
        for pid in net.pids([f"{NET}-host1"]):
            os.kill(pid, signal.SIGKILL)
        pods[1].communicate(timeout=60)
        pods[1] = pod(1)
        out = "".join(each.communicate(timeout=240)[0] for each in pods)
    assert all(each.returncode == 0 for each in pods), out
    assert re.search(r"2 rank\(s\) on 2 node\(s\), [1-9]\d* epoch\(s\) done", out), out
    assert out.count("2 node(s), 0 epoch(s) done") == 1 and out.count("epoch(s) done") == 2, out
    record = record_of(reader.folder)
    assert len(record["history"]) == 20 and record["hosts"] == 2

"""05_multinode/launch/: what its files name exists, their lines run, and what they start trains."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from conftest import NEEDS_HOSTS, NET, ROOT, hosts, record_of, wait_for

LAUNCH = ROOT / "05_multinode/launch"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")])
JOBS = sorted(LAUNCH.glob("*.sbatch"))
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")


def manifest():
    """kubernetes.yaml -> {kind: object}"""
    text = (LAUNCH / "kubernetes.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container_script():
    """What the container runs, in sh."""
    (container,) = manifest()["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-euc"]
    (script,) = container["args"]
    return script


def fake(folder, name, script):
    """A program of that name for the front of PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def run(command, folder, **env):
    """Run a command in that folder; programs in its folder bin come first."""
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"} | env
    options = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command, cwd=folder, env=os.environ | env, **options)


@pytest.fixture
def echo(tmp_path):
    """A torchrun and an srun that only say how they are called."""
    for name in ("torchrun", "srun"):
        say = f'for word in {name} "$@"; do echo "<$word>"; done; env | grep _STORE= | sort'
        fake(tmp_path / "bin", name, say)
    fake(tmp_path / "bin", "nvidia-smi", "exit 9")
    fake(tmp_path / "bin", "scontrol", 'test "$*" = "show hostnames n[7-8]" && printf "n7\\nn8\\n"')
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_clean(script):
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    assert os.access(script, os.X_OK) == (script.suffix == ".sh")
    if not SHELLCHECK:
        pytest.skip("no shellcheck here")
    subprocess.run([SHELLCHECK, script], check=True, timeout=60)


def test_the_script_in_the_manifest_is_clean():
    if not SHELLCHECK:
        pytest.skip("no shellcheck here")
    subprocess.run([SHELLCHECK, "-s", "sh", "-"], input=container_script(), text=True, check=True)


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_slurm_reads_every_directive(job):
    """Slurm reads lines that begin with #SBATCH, without a space, up to the first command."""
    lines = job.read_text().splitlines()
    code = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    mentions = [i for i, line in enumerate(lines) if re.match(r"\s*#+\s*SBATCH", line)]
    assert len(mentions) > 8 and all(i < code for i in mentions)
    assert all(re.match(r"##?SBATCH --[a-z-]+=?\S*$", lines[i]) for i in mentions)


@pytest.mark.parametrize("file", sorted(LAUNCH.iterdir()), ids=lambda path: path.name)
def test_what_a_file_names_exists(file):
    text = file.read_text().replace("$launch", "05_multinode/launch")
    paths = re.findall(r"(?<![\w/])(?:\w+/)+[\w.]+\.(?:py|sh|sbatch|yaml|md|txt)\b", text)
    paths += re.findall(r"(?<![\w/])(?:05_multinode|tools)/[\w./-]*\w", text)
    assert paths
    for path in paths:
        assert (ROOT / path).exists() or (LAUNCH / path).exists(), path
    for name in re.findall(r"(?<![\w/.-])\w+\.(?:py|sh|sbatch|txt)\b", text):
        assert any((place / name).is_file() for place in (LAUNCH, LAUNCH.parent, ROOT)), name
    train = (LAUNCH.parent / "train.py").read_text()
    lines = text.replace("\\\n", " ").splitlines()
    after = [re.split(r"(?:train\.py|torchrun\.sh|\.sbatch)\b", line)[1:] for line in lines]
    flags = [flag for parts in after if parts for flag in re.findall(r" (--[a-z-]+)", parts[-1])]
    assert bool(flags) == (file.suffix != ".sh")
    assert all(f'"{flag}"' in train for flag in flags), flags


@pytest.mark.parametrize("version", ["1.26", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", ["Service", "PersistentVolumeClaim", "Job"])
def test_the_manifest_is_valid(version, kind):
    resource = manifest()[kind]
    kubernetes_validate.validate(resource, version, strict=True)
    resource["spec"]["no such field"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_names_and_numbers_in_the_manifest_fit_together():
    service, claim, job = (manifest()[kind] for kind in ("Service", "PersistentVolumeClaim", "Job"))
    spec, template = job["spec"], job["spec"]["template"]
    pod = template["spec"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert (
        service["spec"]["clusterIP"] == "None" and pod["subdomain"] == service["metadata"]["name"]
    )
    script = container_script()
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert f"until getent hosts {first};" in script and f"--rdzv-endpoint {first}:" in script
    assert f"--nnodes {spec['completions']} " in script
    assert spec["completions"] == spec["parallelism"] and spec["completionMode"] == "Indexed"
    assert pod["restartPolicy"] == "Never"  # or podFailurePolicy would be refused
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["stage5"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    comment = (LAUNCH / "kubernetes.yaml").read_text()
    made = re.search(r"create configmap (\S+) --from-file=(\S+)", comment)
    assert volumes["code"]["configMap"]["name"] == made[1]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    assert f" {mounts['code']}/{Path(made[2]).name} --snapshot" in script
    assert pod["containers"][0]["workingDir"] == mounts["stage5"]
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory" and mounts["shm"] == "/dev/shm"


@POSIX
@pytest.mark.parametrize(
    "env, expected",
    [
        ({}, "--nproc-per-node 1 --max-restarts 3 --rdzv-endpoint h0:29500 --rdzv-id stage5"),
        ({"PORT": "7", "RUN_ID": "a b", "MAX_RESTARTS": "0"}, "--max-restarts 0 h0:7 'a b'"),
        ({"RANKS": "4", "LOCAL_ADDR": "10.5.0.1"}, "--nproc-per-node 4 --local-addr 10.5.0.1"),
        ({"CUDA_VISIBLE_DEVICES": "0,2,5"}, "--nproc-per-node 3"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "--nproc-per-node 1"),
        ({"SCRIPT": "preflight.py"}, "--nproc-per-node 1"),
    ],
)
def test_the_dry_run_prints_what_is_run(echo, monkeypatch, env, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    words = ["h0", "2", "--data", "it's a folder", "--snapshot", "x"]
    printed = run([LAUNCH / "torchrun.sh", "--dry-run", *words], echo, **env)
    ran = run([LAUNCH / "torchrun.sh", *words], echo, **env)
    again = run(["sh", "-c", printed.stdout], echo)
    assert ran.stdout == again.stdout and ran.returncode == printed.returncode == 0, ran
    called = ran.stdout.splitlines()
    assert called[0] == "<torchrun>" and called[-1] == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    for word in shlex.split(expected):
        assert f"<{word}>" in called, called
    script = called.index("<--data>") - 1
    assert called[script] == f"<{LAUNCH.parent / env.get('SCRIPT', 'train.py')}>"
    assert [line[1:-1] for line in called[script + 1 : -1]] == words[2:]


@POSIX
def test_a_rank_per_gpu(echo, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = (
        "GPU 0: A (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-1)\nGPU 1: A (UUID: GPU-2)\n"
    )
    for answer, ranks in (("No devices were found", 1), (listed, 2)):
        fake(echo / "bin", "nvidia-smi", f"test $1 = --list-gpus && printf '{answer}'")
        result = run([LAUNCH / "torchrun.sh", "--dry-run", "h0", "2"], echo)
        assert f"--nproc-per-node {ranks} " in result.stdout, result


@POSIX
@pytest.mark.parametrize(
    "words, env, told",
    [
        ("", {}, "ENDPOINT_NODE NUMBER_OF_NODES"),
        ("h0", {}, "ENDPOINT_NODE NUMBER_OF_NODES"),
        ("h0 0", {}, "NUMBER_OF_NODES: a number from 1"),
        ("h0 two", {}, "not 'two'"),
        ("h0:29500 2", {}, "without a port"),
        ("--dry h0 2", {}, "not '--dry'"),
        ("h0 2", {"PORT": "65536"}, "PORT: a number from 1 to 65535"),
        ("h0 2", {"RANKS": "all"}, "RANKS: a number"),
        ("h0 2", {"MAX_RESTARTS": "-1"}, "MAX_RESTARTS: a number from 0"),
        ("h0 2", {"SCRIPT": "tran.py"}, "there is no tran.py in "),
        ("h0 2", {"PATH": "/usr/bin:/bin"}, "there is no torchrun"),
    ],
)
def test_bad_input_for_torchrun_sh(echo, words, env, told):
    result = run([LAUNCH / "torchrun.sh", *words.split()], echo, **env)
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith("torchrun.sh: error: ") and told in result.stderr, result
    assert result.stderr.count("\n") == 1


SLURM = {
    "SLURM_JOB_ID": "21234",
    "SLURM_JOB_NODELIST": "n[7-8]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "3",
}


@POSIX
@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_what_a_job_hands_to_srun(echo, job):
    (echo / "05_multinode").symlink_to(LAUNCH.parent)
    fake(echo / "bin", "srun", 'echo "$*"; env | grep -E "^(MASTER_)?(PORT|ADDR|RUN_ID)="; exit 3')
    result = run(["bash", job, "-e", "5"], echo, **SLURM)
    assert result.returncode == 3, result  # as srun
    snapshot = "--snapshot checkpoints/stage5-21234.snapshot -e 5"
    first, *env = result.stdout.splitlines()
    assert first.startswith("--kill-on-bad-exit=1 --cpus-per-task=3 05_multinode/launch/")
    assert first.endswith(snapshot) and env, result
    if job.name == "job.sbatch":
        assert f"torchrun.sh n7 2 {snapshot}" in first
        assert sorted(env) == ["PORT=11234", "RUN_ID=21234"]
    else:
        assert f"srun_rank.sh python 05_multinode/train.py {snapshot}" in first
        assert sorted(env) == ["MASTER_ADDR=n7", "MASTER_PORT=11234"]


@POSIX
@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_a_job_whose_time_is_up(echo, job):
    """It asks to be requeued and waits for its end, but not for ever again."""
    (echo / "05_multinode").symlink_to(LAUNCH.parent)
    fake(
        echo / "bin",
        "srun",
        "touch started; for i in $(seq 300); do test -e end || sleep 0.1; done",
    )
    fake(echo / "bin", "scontrol", 'echo "$*" | sed s/show.*/n7/; test "$1" = show || touch end')
    env = os.environ | SLURM | {"PATH": f"{echo / 'bin'}:{os.environ['PATH']}"}
    for restarts, asked in (("19", "requeue 21234\n"), ("20", "")):
        (echo / "started").unlink(missing_ok=True)
        (echo / "end").unlink(missing_ok=True)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        restarted = env | {"SLURM_RESTART_COUNT": restarts}
        process = subprocess.Popen(["bash", job], cwd=echo, env=restarted, **pipes)
        wait_for((echo / "started").exists)
        process.send_signal(signal.SIGUSR1)
        if not asked:
            (echo / "end").touch()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out[-len("requeue 21234\n") :]) == (0, asked), (out, err)
        assert ("back into the queue" in out) == bool(asked) != ("giving up" in err)


@POSIX
@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_a_job_in_the_wrong_folder(echo, job):
    result = run(["bash", job], echo, **SLURM)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result
    assert result.stderr.startswith(f"{job.name}: error: submit it from the folder")


@POSIX
def test_slurms_variables_under_torchruns_names(echo):
    names = "PROCID 5, LOCALID 1, NTASKS 8, NTASKS_PER_NODE 2, NODEID 2, NNODES 4"
    slurm = {f"SLURM_{name}": value for name, value in map(str.split, names.split(", "))}
    env = slurm | {"MASTER_ADDR": "n7", "MASTER_PORT": "11234"}
    result = run([LAUNCH / "srun_rank.sh", "env"], echo, **env)
    words = "RANK 5, LOCAL_RANK 1, WORLD_SIZE 8, LOCAL_WORLD_SIZE 2, GROUP_RANK 2"
    for name, value in map(
        str.split, f"{words}, GROUP_WORLD_SIZE 4, MASTER_PORT 11234".split(", ")
    ):
        assert f"\n{name}={value}\n" in f"\n{result.stdout}", result
    for name in env:
        result = run([LAUNCH / "srun_rank.sh", "env"], echo, **env | {name: ""})
        assert (result.returncode, result.stdout) == (2, "")
        assert f"error: {name} is not set" in result.stderr and result.stderr.count("\n") == 1


@NEEDS_HOSTS
@pytest.mark.slow
@pytest.mark.timeout(400)  # half a minute, on two idle cores
def test_the_pods_command_trains_and_a_lost_pod_comes_back(reader):
    """The script in the manifest on hosts that have the pods' names; the second one is killed."""
    script = container_script().replace(" /code/", f" {ROOT}/05_multinode/").strip()
    snapshot = reader.folder / re.search(r"--snapshot (\S+)", script)[1]
    container = manifest()["Job"]["spec"]["template"]["spec"]["containers"][0]
    env = reader.env | {each["name"]: each["value"] for each in container["env"]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    with hosts.hosts_for_a_while(2, NET) as net:

        def pod(number):
            command = ["sh", "-euc", f"{script} -e 20 -b 24 --lr 0.01 --device cpu"]
            return net.start(f"host{number}", command, cwd=reader.folder, env=env, **pipes)

        pods = [pod(0), pod(1)]
        for name in net.names():  # the pods' names are known a moment later, as in a cluster
            with open(net.etc_hosts(name), "a") as file:
                file.write("10.5.0.1 stage5-0.stage5\n10.5.0.2 stage5-1.stage5\n")
        wait_for(snapshot.exists, 120)
        for pid in net.pids([f"{NET}-host1"]):
            os.kill(pid, signal.SIGKILL)
        pods[1].communicate()
        pods[1] = pod(1)
        out = "".join(each.communicate(timeout=150)[0] for each in pods)
    assert all(each.returncode == 0 for each in pods), out
    assert re.search(r"2 rank\(s\) on 2 node\(s\), [1-9]\d* epoch\(s\) done", out), out
    assert out.count("2 node(s), 0 epoch(s) done") == 1 and out.count("epoch(s) done") == 2, out
    assert re.search("Connection (reset|closed) by peer", out), out
    _, record = record_of(reader.folder / "timings")
    assert len(record["history"]) == 20 and record["hosts"] == 2

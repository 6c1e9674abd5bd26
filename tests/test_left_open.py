"""What a run leaves open: no port to other machines while it runs, no process after it was killed.

KILLS=100 python -m pytest tests/test_left_open.py -k random   kills at a hundred moments
"""

import contextlib
import os
import random
import shutil
import signal
import time

import psutil
import pytest
from conftest import ENDLESS, LINUX, ROOT, STAGES, family, ranks_of

pytestmark = [pytest.mark.slow, LINUX]
KILLS = int(os.environ.get("KILLS", 5))
SMALL = "-e 1 --device cpu --batch-size 48"
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def open_ports(process):
    """The ports to which other machines can connect, of all that a command has started."""
    found = set()
    for pid in family(process):
        with contextlib.suppress(psutil.Error):
            member = psutil.Process(pid)
            command = " ".join(member.cmdline())
            for socket in member.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN and socket.laddr.ip not in LOOPBACK:
                    found.add((command, socket.laddr.port))
    return found


@pytest.mark.parametrize(
    "command",
    [
        f"python 01_baseline/train.py {SMALL} --workers 1",
        "python 03_ddp_spawn/from_scratch.py",
        f"python 03_ddp_spawn/train.py {SMALL}",
        "python 03_ddp_spawn/batchnorm.py",
        f"torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/train.py {SMALL}",
        "torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/minimal.py",
        f"python 04_ddp_torchrun/from_scratch.py --nproc-per-node 2 01_baseline/train.py {SMALL}",
        "python 05_multinode/from_scratch.py",
        "python 05_multinode/resume.py",
        "python compare.py --only 03 05 -e 1 -b 48",
        "python -m benchmarks.limit --rounds 2 --batch-size 48 --steps 4",
        "python tools/record.py failure --folder recordings",
    ],
)
@pytest.mark.timeout(400)
def test_only_torchruns_store_can_be_reached_from_other_machines(reader, command):
    """It listens on all interfaces, whatever --standalone says: stage 5's page has a warning."""
    process = reader.start(command, GLOO_SOCKET_IFNAME="lo")
    found = set()
    while process.poll() is None:
        found |= open_ports(process)
        time.sleep(0.05)
    result = reader.finish(process)
    assert result.code == 0, result
    launchers = "bin/torchrun", "-m torch.distributed.run"
    assert all(any(word in command for word in launchers) for command, _ in found), found


# ---------------------------------------------------------------- killed


def start(name, reader):
    """Every way in which ranks are started here; each would run for minutes."""
    if name in STAGES:
        return reader.start_stage(name, f"{ENDLESS} --timeout 20")
    if name == "check.py":
        shutil.copytree(ROOT / "exercises", reader.folder / "exercises")
        return [reader.start("python exercises/check.py --all")]
    return [reader.start(f"python compare.py --only 03 {ENDLESS}")]


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.timeout(400)
def test_killed_at_a_random_moment_nothing_is_left(reader, number):
    """finish() fails if a process is left. SIGKILL to torchrun or compare.py is left out: no
    handler can run there, and their ranks train on (05_multinode/rehearsal/README.md)."""
    chance = random.Random(number)
    name = chance.choice([*STAGES[2:], "compare.py", "check.py"])
    processes = start(name, reader)
    time.sleep(chance.uniform(0, 25))
    ranks = [pid for process in processes for pid in ranks_of(process)]
    victims = ["parent", *(["rank"] if ranks else [])]
    victim = chance.choice(victims)
    pid = processes[0].pid if victim == "parent" else chance.choice(ranks)
    handled = name == "03_ddp_spawn" or victim == "rank"
    stop = chance.choice([signal.SIGTERM, signal.SIGINT, *([signal.SIGKILL] if handled else [])])
    print(f"{name}: {stop.name} to {victim}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, stop)
    for process in processes[1:]:  # the other node: told to end, as its operator would
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    for process in processes:
        reader.finish(process)

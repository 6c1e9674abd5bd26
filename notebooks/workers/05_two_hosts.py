"""Two torchruns on this machine, each playing a host of its own. One of them may get lost.

Both get the same line and meet at a port of 127.0.0.1. What they leave is printed as JSON, for the
fifth notebook: {"hosts": [{"codes", "attempts", "launcher", "out", "err"}, ...]}, host 0 first.
codes and attempts have an entry for each time that a host was started, out and err one for each of
its ranks.

    python notebooks/workers/05_two_hosts.py --ranks 2 SCRIPT FLAGS
    python notebooks/workers/05_two_hosts.py --lose-at run.snapshot SCRIPT --snapshot run.snapshot
    python notebooks/workers/05_two_hosts.py --lose-at run.snapshot --again --max-restarts 1 ...

--lose-at FILE: as soon as that file is there, host 1 is gone, launcher and ranks, without a word.
--again: then somebody starts the same line on it anew. --lose 0 loses the other one.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
rehearsal = importlib.import_module("05_multinode.rehearsal.common")

PATIENCE = 150  # seconds that any wait may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nodes", default="2", help="how many hosts there have to be, such as 2 or 1:2 (2)")
    add("--ranks", type=int, default=1, help="on each host (1)")
    add("--max-restarts", type=int, default=0, help="for both torchruns (0)")
    add("--lose-at", type=Path, help="when this file is there, a host is lost")
    add("--lose", type=int, choices=(0, 1), default=1, help="which one (1)")
    add("--again", action="store_true", help="start the lost host's line once more")
    add("script")
    add("flags", nargs=argparse.REMAINDER, help="for the script")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as logs:
        lives = [[], []]  # of each host
        try:
            found = play(args, rehearsal.free_port(), Path(logs), lives)
        finally:
            for life in sum(lives, []):
                lose(life)
    print(json.dumps(found))


def play(args: argparse.Namespace, port: int, logs: Path, lives: list[list]) -> dict:
    def start(host: int) -> None:
        folder = logs / f"{host}-{len(lives[host])}"
        lives[host].append(torchrun(args, host, port, folder))

    for host in (0, 1):
        start(host)
    if args.lose_at:
        wait(lambda: args.lose_at.exists() or lives[args.lose][0].poll() is not None)
        lose(lives[args.lose][0])
        if args.again:
            start(args.lose)
    for host in (0, 1):
        wait(lambda life=lives[host][-1]: life.poll() is not None)
    return {"hosts": [left_by(host, lives[host], args.ranks, logs) for host in (0, 1)]}


def torchrun(args: argparse.Namespace, host: int, port: int, logs: Path) -> subprocess.Popen:
    """The same line on both hosts, but for what is host 0 to torchrun.

    On machines of their own each knows by the endpoint's name who has to serve it. Here that name
    fits both.
    """
    logs.mkdir()
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", args.nodes]
    line += ["--nproc-per-node", str(args.ranks), "--max-restarts", str(args.max_restarts)]
    line += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    # Who is not heard of for 5 s counts as lost; torchrun's own patience is 15.
    conf = f"is_host={host == 0},keep_alive_interval=1,keep_alive_max_attempt=5"
    line += ["--rdzv-conf", conf, "--local-addr", "127.0.0.1"]
    line += ["--log-dir", str(logs), "--redirects", "3", args.script, *args.flags]
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or most restarts would fail
    with open(logs / "launcher", "w") as said:
        return subprocess.Popen(line, env=os.environ | settings, stdout=said, stderr=said)


def lose(launcher: subprocess.Popen) -> None:
    """Kill a launcher, then its ranks: a host without current says goodbye to nobody."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [map(int, line.split()) for line in listing.stdout.splitlines()]
    ranks = [pid for pid, parent in pairs if parent == launcher.pid]
    if launcher.poll() is None:
        launcher.kill()
        launcher.wait()
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)


def left_by(host: int, lives: list[subprocess.Popen], ranks: int, logs: Path) -> dict:
    """What a host has said, over all its lives and all attempts of its launcher."""
    folders = [logs / f"{host}-{life}" for life in range(len(lives))]

    def said(pattern: str) -> str:
        paths = [path for folder in folders for path in sorted(folder.glob(pattern))]
        return "".join(path.read_text(errors="replace") for path in paths)

    return {
        "codes": [life.returncode for life in lives],
        "attempts": [len(list(folder.glob("*/attempt_*"))) for folder in folders],
        "launcher": said("launcher"),
        "out": [said(f"*/attempt_*/{rank}/stdout.log") for rank in range(ranks)],
        "err": [said(f"*/attempt_*/{rank}/stderr.log") for rank in range(ranks)],
    }


def wait(happened) -> None:
    """Wait until happened() is true. Raises TimeoutError after PATIENCE seconds."""
    late = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > late:
            raise TimeoutError(f"nothing happened for {PATIENCE} seconds")
        time.sleep(0.02)


if __name__ == "__main__":
    main()

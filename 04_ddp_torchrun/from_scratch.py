"""Stage 4 from scratch: a launcher, which does the work of torchrun on one machine.

It starts one process per rank, with the number of the rank in the environment, and puts this number
before each line that the rank prints. When a rank fails, the launcher stops the other ranks and
names the rank that failed first. If restarts are allowed, it then starts all ranks again. If you
give it no script, it shows that it does for stage 4 what torchrun does.

    python 04_ddp_torchrun/from_scratch.py
    python 04_ddp_torchrun/from_scratch.py --nproc-per-node 2 04_ddp_torchrun/train.py --epochs 1
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
# The signals that have asked this launcher to end. Their handler only puts them here, because an
# exception could arrive between the start of a rank and the line that remembers it. This rank would
# then be left running.
asked_to_end: list[int] = []


def launch(script: list[str], ranks: int, max_restarts: int = 0) -> int:
    """Run a script on several ranks until all have ended well, or one has failed for good.

    script: the path of a Python file and its arguments. Returns 0, or the exit code of the rank
    that failed first. If a signal ended that rank, the code is 128 + the number of the signal, as
    in a shell.
    """
    run_id = str(uuid.uuid4())
    for restarts in range(max_restarts + 1):
        # The ranks meet in this store. Port 0 lets the system pick a free port. Each attempt gets a
        # new store, because the old store has the addresses of ranks that have ended.
        listener = socket.create_server(("127.0.0.1", 0)).detach()  # not open to other machines
        store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, master_listen_fd=listener
        )
        common = environment(ranks, store.port, run_id, restarts, max_restarts)
        failed = run_once(script, [common | of_rank(rank) for rank in range(ranks)])
        if failed is None:
            return 0
        rank, code, last_lines = failed
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        print(f"launcher: rank {rank} failed first, with {cause}. Its last lines:", file=sys.stderr)
        print(*(f"    {line}" for line in last_lines), sep="\n", file=sys.stderr)
        if restarts < max_restarts:
            print(f"launcher: restart {restarts + 1} of {max_restarts}", file=sys.stderr)
    return 128 - code if code < 0 else code


def environment(ranks: int, port: int, run_id: str, restarts: int, max_restarts: int) -> dict:
    """The variables that are equal on all ranks. (A "group" is a machine, a "role" a kind of rank.)

    torchrun sets the same variables.
    """
    env = {
        "MASTER_ADDR": "localhost",  # where the store is
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),  # of this machine
        "GROUP_RANK": "0",  # one machine
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",  # one role
        "ROLE_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # The launcher has opened the store, not rank 0.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # a failed collective ends a rank on a GPU
    }
    if ranks > 1:
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    return env


def of_rank(rank: int) -> dict:
    """The variables of one rank. On one machine its three numbers are the same."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)}


def run_once(script: list[str], environments: list[dict]) -> tuple[int, int, list[str]] | None:
    """Start a rank for each environment -> None, or the first that failed: rank, code, last lines.

    No rank is left running, whatever happens here.
    """
    ranks = []
    printers = []
    last_lines = [deque(maxlen=5) for _ in environments]
    try:
        for rank, env in enumerate(environments):
            process = subprocess.Popen(
                [sys.executable, "-u", *script],
                env=os.environ | env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # The children of a rank are stopped with it.
            )
            ranks.append(process)
            copy_lines = threading.Thread(
                target=show, args=(rank, process.stdout, last_lines[rank])
            )
            copy_lines.start()
            printers.append(copy_lines)
        failed = first_failure(ranks)
    finally:
        stop(ranks)
        for printer in printers:
            printer.join()
    return failed and (*failed, list(last_lines[failed[0]]))


def show(rank: int, lines, last_lines: deque) -> None:
    """Print the lines of a rank with its number before each, and remember the last lines."""
    with lines:
        for line in lines:
            last_lines.append(line.rstrip())
            sys.stdout.write(f"[rank {rank}] {line.rstrip()}\n")
            sys.stdout.flush()


def first_failure(ranks: list[subprocess.Popen]) -> tuple[int, int] | None:
    """Wait until a rank has failed -> its number and exit code, or None when all have ended well.

    Raises SystemExit if a signal asks this launcher to end.

    The first failure that this function sees may not be the first that happened: a rank that fails
    can end a second rank, and the second rank may be seen first.
    """
    while True:
        if asked_to_end:
            sys.exit(128 + asked_to_end[0])
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code:
                return rank, code
        if None not in codes:
            return None
        time.sleep(0.05)


def stop(ranks: list[subprocess.Popen], patience: float = 5) -> None:
    """Ask all ranks to end, and kill the ranks that have not ended after `patience` seconds."""
    for process in ranks:
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + patience
    for process in ranks:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            send(process, signal.SIGKILL)
            process.wait()


def send(process: subprocess.Popen, number: signal.Signals) -> None:
    """Send a signal to a rank and to what it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # they have all ended


# ---------------------------------------------------------------- the proof

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
OURS = [sys.executable, str(HERE / "from_scratch.py")]
SHOW_ENVIRONMENT = """
import json, os
if os.environ["RANK"] == "1":  # Only one rank prints: the lines of two ranks could mix.
    print("ENV" + json.dumps(dict(os.environ)))
"""
ONE_RAISES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""
FAILS_ONCE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("ranks in the group:", int(total))
dist.destroy_process_group()
sys.exit(7 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


def prove() -> None:
    with tempfile.TemporaryDirectory() as temp:
        prove_environment(Path(temp))
        prove_training(Path(temp))
        prove_failures(Path(temp))


def prove_environment(folder: Path) -> None:
    print("What a rank finds in its environment, started by torchrun and by this launcher:")
    theirs = environment_of_rank_1(TORCHRUN, folder)
    ours = environment_of_rank_1(OURS, folder)
    equal = sorted(name for name in ours if ours[name] == theirs.get(name))
    claim(len(equal) >= 14, f"equal: {', '.join(equal)}")
    other = sorted(set(ours) - set(equal))
    right = other == ["MASTER_PORT", "TORCHELASTIC_RUN_ID"]
    claim(right, f"different in any two runs: {', '.join(other)}")
    print(f"       only from torchrun: {', '.join(sorted(set(theirs) - set(ours)))}")


def prove_training(folder: Path) -> None:
    print("\nStage 4 on 2 ranks, 600 synthetic digits, 2 epochs:", flush=True)
    draw = [sys.executable, HERE.parent / "tools" / "draw_digits.py", folder / "data"]
    command = [*draw, "--train", "600", "--test", "100"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    theirs = train(TORCHRUN, folder / "theirs")
    ours = train(OURS, folder / "ours")
    claim(all(map(torch.equal, theirs.values(), ours.values())), "equal weights")


def prove_failures(folder: Path) -> None:
    print("\nRank 1 raises while rank 0 sleeps for a minute:", flush=True)
    started = time.monotonic()
    code = launch([write(folder / "one_raises.py", ONE_RAISES)], ranks=2)
    seconds = time.monotonic() - started
    claim(code == 1 and seconds < 60, f"exit code 1 after {seconds:.1f} seconds")
    print("\nBoth ranks fail, but only the first time, with one restart allowed:", flush=True)
    code = launch([write(folder / "fails_once.py", FAILS_ONCE)], ranks=2, max_restarts=1)
    claim(code == 0, "exit code 0: both ranks failed, were started again, and met again")


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def environment_of_rank_1(launcher: list[str], folder: Path) -> dict[str, str]:
    """Return the variables that a launcher adds for rank 1 of 2."""
    script = write(folder / "show_environment.py", SHOW_ENVIRONMENT)
    command = [*launcher, "--nproc-per-node", "2", script]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    (line,) = [line for line in printed.splitlines() if "ENV{" in line]
    rank_1 = json.loads(line.partition("ENV")[2])
    return {name: value for name, value in rank_1.items() if os.environ.get(name) != value}


def train(launcher: list[str], folder: Path) -> dict[str, torch.Tensor]:
    """Run stage 4, unchanged, on two ranks -> the weights at its end."""
    flags = f"--batch-size 24 --lr 0.01 --device cpu --data {folder.parent / 'data'}"
    flags += f" --record {folder / 'runs.jsonl'} --checkpoint {folder / 'model.pt'}"
    command = [*launcher, "--nproc-per-node", "2", str(HERE / "train.py"), *flags.split()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)
    return torch.load(folder / "model.pt")["model"]


def claim(held: bool, text: str) -> None:
    """Print what was found; if it is not what this script claims, end with exit code 1."""
    print("ok    " if held else "FAILED", text, flush=True)
    if not held:
        sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc-per-node", type=int, default=2, help="ranks (2)")
    parser.add_argument("--max-restarts", type=int, default=0, help="restarts after a failure (0)")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a Python file and its arguments")
    args = parser.parse_args()
    if args.nproc_per_node < 1 or args.max_restarts < 0:
        parser.error("--nproc-per-node is at least 1, --max-restarts at least 0")
    if not args.script:
        prove()
        return 0
    if not Path(args.script[0]).is_file():
        parser.error(f"there is no script {args.script[0]}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    return launch(args.script, args.nproc_per_node, args.max_restarts)


if __name__ == "__main__":
    # In the proof SIGTERM is an exception, as Ctrl-C is, so that `finally` blocks stop the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""How often does torchrun --max-restarts 1 bring two ranks back, after one of them has raised once?

Counted in two set-ups: one node with two ranks, and two nodes with one rank each, which here are
two torchruns that meet at 127.0.0.1. As it comes, torchrun keeps one store for all attempts, and
ranks that are started again find the addresses of those before in it. With the variable
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 each attempt has a store of its own. The cases take turns.

    python -m benchmarks.restarts
    python -m benchmarks.restarts --tries 2 --bound 30
"""

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
CASES = {  # name -> nodes, value of the variable
    "one node, as it comes": (1, "0"),
    "one node, with the variable": (1, "1"),
    "two nodes, as it comes": (2, "0"),
    "two nodes, with the variable": (2, "1"),
}
ENDS = ("came back", "failed", "hung")
TIMEOUT = 10  # seconds for which a rank waits for the other


def main() -> None:
    from benchmarks import common  # not on the ranks: they start sooner without it

    parser = common.flags(__doc__, tries=7)
    parser.add_argument("--bound", type=float, default=60, help="seconds of a try that hangs (60)")
    args = common.parse(parser, tries=1, bound=1)
    about = f"--max-restarts 1, 2 ranks, gloo, {common.about()}"
    cases = {name: [] for name in CASES}
    for number in range(args.tries):
        for name, (nodes, value) in CASES.items():
            cases[name].append(one_try(nodes, value, args.bound))
            print(f"try {number + 1}, {name}: {cases[name][-1]['end']}", file=sys.stderr)
    common.show(args, "restarts", {"about": about, "cases": cases}, report)


def one_try(nodes: int, value: str, bound: float) -> dict:
    """Run two ranks on so many nodes -> {"end": one of ENDS, "attempts": how often rank 1 began}

    Whatever has not ended after so many seconds (bound) is killed.
    """
    from benchmarks import common
    from compare import free_port

    command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=1"]
    if nodes == 1:
        command += ["--standalone", "--nproc-per-node=2", __file__]
    else:
        command += ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", __file__]
    env = os.environ | {"OMP_NUM_THREADS": "1", VARIABLE: value}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        launchers = [subprocess.Popen([*command, folder], env=env, **quiet) for _ in range(nodes)]
        deadline = time.monotonic() + bound
        try:
            codes = [own.wait(max(0, deadline - time.monotonic())) for own in launchers]
            end = "failed" if any(codes) else "came back"
        except subprocess.TimeoutExpired:
            end = "hung"
        finally:
            for launcher in launchers:
                common.kill_family(launcher.pid)
                launcher.kill()
                launcher.wait()
        return {"end": end, "attempts": len(list(Path(folder).glob("began-*")))}


def rank(folder: Path) -> None:
    """What a rank does: some all-reduces, in one of which rank 1 raises, but only once."""
    own = int(os.environ["RANK"])
    if own == 1:
        Path(folder, f"began-{time.time()}").touch()
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    for step in range(6):
        dist.all_reduce(torch.ones(1))
        if own == 1 and step == 3 and not Path(folder, "raised").exists():
            Path(folder, "raised").touch()
            raise RuntimeError("once")
    dist.destroy_process_group()


def report(results: dict) -> str:
    return f"{results['about']}\n{table(results['cases'])}"


def table(cases: dict[str, list[dict]]) -> str:
    """A line per case: how many of the tries ended how, and in which attempt they came back."""
    from benchmarks import common

    rows = []
    for name, tries in cases.items():
        counts = [sum(one["end"] == end for one in tries) for end in ENDS]
        good = [one["attempts"] for one in tries if one["end"] == ENDS[0]]
        attempts = [f"{good.count(number)}" for number in (2, 3)]
        rows.append([name, f"{len(tries)}", *map(str, counts), *attempts])
    return common.table(["", "tries", *ENDS, "in attempt 2", "in attempt 3"], rows)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank(Path(sys.argv[1]))
    else:
        main()

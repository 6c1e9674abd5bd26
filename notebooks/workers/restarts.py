"""How often does torchrun's --max-restarts bring two ranks back? As it comes, and with a variable.

The ranks are those of counting.py: one of them is killed, and torchrun may start them once more.
The two ways take turns.

    python notebooks/workers/restarts.py --tries 12
    python notebooks/workers/restarts.py --tries 12 --write notebooks/results/04_restarts.json
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
common = importlib.import_module("benchmarks.common")

VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
WAYS = {"as it comes": "0", "with a new store": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=12, help="of each way (12)")
    parser.add_argument("--write", type=Path, help="file for the result, as JSON")
    args = common.parse(parser, tries=1)
    came_back = dict.fromkeys(WAYS, 0)
    for _ in range(args.tries):
        for way, value in WAYS.items():
            came_back[way] += restarts(value)
    for way, count in came_back.items():
        print(f"{way:18}{count:3} of {args.tries} came back")
    if args.write:
        about = f"2 ranks, gloo, {common.device_name()}, torch {torch.__version__}"
        result = {"about": about, "tries": args.tries, "came_back": came_back}
        common.write_json(args.write, result)


def restarts(value: str) -> bool:
    """Run counting.py once with the variable at this value: has it counted to the end?"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1"]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [*command, str(ROOT / "notebooks/workers/counting.py"), folder],
            env=os.environ | {"OMP_NUM_THREADS": "1", VARIABLE: value},
            capture_output=True,
            timeout=120,
        )
    return run.returncode == 0


if __name__ == "__main__":
    main()

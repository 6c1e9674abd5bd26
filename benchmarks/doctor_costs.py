"""Each cost of tests/one_cost.py: does the doctor's --speed name it, its line and what it costs?

    python PATH/benchmarks/doctor_costs.py [KEY ...]   # in an empty folder, on an idle machine

What was put in is what a step takes longer than with COST=0, in three pairs without the doctor.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests/one_cost.py"
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
KEYS = """slow-data straggler exposed small-batch own-collectives-per-step averaged-twice
 each-pass-synced unused-search saving-share rank-0-works-alone evaluation-share own-code
 too-many-threads""".split()
STAGES = f"--epochs 1 --data {os.environ.get('MNIST_ROOT', ROOT / 'data')}"
HEALTHY = {
    **{key: f"{TORCHRUN} {SCRIPT} {key}" for key in ("none", "wide", "no_sync", "by-hand")},
    "stage 3": f"python {ROOT}/03_ddp_spawn/train.py --world-size 2 {STAGES}",
    "stage 4": f"{TORCHRUN} {ROOT}/04_ddp_torchrun/train.py {STAGES}",
    "stage 5": f"{TORCHRUN} {ROOT}/05_multinode/train.py {STAGES}",
}


def line_of(key):
    """The number of the line whose comment ends with the key."""
    for number, text in enumerate(SCRIPT.read_text().splitlines(), start=1):
        if key in text.partition("  # ")[2].split():
            return number


def step(key, cost):
    """The milliseconds of a step, without the doctor."""
    env = os.environ | {"COST": cost}
    command = f"{TORCHRUN} {SCRIPT} {key}".split()
    done = subprocess.run(command, env=env, text=True, check=True, stdout=subprocess.PIPE)
    return float(re.search(r"([\d.]+) ms per step", done.stdout)[1])


def measured(command):
    doctor = [sys.executable, str(ROOT / "doctor"), "--speed", "--json", "speed.json"]
    subprocess.run(doctor + command.split(), check=True, stdout=subprocess.DEVNULL)
    return json.loads(Path("speed.json").read_text())


def main():
    for key in sys.argv[1:] or [*KEYS, *HEALTHY]:
        said = measured(HEALTHY.get(key, f"{TORCHRUN} {SCRIPT} {key}"))
        named = [f"{one['key']} {one['ms']:.2f} ms in {one['at']}" for one in said["findings"]]
        print(f"{key}: {'; '.join(named) or 'nothing'}", flush=True)
        if key in KEYS:
            costs = sorted(round(step(key, "1") - step(key, "0"), 2) for _ in range(3))
            waited = max(rank["no core"] for rank in said["ranks"].values())
            print(f"    put in: {costs} ms in line {line_of(key)}, no core {waited}", flush=True)


if __name__ == "__main__":
    main()

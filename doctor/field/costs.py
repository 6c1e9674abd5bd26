"""Costs put into a script on purpose: does `doctor speed` name each, its line, and what it costs?

    python PATH/doctor/field/costs.py [--pairs 3] [KEY ...]   # in an empty folder

Run it on an idle machine. The script is tests/one_cost.py. What was put in is what a step
takes longer than with COST=0, in pairs of runs without the doctor. The last keys are healthy: of
them nothing should be named.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

DOCTOR = Path(__file__).resolve().parents[1]
ROOT = DOCTOR.parent  # has the stages
SCRIPT = DOCTOR / "tests/one_cost.py"
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
COSTS = [
    "slow-data",
    "straggler",
    "exposed",
    "small-batch",
    "own-collectives-per-step",
    "averaged-twice",
    "each-pass-synced",
    "two-passes-synced",
    "unused-search",
    "saving-share",
    "rank-0-works-alone",
    "evaluation-share",
    "own-code",
    "epoch-pause",
]
STAGES = f"--epochs 1 --data {os.environ.get('MNIST_ROOT', ROOT / 'data')}"
HEALTHY = {
    "none": f"{TORCHRUN} {SCRIPT} none",
    "wide": f"{TORCHRUN} {SCRIPT} wide",
    "no_sync": f"{TORCHRUN} {SCRIPT} no_sync",
    "by-hand": f"{TORCHRUN} {SCRIPT} by-hand",
    "epochs": f"{TORCHRUN} {SCRIPT} epochs",
    "stage 3": f"python {ROOT}/03_ddp_spawn/train.py --world-size 2 {STAGES}",
    "stage 4": f"{TORCHRUN} {ROOT}/04_ddp_torchrun/train.py {STAGES}",
    "stage 5": f"{TORCHRUN} {ROOT}/05_multinode/train.py {STAGES}",
}


def finding_of(key):
    """The finding's name: one of them is put in in two ways."""
    return "each-pass-synced" if key == "two-passes-synced" else key


def line_of(key):
    """The number of the line whose comment has the key."""
    for number, text in enumerate(SCRIPT.read_text().splitlines(), start=1):
        comment = text.partition("  # ")[2]
        if key in comment.split():
            return number
    raise ValueError(f"no line of {SCRIPT.name} has the key {key}")


def milliseconds(key, cost):
    """Of a step, without the doctor."""
    env = os.environ | {"COST": cost}
    command = f"{TORCHRUN} {SCRIPT} {key}".split()
    done = subprocess.run(command, env=env, text=True, check=True, stdout=subprocess.PIPE)
    return float(re.search(r"([\d.]+) ms per step", done.stdout)[1])


def measured(command):
    """What `doctor speed` measured: see measure() in ddp_doctor/speed/report.py."""
    doctor = [sys.executable, str(DOCTOR), "speed", "--json", "speed.json"]
    subprocess.run(doctor + command.split(), check=True, stdout=subprocess.DEVNULL)
    return json.loads(Path("speed.json").read_text())["speed"]


def compare(key, figures, pairs):
    """Say whether the line is right, and how far what was put in is from the finding."""
    found = [one for one in figures["findings"] if one["key"] == finding_of(key)]
    if not found:
        print("    NOT NAMED", flush=True)
        return
    line = int(found[0]["at"].rpartition(":")[2])
    result = "right line" if line == line_of(key) else f"WRONG line {line}"
    if pairs:
        differences = []
        for _ in range(pairs):
            difference = milliseconds(key, "1") - milliseconds(key, "0")
            differences.append(round(difference, 2))
        error = found[0]["ms"] / median(differences) - 1
        result = f"{result}, {error:+.0%} of what was put in: {differences} ms"
    without_core = max(rank["no core"] for rank in figures["ranks"].values())
    print(f"    {result}; no core {without_core} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="with and without each cost (3)")
    parser.add_argument("keys", nargs="*", metavar="KEY")
    args = parser.parse_args()
    for key in args.keys or [*COSTS, *HEALTHY]:
        figures = measured(HEALTHY.get(key, f"{TORCHRUN} {SCRIPT} {key}"))
        named = [f"{one['key']} {one['ms']:.2f} ms in {one['at']}" for one in figures["findings"]]
        print(f"{key}: {'; '.join(named) or 'nothing'}", flush=True)
        if key in COSTS:
            compare(key, figures, args.pairs)


if __name__ == "__main__":
    main()

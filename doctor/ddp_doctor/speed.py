"""ddp-doctor --speed COMMAND: where does the time of a step go, and what would more ranks bring?

The command runs as it is. Then its twin runs in a copy of the folder: see twin.py.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from statistics import mean, median, quantiles

from . import launch, twin
from .judge_speed import PHASES, Measured, findings

COPIED = 200_000_000  # bytes of the folder, at most
FEWEST = 10  # steps
SPREAD = 0.15  # of a share: rounds that differ by more say nothing


def main(args):
    """Measure the command of the arguments -> the exit code: 2 if there was too little to see."""
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-twin-") as folder:
        copy = copied(os.path.realpath(folder))  # now: the script may change its folder
        begun = time.perf_counter()
        run = Measured(launch.observe(args.command, 1e9, args.limit, watcher="watch_speed"))
        run.begun, run.seconds = begun, time.perf_counter() - begun
        if len(run.common) < FEWEST:
            seen = f"{len(run.ranks)} rank(s) and {len(run.common)} regular steps of all of them"
            print(f"ddp-doctor: too little to measure: it saw {seen}", file=sys.stderr)
            return 2
        if len(run.ranks) > 1 and copy:
            run.twin = run_twin(args, run, copy)
    found = findings(run)
    show(run, found)
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(run, found), indent=1) + "\n")
    return 0


def copied(folder):
    """Copy the folder of the command -> the copy, or None: it is too large."""
    size = sum(p.stat().st_size for p in Path().rglob("*") if p.is_file() and not p.is_symlink())
    if size > COPIED:
        return None
    copy = os.path.join(folder, "copy")
    shutil.copytree(".", copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv"))
    return copy


def run_twin(args, run, copy):
    """The same command in the copy -> Measured with its kinds and the latency, or None."""
    share = max(1, run.cores // len(run.ranks))
    threads = share if run.zero.end.get("threads", 1) > share else 0
    size = (len(run.zero.steps) - twin.WARM) // (twin.ROUNDS * (4 if threads else 3))
    size = max(3, min(10, size))
    temporary = os.path.join(copy, ".tmp")
    os.mkdir(temporary)
    env = {"TWIN": size, "THREADS": threads, "COPY": copy}
    env = {f"DDP_DOCTOR_{name}": str(value) for name, value in env.items()}
    env |= {"TMPDIR": temporary, "WANDB_MODE": "disabled"}
    limit = min(args.limit, 60 + 6 * run.seconds)
    seen = launch.observe(args.command, 1e9, limit, copy, "watch_speed", env, twin.fence)
    other = Measured(seen)
    other.kinds, other.threads = other.rounds(size), threads
    other.latency = median(r.events["probe"]["latency"] for r in other.ranks if "probe" in r.events)
    return other


# ---------------------------------------------------------------- what the twin says


def split(run):
    """Where the step of the twin goes -> {part: seconds}, {} if its rounds disagree, or None."""
    kinds = run.twin.kinds if run.twin else {}
    if not {"with", "without", "alone"} <= set(kinds):
        return None
    pairs = zip(kinds["alone"], kinds["with"])
    run.shares = sorted(alone / whole for (alone, _), (whole, _) in pairs)
    low, _, high = quantiles(run.shares, n=4) if len(run.shares) > 3 else (0, 0, 1)
    if high - low > SPREAD:
        return {}
    alone, shared, bound = (
        median(one[which] for one in kinds[kind])
        for kind, which in (("alone", 0), ("without", 0), ("without", 1))
    )
    whole = median(mean for mean, _ in kinds["with"])
    parts = {"one rank alone": alone, "shared cores and memory": shared - alone}
    return parts | {"imbalance": bound - shared, "communication": whole - bound}


def predict(run, parts, m):
    """Seconds of a step of m ranks on this machine -> (middle, low, high)."""

    def ring(n):  # 2 (n - 1) messages, each of an n-th of the bytes
        return latency * (n - 1) / (count - 1) + rest * (1 - 1 / n) / (1 - 1 / count)

    def slowest(n):
        return mean(max(draw.choices(pool, k=n)) for _ in range(2000))

    count, now = len(run.ranks), [whole for whole, _ in run.twin.kinds["with"]]
    average = max(0.0, parts["communication"])
    latency = min(average, run.twin.latency)
    rest, draw = average - latency, random.Random(0)
    pool = [s.work for row in run.rows for s in row]
    cpu = median(s.cpu for row in run.rows for s in row)
    more = slowest(m) - slowest(count) + ring(m) - ring(count)
    turns = cpu * (max(1, m / run.cores) - max(1, count / run.cores))
    low, _, high = quantiles(now, n=4)
    middle = median(now) + more + turns / 2  # in half of these turns others would have waited
    return middle, max(cpu * m / run.cores, low + min(0, more)), high + max(0, more) + turns


# ---------------------------------------------------------------- words


def as_table(run):
    """-> {rank: {phase: milliseconds of a step}}, with the sum and the time without a processor"""
    table = {}
    for rank in run.ranks:
        row = {p: run.typical(rank, lambda s, p=p: s.phases[p]) for p in PHASES}
        row["step"] = run.typical(rank, lambda s: s.time)
        row["no core"] = run.typical(rank, lambda s: s.waits.total())
        table[rank.number] = {name: round(1000 * value, 3) for name, value in row.items()}
    return table


def whole(run):
    """-> {part of the command: seconds}"""
    steps = run.zero.steps.values()
    start = run.zero.steps[1].begin + run.zero.steps[1].phases["start-up"] - run.begun
    spent = {name: run.zero.total(name) for name in ("evaluation", "saving")}
    training = sum(step.time for step in steps) - spent["saving"]
    return {"start-up": start, "training": training, **spent}


def show(run, found):
    spent = ", ".join(f"{name} {value:.1f}" for name, value in whole(run).items())
    print(f"\nThe command took {run.seconds:.1f} s: {spent}.")
    count, steps = len(run.ranks), len(run.zero.steps) - 1
    print(f"{count} rank(s) made {steps} steps. Medians of the {len(run.common)} regular ones:\n")
    table = as_table(run)
    names = [name for name in (*PHASES, "step", "no core") if any(r[name] for r in table.values())]
    print("ms per step" + "".join(f"{name:>11}" for name in names))
    for number, row in table.items():
        print(f"rank {number:<6}" + "".join(f"{row[name]:11.2f}" for name in names))
    if run.waits > 0.05 * run.step:
        wrapped("Ranks waited for a processor ('no core'): other programs ran, or there are too "
                "many threads. The costs below leave that out.")  # fmt: skip
    show_twin(run)
    for cost, key, at, text in found:
        print(f"\n[{key}] {at}\n  {1000 * cost:.2f} ms of a step ({cost / run.step:.0%}): {text}.")
    if not found:
        print("\nNothing was found that costs 1 ms and 2 % of a step.")


def wrapped(text):
    print("\n" + textwrap.fill(text, 100))


def show_twin(run):
    parts = split(run)
    if parts is None:
        wrapped("Efficiency: unknown, since there was no twin, or it ended early.")
    elif not parts:
        low, high = run.shares[0], run.shares[-1]
        wrapped(f"Efficiency: unknown. The {len(run.shares)} rounds of the twin disagree, or are "
                f"too few ({low:.0%} to {high:.0%}).")  # fmt: skip
    else:
        total, alone = sum(parts.values()), parts["one rank alone"]
        texts = [f"{name} {1000 * value:.2f}" for name, value in parts.items()]
        wrapped(f"Efficiency {alone / total:.0%}. A step of the twin in ms: {' + '.join(texts)} = "
                f"{1000 * total:.2f}.")  # fmt: skip
        more = 2 * len(run.ranks)
        middle, low, high = (1000 * value for value in predict(run, parts, more))
        wrapped(f"Predicted for {more} ranks on this machine: {middle:.1f} ms per step "
                f"({low:.1f} to {high:.1f}). Assumed: the same work per rank, a ring, and ranks "
                "that take turns where there are fewer cores.")  # fmt: skip


def as_json(run, found):
    names = ("cost_ms", "key", "at", "seen")
    parts = split(run)
    return {
        "command": {"code": run.run.code, "end": run.run.end, "seconds": whole(run)},
        "ranks": len(run.ranks),
        "ms_per_step": as_table(run),
        "split": parts and {name: 1000 * value for name, value in parts.items()},
        "findings": [dict(zip(names, (1000 * one[0], *one[1:]))) for one in found],
    }

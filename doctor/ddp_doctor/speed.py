"""ddp-doctor --speed COMMAND: where does the time of a step go, and what would more ranks bring?

The command runs as it is. Then its twin runs in a copy of the folder: see twin.py.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from math import log
from pathlib import Path
from statistics import median, quantiles

from . import launch, twin
from .judge_speed import PHASES, Measured, findings

FEWEST = 10  # regular steps
SPREAD = 0.3  # of the efficiency: rounds that differ by more say nothing
# Okabe and Ito's: the phases that compare.py draws, too, have the same colours there.
COLORS = "#999999 #56B4E9 #0072B2 #D55E00 #E69F00 #CC79A7 #F0E442 #009E73 #DDDDDD".split()
COLORS = dict(zip((*PHASES, "no core"), COLORS))


def main(args):
    """Measure the command of the arguments -> the exit code: 2 if it failed or was too short."""
    if args.picture and not find_spec("matplotlib"):
        print("ddp-doctor: --picture: install matplotlib first", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-twin-") as folder:
        folder = os.path.realpath(folder)
        linked = link_files(os.path.join(folder, "copy"))  # now: the script may add files
        begun = time.perf_counter()
        run = Measured(launch.observe(args.command, 1e9, args.limit, watcher="watch_speed"))
        run.seconds = time.perf_counter() - begun
        if run.run.end == "interrupt" or len(run.common) < FEWEST:
            seen = f"{len(run.ranks)} rank(s), {len(run.common)} regular steps of all of them"
            print(f"ddp-doctor: too little to measure: {seen}", file=sys.stderr)
            return 2
        if len(run.ranks) > 1 and linked:
            run_twin(args, run, folder)
    facts = as_json(run)
    show(run, facts)
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=1) + "\n")
    if args.picture:
        draw(facts["ranks"], args.picture)
    return 2 if run.run.code or run.run.end else 0


def link_files(copy):
    """Make the twin's copy of this folder, of links to its files -> was there time for it?"""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["cp", "-rs", os.getcwd(), copy]
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=20)
        return sys.platform == "linux" and os.path.isdir(copy)
    return False


def run_twin(args, run, folder):
    """The same command in the copy: run.kinds gets the times of its blocks."""
    size = max(3, min(10, (len(run.zero.steps) - twin.WARM) // (twin.ROUNDS * 4)))
    env = {"DDP_DOCTOR_TWIN": str(size), "DDP_DOCTOR_COPY": folder}
    env |= {"TMPDIR": folder, "WANDB_MODE": "disabled"}
    copy, fence = os.path.join(folder, "copy"), partial(twin.fence, folder, "/dev")
    limit = min(args.limit, 60 + 6 * run.seconds)
    with suppress(subprocess.SubprocessError):  # no Landlock: no twin
        other = launch.observe(args.command, 1e9, limit, copy, "watch_speed", env, fence)
        run.kinds = Measured(other).rounds(size)


def split(run):
    """The step of the twin -> ({part: seconds}, shares of the rounds); {}: nothing is known."""
    kinds = run.kinds
    if not {"with", "without", "alone"} <= set(kinds):
        return {}, []
    shares = sorted(own / whole for (own, _), (whole, _) in zip(kinds["alone"], kinds["with"]))
    low, _, high = quantiles(shares, n=4) if len(shares) > 3 else (0, 0, 1)
    if high - low > SPREAD:
        return {}, shares
    alone, whole = (median(middle for middle, _ in kinds[kind]) for kind in ("alone", "with"))
    shared, bound = (median(times) for times in zip(*kinds["without"]))
    parts = {"one rank alone": alone, "shared cores and memory": shared - alone}
    return parts | {"imbalance": bound - shared, "communication": whole - bound}, shares


def predict(run, parts, more):
    """Seconds of a step of more ranks on this machine -> (low, high).

    Low: communication is bandwidth. High: it is latency, and the slowest rank is slower, too.
    """
    count, (low, _, high) = len(run.ranks), quantiles((t for t, _ in run.kinds["with"]), n=4)
    average, imbalance = (max(0.0, parts[name]) for name in ("communication", "imbalance"))
    cpu = median(s.cpu for row in run.rows for s in row)
    turns = cpu * (max(1, more / run.cores) - max(1, count / run.cores))
    low += average * ((1 - 1 / more) / (1 - 1 / count) - 1)
    high += average * ((more - 1) / (count - 1) - 1) + imbalance * (log(more) / log(count) - 1)
    return low + turns, high + turns


def as_json(run):
    """All that was measured, in milliseconds and, of the command, seconds."""
    table, steps = {}, run.zero.steps.values()
    for rank in run.ranks:
        row = {p: run.typical(rank, lambda s, p=p: s.phases[p]) for p in PHASES}
        row["no core"] = run.typical(rank, lambda s: s.wait)
        row["step"] = run.typical(rank, lambda s: s.time)
        table[rank.number] = {name: round(1000 * value, 2) for name, value in row.items()}
    spent = {p: run.zero.total(p) for p in ("evaluation", "saving")}
    spent["training"] = sum(s.time for s in steps) - spent["saving"]
    spent["start-up and end"] = run.seconds - sum(spent.values())
    parts, shares = split(run)
    more, names = 2 * len(run.ranks), ("ms", "key", "at", "seen")
    return {
        "command": {"seconds": run.seconds, "code": run.run.code, "end": run.run.end, **spent},
        "steps": {"all": len(steps) - 1, "regular": len(run.common), "ms": 1000 * run.step},
        "gpu": bool(run.wrap and run.wrap["gpu"]),
        "ranks": table,
        "twin": {name: round(1000 * value, 2) for name, value in parts.items()},
        "efficiencies": shares,
        "predicted": {more: [1000 * t for t in predict(run, parts, more)]} if parts else {},
        "findings": [dict(zip(names, (1000 * one[0], *one[1:]))) for one in findings(run)],
    }


def show(run, facts):
    """Print what as_json returned."""
    command, steps, ranks = facts["command"], facts["steps"], facts["ranks"]
    names = ("start-up and end", "training", "evaluation", "saving")
    spent = ", ".join(f"{name} {command[name]:.1f}" for name in names)
    ended = "took" if run.run.code == 0 else f"failed ({run.run.end or run.run.code}) after"
    print(f"\nThe command {ended} {command['seconds']:.1f} s: {spent}.")
    print(f"Medians of the {steps['regular']} regular steps of {steps['all']}:\n")
    shown = [name for name in ranks[0] if any(row[name] for row in ranks.values())]
    print("ms per step" + "".join(f"{name:>11}" for name in shown))
    for number, row in ranks.items():
        print(f"rank {number:<6}" + "".join(f"{row[name]:11.2f}" for name in shown))
    if min(row["no core"] for row in ranks.values()) > 0.1 * steps["ms"]:
        wrapped("Often no core was free: end other programs, or start fewer threads and workers.")
    show_twin(facts)
    for one in facts["findings"]:
        share = one["ms"] / steps["ms"]
        text = f"{one['ms']:.2f} ms of a step ({share:.0%}): {one['seen']}."
        wrapped(f"[{one['key']}] {one['at']}: {text}")
    if not facts["findings"]:
        wrapped("Nothing was found that costs 1 ms and 2 % of a step.")


def show_twin(facts):
    parts, shares = facts["twin"], facts["efficiencies"]
    if not parts:
        spread = f", from {shares[0]:.0%} to {shares[-1]:.0%}" if shares else ""
        why = f"its rounds ({len(shares)}{spread}) are too few, or disagree"
        wrapped(f"Efficiency: unknown. The twin did not run or end well, or {why}.")
        return
    total, alone = sum(parts.values()), parts["one rank alone"]
    sums = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    low, _, high = quantiles(shares, n=4)
    wrapped(f"Efficiency {alone / total:.0%} ({low:.0%} to {high:.0%} in the middle half of the "
            f"rounds). The twin's step in ms: {sums} = {total:.2f}.")  # fmt: skip
    for more, (low, high) in facts["predicted"].items():
        wrapped(f"Predicted for {more} ranks on this machine: {low:.1f} to {high:.1f} ms per step. "
                "Assumed: the same work per rank, a ring, no more memory traffic, and ranks that "
                "take turns where cores are too few.")  # fmt: skip


def wrapped(text):
    print("\n" + textwrap.fill(text, 100))


def draw(ranks, path):
    """A bar per rank: the phases of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 + 0.4 * len(ranks)), layout="constrained")
    axes, ends = figure.subplots(), [0.0] * len(ranks)
    for phase, color in COLORS.items():
        widths = [row[phase] for row in ranks.values()]
        if any(widths):
            axes.barh([f"rank {n}" for n in ranks], widths, 0.6, ends, color=color, label=phase)
        ends = [end + width for end, width in zip(ends, widths)]
    axes.set(xlabel="milliseconds of a step", ylim=(len(ranks) - 0.4, -0.6))
    figure.legend(loc="outside upper left", ncols=len(COLORS), columnspacing=1, frameon=False)
    figure.savefig(path, dpi=200)
    print(f"\npicture: {path}")

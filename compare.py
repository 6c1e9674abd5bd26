"""Run the stages that this machine can run, one after the other, and compare what they recorded.

    python compare.py                       # every stage, two epochs each: a table and a picture
    python compare.py --only 01 03 -b 240   # flags that are not listed here go to every stage
    python compare.py --no-run              # read the records that are there already

Stages 2 and 3 also run on what their by_hand.py has written out; stages 3 and 4 without and with
mixed precision. A ratio is formed only between rows that agree
in everything but the way they are parallel; for every other row a note says in what it differs.
Exit code 1 if a stage failed, 2 if there is nothing to compare.
"""

import argparse
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draw into files, also where there is no screen
import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).resolve().parent
STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
WITH_AMP = ("03_ddp_spawn", "04_ddp_torchrun")
BY_HAND = {"02_dp": ["by_hand"], "03_ddp_spawn": ["by_hand_bucketed", "by_hand_naive"]}
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("dataset", "global_batch", "epochs", "threads_per_rank", "workers", "amp", "torch", "host")
ALIKE += ("device_name",)
# Okabe and Ito's colours, which the colour-blind can tell apart.
STEP_COLORS = {
    "data": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exposed": "#D55E00",
    "step": "#E69F00",
}
COMMAND_COLORS = {"start, end": "#999999", "training": "#009E73", "evaluation": "#F0E442"}


def main() -> int:
    args, stage_flags = parse()
    if args.no_run:
        rows = read_records(args)
    else:
        stage_flags = ["--data", str(find_data(args)), *stage_flags]
        jobs = plan(args)
        rows = []
        for number, job in enumerate(jobs, start=1):
            amp = "" if job["amp"] == "off" else f" with {job['amp']}"
            print(f"[{number}/{len(jobs)}] {name(job)}{amp}")
            rows.append(run(args, job, stage_flags))
    good = [row for row in rows if "failed" not in row]
    print("\n" + table(rows))
    if good:
        print("\n" + phases_table(good))
        path = args.record / "compare.png"
        draw(good, path)
        print(f"\npicture: {path}")
    return 0 if len(good) == len(rows) else 1


def parse() -> tuple[argparse.Namespace, list[str]]:
    """-> the flags of this script, and those for the stages"""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--no-run", action="store_true", help="run nothing, only read the records")
    add("--only", nargs="+", default=STAGES, metavar="STAGE", help="such as 01 or 03_ddp_spawn")
    add("-e", "--epochs", type=int, default=2, help="epochs of each stage (2)")
    add("--world-size", type=int, help="ranks of stages 3 to 5 (one per GPU; 2 on a CPU)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what the ranks run on")
    add("--data", type=Path, help="folder that holds MNIST/raw ($MNIST_ROOT, else data)")
    add("--record", type=Path, default=Path("timings"), help="folder of the records (timings)")
    args, stage_flags = parser.parse_known_args()
    for name in args.only:
        if not any(stage.startswith(name) for stage in STAGES):
            parser.error(f"--only {name}: the stages are {', '.join(STAGES)}")
    args.only = [stage for stage in STAGES if stage.startswith(tuple(args.only))]
    if args.epochs < 1 or (args.world_size is not None and args.world_size < 1):
        parser.error("--epochs and --world-size: at least 1")
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        args.record.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {args.record}: {error.strerror}")
    if args.world_size is None:
        args.world_size = torch.cuda.device_count() if args.device == "cuda" else 2
    return args, stage_flags


# ---------------------------------------------------------------- running the stages


def plan(args: argparse.Namespace) -> list[dict]:
    """-> [{"stage", "variant", "amp"}, ...] in the order of the rows"""
    amps = ["bf16"]  # on a CPU fp16 works too, but slowly: it is for GPUs
    if args.device == "cuda":
        amps = ["fp16", "bf16"] if torch.cuda.is_bf16_supported(False) else ["fp16"]
    jobs = []
    for stage in args.only:
        variants = ["", *(BY_HAND.get(stage, []) if args.world_size > 1 else [])]
        jobs += [{"stage": stage, "variant": variant, "amp": "off"} for variant in variants]
        if stage in WITH_AMP:
            jobs += [{"stage": stage, "variant": amp, "amp": amp} for amp in amps]
    return jobs


def find_data(args: argparse.Namespace) -> Path:
    """The folder with the data: as given, or MNIST in data/, or else digits that are drawn now."""
    given = args.data or os.environ.get("MNIST_ROOT")
    data, drawn = Path(given or "data"), Path("data", "drawn")
    if (data / "MNIST" / "raw").exists():
        return data
    if given or not (drawn / "MNIST").exists():
        command = [sys.executable, ROOT / "01_baseline/train.py", "--data", data, "--epochs", "0"]
        download = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if download.returncode == 0:
            return data
        print(download.stderr.strip(), file=sys.stderr)
        if given:
            sys.exit(download.returncode)
        subprocess.run([sys.executable, ROOT / "tools/draw_digits.py", drawn], check=True)
    print(
        "**********************************************************************\n"
        "* No MNIST here: the stages train on DRAWN digits, from data/drawn.  *\n"
        "* Times can be compared as ever; the accuracies are not MNIST's.     *\n"
        "* The real thing: --data DIR, or delete data/drawn and come online.  *\n"
        "**********************************************************************"
    )
    return drawn


def run(args: argparse.Namespace, job: dict, stage_flags: list[str]) -> dict:
    """Run a job and show what it prints -> its record, or the job with "failed": why."""
    stage, amp = job["stage"], job["amp"]
    flags = ["--epochs", str(args.epochs), "--device", args.device, "--record", str(args.record)]
    flags += stage_flags + (["--amp", amp] if amp != "off" else [])
    started = time.time()
    with tempfile.TemporaryFile("w+") as errors:
        hosts = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
            for command, env in commands(args, job, flags)
        ]
        printers = [threading.Thread(target=print_lines, args=(host,)) for host in hosts]
        try:
            for printer in printers:
                printer.start()
            code = max(abs(wait_for(hosts, host)) for host in hosts)
        finally:  # an interrupt must not leave a stage running
            for host in hosts:
                host.terminate()
        for printer in printers:
            printer.join()
        seconds = time.time() - started
        errors.seek(0)
        why = last_line(stage, errors.read())
    fresh = [
        path for path in args.record.glob(f"{stage}-*.json") if path.stat().st_mtime >= started
    ]
    if code or not fresh:
        print(f"    failed: {why}")
        return job | {"failed": why}
    record = json.loads(fresh[0].read_text()) | {"command_seconds": seconds}
    fresh[0].write_text(json.dumps(record, indent=1))  # seen from outside: with launcher and exit
    return record


def commands(args: argparse.Namespace, job: dict, flags: list[str]):
    """Yield (command line, environment) of each process to start; stage 5 has one for each host."""
    stage, by_hand = job["stage"], job["variant"].startswith("by_hand")
    script = [str(ROOT / stage / ("by_hand.py" if by_hand else "train.py")), *flags]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    ranks = args.world_size
    if stage == "02_dp" and by_hand:
        yield [sys.executable, *script, "--train", "--devices", str(ranks)], env
    elif stage in ("01_baseline", "02_dp"):
        yield [sys.executable, *script], env
    elif stage == "03_ddp_spawn":
        kind = ["--train", "--" + job["variant"].removeprefix("by_hand_")] if by_hand else []
        yield [sys.executable, *script, *kind, "--world-size", str(ranks)], env
    elif stage == "04_ddp_torchrun":
        yield [*torchrun, "--standalone", "--nproc-per-node", str(ranks), *script], env
    else:
        per_host = ranks // 2 if ranks % 2 == 0 else 1  # two hosts, or as many as ranks
        torchrun += ["--nnodes", str(ranks // per_host), "--nproc-per-node", str(per_host)]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(ranks)))
        for first in range(0, ranks, per_host):
            own = ",".join(gpus.split(",")[first : first + per_host])
            yield [*torchrun, *script], env | {"CUDA_VISIBLE_DEVICES": own}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def print_lines(process: subprocess.Popen) -> None:
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)


def wait_for(hosts: list[subprocess.Popen], host: subprocess.Popen) -> int:
    """Wait for one of several hosts -> its exit code. If another fails, it has 30 s to notice."""
    deadline = float("inf")
    while host.poll() is None and time.time() < deadline:
        if any(other.poll() for other in hosts):
            deadline = min(deadline, time.time() + 30)
        time.sleep(0.05)
    return 1 if host.poll() is None else host.returncode


def last_line(stage: str, errors: str) -> str:
    """The line of stderr that says what went wrong: the stage's own, else the last exception's."""
    lines = [line.strip() for line in errors.splitlines() if line.strip(" =-*")]
    own = [line for line in lines if line.startswith(f"{stage}: ")]
    error = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception)\b")
    return (own or list(filter(error.match, lines)) or lines or ["it said nothing"])[-1]


# ---------------------------------------------------------------- the table


def read_records(args: argparse.Namespace) -> list[dict]:
    """The records in the folder: stage by stage, fp32 before mixed precision."""
    rows = []
    for path in sorted(args.record.glob("*.json")):
        try:
            row = json.loads(path.read_text())
            (
                cells(row),
                differences(row, row),
                phases_per_step(row),
                spread(row),
            )  # all that is needed of it
        except (ValueError, LookupError, TypeError, AttributeError, OSError):
            print(f"compare.py: {path} is not a record of a stage", file=sys.stderr)
            sys.exit(2)
        rows += [row] if row["stage"] in args.only else []
    if not rows:
        print(f"compare.py: no records in {args.record}; run python compare.py", file=sys.stderr)
        sys.exit(2)
    return sorted(rows, key=rank_in_table)


def rank_in_table(row: dict) -> tuple:
    """Stage by stage; in each first fp32, itself and by hand, then mixed precision."""
    return (row["stage"], row["amp"] != "off", row["amp"], row["variant"], row["world_size"])


def table(rows: list[dict]) -> str:
    """The comparison as text: a line per row, then a note for each row that is not like stage 1."""
    titles = ("stage", "amp", "ranks", "device", "start-up", "epoch", "images/s")
    titles += ("speed-up", "efficiency", "accuracy", "command", "")
    lines, notes = [titles], []
    for row in rows:
        if "failed" in row:
            lines.append((name(row), row["amp"], f"failed: {row['failed']}"))
            continue
        base, note = baseline(rows, row), ""
        if text := remark(row, base):
            notes += [text] if text not in notes else []
            note = f"({notes.index(text) + 1})"
        lines.append((*cells(row), *ratios(row, base), *outcome(row), note))
    widths = [max(len(line[i]) for line in lines if len(line) > 3) for i in range(len(titles))]
    text = [about(rows)] if any("failed" not in row for row in rows) else []
    for line in lines:
        padded = [
            f"{cell:<{width}}" if i < 2 or len(line) == 3 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        text.append("  ".join(padded).rstrip())
    text += [f"({number}) {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(text + amp_gains(rows))


def phases_table(rows: list[dict]) -> str:
    """Where a step's time goes, and how far the ranks differ, as text."""
    titles = ("ms per step", "amp", "ranks", *STEP_COLORS, "sum", "slowest rank", "memory")
    lines = [titles]
    for row in rows:
        phases = phases_per_step(row)
        cells = [f"{milliseconds:.2f}" for milliseconds in (*phases.values(), sum(phases.values()))]
        if not row["backend"]:  # nobody to wait for
            cells[list(STEP_COLORS).index("exposed")] = "-"
        lines.append((name(row), row["amp"], str(row["world_size"]), *cells, *spread(row)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    aligned = [
        "  ".join(f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}" for i, cell, width in cells)
        for cells in (zip(range(len(titles)), line, widths) for line in lines)
    ]
    return "\n".join(line.rstrip() for line in aligned)


def spread(row: dict) -> tuple[str, str]:
    """The rank that computes longest, and by how much longer than the quickest; memory per rank."""
    computing = [
        sum(seconds for epoch in rank for phase, seconds in epoch.items() if phase != "exposed")
        for rank in row["phase_seconds"]
    ]
    slowest = computing.index(max(computing))
    longer = f"{slowest} (+{max(computing) / min(computing) - 1:.1%})" if computing[1:] else "-"
    memory = row["peak_memory_bytes"]
    return longer, f"{max(memory) / 2**20:,.0f} MiB" if None not in memory else "-"


def name(row: dict) -> str:
    """The stage, and that it was done by hand where it was: "03_ddp_spawn by hand, naive"."""
    way = row["variant"].removesuffix(row["amp"]).strip("-")
    return row["stage"] + way.replace("by_hand_", " by hand, ").replace("by_hand", " by hand")


def median_epoch(row: dict) -> float:
    """Seconds of an epoch; the first one warms up and does not count if there are others."""
    return statistics.median(row["epoch_seconds"][1:] or row["epoch_seconds"])


def cells(row: dict) -> tuple[str, ...]:
    """What was run and how fast, as text."""
    ranks = f"{row['world_size']}" + (f" on {row['hosts']} hosts" if row["hosts"] > 1 else "")
    ranks += f" on {row['devices']} devices" if row["devices"] > row["world_size"] else ""
    startup, epoch = f"{row['startup_seconds']:.1f} s", f"{median_epoch(row):.2f} s"
    speed = f"{row['images_per_second']:,.0f}"
    return (name(row), row["amp"], ranks, row["device"], startup, epoch, speed)


def outcome(row: dict) -> tuple[str, str]:
    seconds = row.get("command_seconds", row["total_seconds"])
    return f"{row['test_accuracy']:.2%}", f"{seconds:.1f} s"


def baseline(rows: list[dict], row: dict) -> dict | None:
    """The row of stage 1 to compare with: one that is alike if there is one, else the first."""
    bases = [base for base in rows if base["stage"] == STAGES[0] and "failed" not in base]
    return min(bases, key=lambda base: len(differences(row, base)), default=None)


def differences(row: dict, base: dict) -> list[str]:
    """In what two rows differ that have to be alike, as text; empty if they may be compared."""
    differ = [f"{key} {row[key]}, not {base[key]}" for key in ALIKE if row[key] != base[key]]
    return differ + (["resumed from a snapshot: timed in pieces"] if row.get("resumed") else [])


def remark(row: dict, base: dict | None) -> str:
    """What has to be said of a row: why it has no ratio, or that nothing is parallel in it."""
    differs = ", ".join(differences(row, base)) if base else ""
    if differs:
        return f"{differs}: no ratio to stage 1 is formed"
    if row["stage"] == "02_dp" and row["devices"] == 1:
        return "one device: DataParallel has nothing to spread over, this is stage 1 again"
    return ""


def ratios(row: dict, base: dict | None) -> tuple[str, str]:
    """Speed-up over stage 1, and that per device; dashes where no ratio may be formed."""
    if base is None or differences(row, base):
        return "-", "-"
    speed_up = row["images_per_second"] / base["images_per_second"]
    return f"{speed_up:.2f}", f"{speed_up / row['devices']:.0%}"


def about(rows: list[dict]) -> str:
    """What the rows have in common, taken from the first good one."""
    row = next(row for row in rows if "failed" not in row)
    data = row["dataset"] if row["dataset"] == "MNIST" else f"{row['dataset']} (NOT MNIST)"
    return (
        f"{data}, {row['global_batch']} images per step, {row['epochs']} epochs, "
        f"{row['threads_per_rank']} thread(s) per rank, torch {row['torch']}, {row['device_name']}"
    )


def amp_gains(rows: list[dict]) -> list[str]:
    """What mixed precision alone brings: the one other ratio, between two runs of one stage."""
    lines = []
    good = [row for row in rows if "failed" not in row]
    for row, fp32 in itertools.product(good, good):
        one_stage = (name(row), row["world_size"]) == (name(fp32), fp32["world_size"])
        if one_stage and fp32["amp"] == "off" != row["amp"] and len(differences(row, fp32)) == 1:
            gain = row["images_per_second"] / fp32["images_per_second"]
            lines.append(f"{name(row)}: with {row['amp']} {gain:.2f} times the images/s of fp32")
    return lines


# ---------------------------------------------------------------- the picture


def draw(rows: list[dict], path: Path) -> None:
    """One bar per row: where a step's time goes, and where the whole command's goes."""
    size = (11, 1.9 + 0.5 * len(rows))  # inches
    figure, (left, right) = plt.subplots(
        1, 2, figsize=size, width_ratios=(3, 2), sharey=True, layout="constrained"
    )
    labels = [label(row) for row in rows]
    steps = [phases_per_step(row) for row in rows]
    stacked(left, labels, steps, STEP_COLORS)
    stacked(right, labels, [parts_of_command(row) for row in rows], COMMAND_COLORS)
    for y, (row, step) in enumerate(zip(rows, steps)):
        base = baseline(rows, row)
        speed_up = ratios(row, base)[0]
        if speed_up != "-" and row["devices"] > 1:
            limit = sum(phases_per_step(base).values()) / row["devices"]
            title = None if left.lines else "limit: stage 1 / devices"
            left.plot([limit, limit], [y - 0.45, y + 0.45], "k", linewidth=2, label=title)
        times = "" if speed_up == "-" or row["stage"] == STAGES[0] else f", {speed_up}x stage 1"
        speed = f" {row['images_per_second']:,.0f} images/s{times}"
        left.text(sum(step.values()), y, speed, va="center", fontsize=9)
    legend(left, ncols=3)
    legend(right, ncols=3)
    left.set(xlabel="milliseconds of one optimizer step", ylim=(len(rows) - 0.4, -0.6))
    left.set_xlim(right=1.5 * max(sum(step.values()) for step in steps))  # room for the text
    right.set(xlabel="seconds of the whole command")
    figure.suptitle(finding(rows), x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.supxlabel(about(rows), x=0.01, ha="left", fontsize=8, color="#555555")
    figure.savefig(path, dpi=120, facecolor="white")
    plt.close(figure)


def stacked(axes, labels: list[str], bars: list[dict], colors: dict) -> None:
    """Horizontal bars [{part: length}, ...], one under the other."""
    left = [0.0] * len(bars)
    for part, color in colors.items():
        lengths = [bar[part] for bar in bars]
        axes.barh(range(len(bars)), lengths, left=left, label=part, color=color, height=0.7)
        left = [start + length for start, length in zip(left, lengths)]
    axes.set_yticks(range(len(bars)), labels)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes, ncols: int) -> None:
    """Above the axes, so that it hides no bar."""
    style = {"frameon": False, "fontsize": 9, "columnspacing": 1, "handlelength": 1}
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=ncols, **style)


def label(row: dict) -> str:
    ranks = f"{row['world_size']} rank" + ("s" if row["world_size"] > 1 else "")
    devices = f", {row['devices']} devices" if row["devices"] > row["world_size"] else ""
    amp = "" if row["amp"] == "off" else f" {row['amp']}"
    return f"{name(row)}{amp}\n{ranks}{devices}, {row['device']}"


def phases_per_step(row: dict) -> dict[str, float]:
    """Milliseconds of a step in each phase: means over the ranks and over the epochs that count.

    "exposed" is what averaging the gradients adds to a step: the time from a rank's last gradient
    to the end of its backward, in which it waits for the other ranks and for the all-reduce.
    """
    epochs = [epoch for rank in row["phase_seconds"] for epoch in rank[1:] or rank]
    images = row["images_per_second"] * median_epoch(row)
    steps = -(-round(images) // row["global_batch"])  # rounded up: the last batch may be smaller
    means = [
        1000 * statistics.mean(epoch.get(phase, 0.0) for epoch in epochs) / steps
        for phase in STEP_COLORS
    ]
    return dict(zip(STEP_COLORS, means, strict=True))


def parts_of_command(row: dict) -> dict[str, float]:
    """Seconds of the whole command: starting and ending, training, evaluating and saving."""
    seconds = row.get("command_seconds", row["total_seconds"])
    training = sum(row["epoch_seconds"])
    starting = row["startup_seconds"] + seconds - row["total_seconds"]
    parts = (starting, training, seconds - starting - training)
    return dict(zip(COMMAND_COLORS, parts, strict=True))


def finding(rows: list[dict]) -> str:
    """The picture's title: the best ratio that may be formed, or what is shown."""
    ratio = {}
    for row in rows:
        speed_up = ratios(row, baseline(rows, row))[0]
        if row["devices"] > 1 and speed_up != "-":
            ratio[float(speed_up)] = row["devices"]
    if not ratio:
        return "Where the time of each stage goes"
    return f"{ratio[max(ratio)]} devices train up to {max(ratio):.2f} times as fast as one"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ncompare.py: interrupted", file=sys.stderr)
        sys.exit(130)

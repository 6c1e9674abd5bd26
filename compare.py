"""Run the stages that this machine can run, one after the other, and compare their timings.

    python compare.py                       # every stage: a table and a picture in timings/
    python compare.py --only 03 04 -b 120   # some of them, with other settings
    python compare.py --repeat 3            # each three times, in turns: minimum and maximum
    python compare.py --no-run              # read the records in timings/ again
    python compare.py A B                   # two records, or two folders of them, phase by phase

Rows that differ in anything but the way they are parallel get no ratio, and a note says why.
Exit code 1 if a stage failed, 2 if there is nothing to compare.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tabulate import tabulate
from torchvision import datasets

ROOT = Path(__file__).resolve().parent
DRAW = ROOT / "tools" / "draw_digits.py"
STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
SETTINGS = ("batch_size", "epochs", "lr", "threads", "workers", "seed")
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("images", *SETTINGS, "amp", "device", "dataset", "torch", "host", "device_name")
# Okabe and Ito's colours, which the colour-blind can tell apart.
PHASES = {
    "data": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exposed": "#D55E00",
    "optimizer": "#E69F00",
}


def main():
    args = parse()
    if args.pair:
        return compare_pairs(*args.pair)
    rows, failed = (read_folder(args.record), []) if args.no_run else run_all(args)
    if rows:
        print("\n" + "\n\n".join([about(rows), speed_table(rows), phase_table(rows)]))
        draw(rows, args.record / "compare.png")
        print(f"\npicture: {args.record / 'compare.png'}")
    elif not failed:
        fail(f"no records in {args.record}; run python compare.py")
    for name in failed:
        print(f"failed: {name}, see above")
    return 1 if failed else 0


def parse():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("pair", nargs="*", type=Path, metavar="A B", help="two records, or two folders of them")
    add("--no-run", action="store_true", help="run nothing, only read the records")
    numbers = [stage[:2] for stage in STAGES]
    add("--only", nargs="+", choices=numbers, default=numbers, help="some of the stages")
    add("--all", action="store_true", help="also what the from_scratch.py files train")
    add("--repeat", type=int, default=1, help="run each stage so many times, in turns (1)")
    add("--world-size", type=int, help="ranks of stages 3 to 5 (one per GPU; 2 on a CPU)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--data", type=Path, help="MNIST's folder ($MNIST_ROOT, else data)")
    add("--record", type=Path, default=Path("timings"), help="folder of the records (timings)")
    settings = parser.add_argument_group("settings of every stage, as in its own --help")
    for name in SETTINGS:
        short = {"epochs": ["-e"], "batch_size": ["-b"]}.get(name, [])
        kind = float if name == "lr" else int
        settings.add_argument(*short, f"--{name.replace('_', '-')}", type=kind, metavar="N")
    args = parser.parse_args()
    if len(args.pair) not in (0, 2):
        parser.error("give two records or two folders to compare, or none")
    if args.world_size is None:
        args.world_size = torch.cuda.device_count() if args.device == "cuda" else 2
    for name in ("repeat", "world_size", "epochs", "batch_size", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: at least 1")
    return args


def fail(message):
    print(f"compare.py: {message}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------- running the stages


def run_all(args):
    """Run every job of the plan, --repeat times in turns -> rows, the names of jobs that failed."""
    try:
        args.record.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot write to {args.record}: {error.strerror}")
    root, dataset = find_data(args.data)
    facts = {"dataset": dataset, "device_name": device_name(args.device)}
    flags = ["--device", args.device, "--data", str(root)]
    for name in SETTINGS:
        if getattr(args, name) is not None:
            flags += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    jobs = [(turn, *job) for turn in range(1, args.repeat + 1) for job in plan(args)]
    written, failed, started = [], [], time.monotonic()
    for number, (turn, name, commands) in enumerate(jobs):
        each = (time.monotonic() - started) / max(1, number)
        left = f", about {each * (len(jobs) - number):.0f} s left" if number else ""
        print(f"[{number + 1}/{len(jobs)}] {name}{left}", flush=True)
        folder = args.record if args.repeat == 1 else args.record / f"repeat-{turn}"
        path = run([[*command, *flags] for command in commands], folder, facts)
        if path:
            written.append(path)
        else:
            failed.append(name)
    for path in written:  # of an earlier call with other repeats
        for stale in {args.record / path.name, *args.record.glob(f"repeat-*/{path.name}")}:
            if stale not in written:
                stale.unlink(missing_ok=True)
    return group(written), failed


def plan(args):
    """-> [(name, the command line of each process to start), ...], in the order of the table"""
    ranks, ddp = args.world_size, ["--world-size", str(args.world_size)]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    jobs = []

    def add(name, script, *flags, launcher=(sys.executable,), nodes=1):
        if name[:2] in args.only:
            jobs.append((name, [[*launcher, str(ROOT / script), *flags]] * nodes))

    add("01_baseline", "01_baseline/train.py")
    if args.device == "cuda" and torch.cuda.device_count() > 1:
        add("02_dp", "02_dp/train.py")
    elif args.device == "cpu" and ranks > 1:  # without GPUs DataParallel would be stage 1 again
        add("02_dp-threads", "02_dp/from_scratch.py", "--train", "--devices", str(ranks))
    add("03_ddp_spawn", "03_ddp_spawn/train.py", *ddp)
    for amp in native_amp(args.device):
        add(f"03_ddp_spawn with {amp}", "03_ddp_spawn/train.py", *ddp, "--amp", amp)
    for kind in ("bucketed", "naive") if args.all and ranks > 1 else ():
        add(f"03_ddp_spawn-{kind}", "03_ddp_spawn/from_scratch.py", "--train", kind, *ddp)
    alone = [*torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    add("04_ddp_torchrun", "04_ddp_torchrun/train.py", launcher=alone)
    nodes = 2 if ranks % 2 == 0 else 1  # two nodes: two torchruns on this machine
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    meeting += ["--rdzv-conf", "join_timeout=60", "--nnodes", str(nodes)]
    several = [*torchrun, *meeting, "--nproc-per-node", str(ranks // nodes)]
    add("05_multinode", "05_multinode/train.py", launcher=several, nodes=nodes)
    return jobs


def native_amp(device):
    """The kinds of mixed precision for which the device has instructions."""
    if device == "cuda":
        return ("fp16", "bf16") if torch.cuda.is_bf16_supported(False) else ("fp16",)
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return ("bf16",) if any(found[name] for name in found if "bf16" in name) else ()


def find_data(given):
    """The folder with MNIST, downloaded or drawn if need be -> folder, name of the data"""
    root = Path(given or os.environ.get("MNIST_ROOT", "data"))
    try:
        test_set = datasets.MNIST(root, train=False, download=True)
    except Exception as error:  # no network, or a damaged file: each has an exception of its own
        with suppress(OSError):
            os.removedirs(root / "MNIST" / "raw")  # empty folders that torchvision has made
        reason = " ".join(str(error).split())[-80:]
        if given or "MNIST_ROOT" in os.environ:
            fail(f"no MNIST in {root} ({reason}); python tools/draw_digits.py {root} draws digits")
        print(f"no MNIST in {root}, no download ({reason}): digits are drawn instead", flush=True)
        root = Path("data", "drawn")
        if not root.exists() and subprocess.run([sys.executable, DRAW, root]).returncode:
            fail("no digits could be drawn")
        test_set = datasets.MNIST(root, train=False)
    if zlib.crc32(test_set.data.numpy()) == 0xE4CA5F57:
        return root, "MNIST"
    print(f"*** {root} is NOT MNIST: times can be compared as ever, accuracies are not MNIST's ***")
    return root, f"{root.name} (NOT MNIST)"


def run(commands, folder, facts):
    """Run a job, show what it prints, keep its record in the folder -> its path, or None."""
    with tempfile.TemporaryDirectory() as temp, tempfile.TemporaryFile("w+") as errors:
        places = ["--record", temp, "--checkpoint", str(Path(temp, "model.pt"))]
        started = time.monotonic()
        code, first_line = watch([[*command, *places] for command in commands], errors)
        if code == 0:
            (path,) = Path(temp).glob("*.json")
            seconds = {"startup_seconds": first_line - started}
            seconds["command_seconds"] = time.monotonic() - started
            record = {**json.loads(path.read_text()), **facts, **seconds}
            path.write_text(json.dumps(record, indent=1))
            folder.mkdir(exist_ok=True)
            return Path(shutil.copy(path, folder))
        errors.seek(0)
        lines = [line.strip() for line in errors]
        reasons = [line for line in lines if ": error: " in line or "Error: " in line]
        print(f"    failed: {(reasons or lines or [f'exit code {code}'])[0]}")
        return None


def watch(commands, errors):
    """Start the processes of a job and print what they print -> exit code, time of the first line

    errors: the file for their stderr. However this ends, no process is left running.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = gpus if gpus[0] else list(map(str, range(torch.cuda.device_count())))
    receiving, sending = os.pipe()  # one for all processes: it ends when the last of them ends
    processes, first_line = [], None
    try:
        for node, command in enumerate(commands):
            own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[node :: len(commands)])}
            env = os.environ | own | {"PYTHONUNBUFFERED": "1"}
            processes.append(subprocess.Popen(command, env=env, stdout=sending, stderr=errors))
        os.close(sending)
        with open(receiving, errors="replace") as lines:
            for line in lines:
                first_line = first_line or time.monotonic()
                print(f"    {line}", end="", flush=True)
    finally:  # an interrupt must not leave a stage running; each ends its own ranks
        for process in processes:
            process.terminate()
        codes = [process.wait() for process in processes]
    return max(map(abs, codes)), first_line


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def device_name(device):
    """The name of the first GPU, or of the CPU (on Linux; elsewhere its architecture)."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.machine()


# ---------------------------------------------------------------- reading records


def read_folder(folder):
    """The rows of a folder: where there are repeats of a record in it, those."""
    repeats = sorted(folder.glob("repeat-*/*.json"))
    names = {path.name for path in repeats}
    return group([path for path in folder.glob("*.json") if path.name not in names] + repeats)


def group(paths):
    """-> {file name: its records, one for each repeat}, in the order of the table: by stage"""
    rows = {}
    for path in paths:
        rows.setdefault(path.stem, []).append(read_record(path))
    return dict(sorted(rows.items(), key=lambda row: (row[1][0]["name"], row[0])))


def read_record(path):
    """Read a record, and check what is needed of it. Exits with 2 and the file's name if not."""
    try:
        record = {"amp": "off", **json.loads(path.read_text(encoding="utf-8"))}
        for key in ("stage", "name", "epochs", "threads", "device", "torch", "host"):
            record[key]  # raises if it is missing, and so do the figures, also for a 0
        for figure in (speed, accuracy, slowest_rank):
            figure(record)
        phases_of([record])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        fail(f"{path} is not a record of a stage: {type(error).__name__}: {error}")
    return record


# ---------------------------------------------------------------- figures from records


def counted(record):
    """The epochs that count: the first one of a run warms up, unless it is the only one."""
    return record["history"][1:] or record["history"]


def speed(record):
    """Images per second over all ranks: the median of the epochs, by their slowest rank."""
    epochs = [max(sum(rank.values()) for rank in epoch["phases"]) for epoch in counted(record)]
    return record["images"] / statistics.median(epochs)


def accuracy(record):
    """The part of the test images that the model got right after the last epoch."""
    correct, total = record["history"][-1]["test"]
    return correct / total


def phases_of(records):
    """-> {phase: milliseconds of a step, mean over the ranks, in each epoch of each repeat}

    The last phase, "step", is the sum of the others.
    """
    found = {phase: [] for phase in (*PHASES, "step")}
    for record in records:
        scale = 1000 * record["batch_size"] / record["images"]
        for epoch in counted(record):
            for phase in PHASES:
                seconds = statistics.mean(rank.get(phase, 0.0) for rank in epoch["phases"])
                found[phase].append(scale * seconds)
            found["step"].append(sum(found[phase][-1] for phase in PHASES))
    return found


def slowest_rank(record):
    """The rank that computes longest, and how much longer than the quickest one, as text."""
    ranks = [0.0] * len(record["history"][0]["phases"])
    for epoch in counted(record):
        for rank, phases in enumerate(epoch["phases"]):
            ranks[rank] += sum(phases.values()) - phases.get("exposed", 0.0)
    behind = max(ranks) / min(ranks) - 1
    return f"{ranks.index(max(ranks))} (+{behind:.1%})" if len(ranks) > 1 else "-"


def differences(record, base, keys=ALIKE):
    """In what two records differ that have to be alike for a ratio, as text."""
    keys = [key for key in keys if key in record and key in base]  # some are not in every record
    return [f"{key} {record[key]}, not {base[key]}" for key in keys if record[key] != base[key]]


def base_of(rows, records):
    """What a row is compared with: the first row's stage, with the settings most like its own."""
    first = next(iter(rows.values()))[0]
    bases = [other for other in rows.values() if other[0]["name"] == first["name"]]
    bases = [other for other in bases if other[0]["amp"] == "off"] or bases
    return min(bases, key=lambda base: len(differences(records[0], base[0])))


def ratios(records, base):
    """Speed against the base, for each repeat; empty if the rows may not be compared."""
    if differences(records[0], base[0]):
        return []
    return [speed(record) / speed(other) for record, other in zip(records, base)]


def efficiency(record, base, found):
    """The ratio per device: 1 if N times the devices are N times as fast."""
    return statistics.median(found) * base["world_size"] / record["world_size"]


def spread(values, form):
    """The median as text; if the values differ also the smallest and the largest; "-" for none."""
    if not values:
        return "-"
    middle, low, high = map(form.format, (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


# ---------------------------------------------------------------- tables


def about(rows):
    """What the rows have in common, and what has to be known before their figures are read."""
    first = next(iter(rows.values()))[0]
    lines = [
        f"{first.get('dataset', 'data')}, {first['batch_size']} images per step, "
        f"{first['epochs']} epoch(s), {first['threads']} thread(s) per rank, "
        f"torch {first['torch']}, {first.get('device_name', first['host'])}"
    ]
    if first["device"] == "cpu":
        lines += [
            "A CPU core stands in for a device: ranks share memory and caches, no bus or network",
            "is between them, and communication takes time from computing. GPUs differ.",
        ]
    if len({records[0]["stage"] for records in rows.values()} & set(STAGES[2:])) > 1:
        lines.append("Stages 3, 4 and 5 run the same training step: what they differ by is noise.")
    return "\n".join(lines)


def label(rows, record):
    """The row's name, and the settings in which it differs from the first row."""
    first = next(iter(rows.values()))[0]
    keys = [key for key in (*SETTINGS, "amp") if record[key] != first[key]]
    return ", ".join([record["name"], *(f"{key} {record[key]}" for key in keys)])


def speed_table(rows):
    """A line per row: images per second, against the base and per device, accuracy, seconds."""
    lines, notes = [], []
    for records in rows.values():
        first, base = records[0], base_of(rows, records)
        found = ratios(records, base)
        text = remark(rows, first, base[0], found)
        if text and text not in notes:
            notes.append(text)
        nodes = f" on {first['hosts']} nodes" if first.get("hosts", 1) > 1 else ""
        line = [label(rows, first), f"{first['world_size']}{nodes}"]
        line += [spread([speed(record) for record in records], "{:,.0f}"), spread(found, "{:.2f}")]
        line += [spread([efficiency(first, base[0], found)] if found else [], "{:.0%}")]
        line += [spread([accuracy(record) for record in records], "{:.2%}")]
        for key in ("startup_seconds", "command_seconds"):  # known if compare.py has run the stage
            line.append(spread([record[key] for record in records if key in record], "{:.1f}"))
        lines.append([*line, f"({notes.index(text) + 1})" if text else ""])
    base = next(iter(rows.values()))[0]["stage"]
    titles = ["", "devices", "images/s", f"x {base}", "per device", "accuracy", "start-up"]
    align = ("left", *["right"] * 7, "left")
    table = tabulate(lines, [*titles, "command", ""], colalign=align, disable_numparse=True)
    return "\n".join([table, *(f"({n}) {text}" for n, text in enumerate(notes, start=1))])


def remark(rows, record, base, found):
    """What has to be said of a row: why it has no ratio, or one that cannot be taken as it is."""
    if found and efficiency(record, base, found) > 1.005:
        return "above 100 %: noise (see --repeat), or the smaller shards fit into a cache"
    differ = differences(record, base)
    if not differ:
        return ""
    text = f"{', '.join(differ)}: no ratio to {base['name']}"
    if record["amp"] == "off":
        return text
    for same, *_ in rows.values():  # mixed precision is compared with its own stage
        if same["name"] == record["name"] and not differences({**record, "amp": "off"}, same):
            text += f"; {speed(record) / speed(same):.2f} x {label(rows, same)}"
    return text


def phase_table(rows):
    """Where a step's time goes, in milliseconds: medians over epochs and repeats."""
    lines = []
    for records in rows.values():
        cells = {name: f"{statistics.median(ms):.2f}" for name, ms in phases_of(records).items()}
        if "exposed" not in records[0]["history"][0]["phases"][0]:  # no other ranks to wait for
            cells["exposed"] = "-"
        lines.append([label(rows, records[0]), *cells.values(), slowest_rank(records[0])])
    titles = ["milliseconds per step", *PHASES, "step", "slowest rank"]
    return tabulate(lines, titles, colalign=("left", *["right"] * 7), disable_numparse=True)


def compare_pairs(*paths):
    """Compare two records, or the records of two folders that have the same name -> exit code"""
    a, b = (
        read_folder(path) if path.is_dir() else {path.stem: [read_record(path)]} for path in paths
    )
    pairs = [(name, name) for name in a if name in b]
    if len(a) == len(b) == 1:
        pairs = [(*a, *b)]
    if not pairs:
        fail(f"{paths[0]} and {paths[1]} have no record of the same name")
    for x, y in pairs:
        print(f"A = {paths[0]}: {x}\nB = {paths[1]}: {y}\n{pair_table(a[x], b[y])}\n")
    return 0


def pair_table(a, b):
    """Two rows phase by phase: medians, with minimum and maximum over epochs and repeats."""
    found = [{**phases_of(row), "images/s": [speed(record) for record in row]} for row in (a, b)]
    lines = []
    for name in found[0]:
        left, right = (figures[name] for figures in found)
        form = "{:,.0f}" if name == "images/s" else "{:.2f}"
        ratio = f"{statistics.median(right) / statistics.median(left):.2f}" if all(left) else "-"
        lines.append([name, spread(left, form), spread(right, form), ratio])
    lines.append(["accuracy", f"{accuracy(a[-1]):.2%}", f"{accuracy(b[-1]):.2%}", ""])
    differ = differences(b[0], a[0], ("world_size", *ALIKE))
    table = tabulate(lines, ["milliseconds per step", "A", "B", "B / A"], disable_numparse=True)
    return f"B differs in {', '.join(differ) or 'nothing that would matter to a ratio'}\n\n{table}"


# ---------------------------------------------------------------- the picture


def draw(rows, path):
    """One bar per row: the phases of a step, and beside it the images per second."""
    figure = Figure(figsize=(10, 1.5 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, records in enumerate(rows.values()):
        start = 0.0
        for phase, color in PHASES.items():
            width = statistics.median(phases_of(records)[phase])
            axes.barh(y, width, 0.7, start, color=color, label="" if y else phase)
            start += width
        axes.text(start, y, f" {statistics.median(map(speed, records)):,.0f} images/s", va="center")
    axes.set_yticks(range(len(rows)), [label(rows, records[0]) for records in rows.values()])
    axes.set(xlabel="milliseconds of one optimizer step", ylim=(len(rows) - 0.4, -0.6))
    axes.set_xlim(right=1.2 * axes.get_xlim()[1])  # room for the text
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PHASES), frameon=False)
    figure.supxlabel(about(rows), x=0.01, ha="left", fontsize=8, color="#555555")
    figure.savefig(path, dpi=120, facecolor="white")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the stages too, as Ctrl-C does
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ncompare.py: interrupted", file=sys.stderr)
        sys.exit(130)

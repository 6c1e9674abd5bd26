"""Run the stages that this machine can run, one after the other, and compare their timings.

    python compare.py                       # every stage: a table, and a picture in timings/
    python compare.py --only 03 04 -b 120   # some of them, with other settings
    python compare.py --repeat 3            # each three times, in turns: minimum and maximum
    python compare.py --no-run              # read the records in timings/ again, draw nothing
    python compare.py --together            # stages 3 to 5 run the same step: they in one row
    python compare.py A B                   # two records, or two folders of them, phase by phase

Rows that differ in anything but the way they are parallel get no ratio, and a note says why.
Exit code 1 if a stage failed, 2 for a flag or a file that cannot be used, or nothing to compare.
"""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torchvision import datasets

from tools import pictures, records
from tools.pictures import GRAY, INK
from tools.records import PHASES, SETTINGS, STAGES, fail

ROOT = Path(__file__).resolve().parent
DRAWN = Path("data", "drawn")  # where digits are drawn if MNIST cannot be had


def main():
    args = parse()
    try:
        if args.pair:
            return compare_pairs(*args.pair)
        rows, failed = (records.read_folder(args.record), []) if args.no_run else run_all(args)
        rows = {name: row for name, row in rows.items() if row[0]["stage"][:2] in args.only}
        rows = records.together(rows) if args.together else rows
        if rows:
            tables = records.about(rows), records.speed_table(rows), records.phase_table(rows)
            print("", "\n\n".join(tables), sep="\n")
        elif not failed:
            fail(f"no records in {args.record} of these stages; run python compare.py")
        for name in failed:
            print(f"failed: {name}, see above")
        if rows and (args.picture or not args.no_run):  # a folder that is only read stays as it is
            draw(rows, args.record / "compare.png")
    except OSError as error:  # no port, no room, no permission
        fail(error)
    return 1 if failed else 0


def parse():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add, gpus = parser.add_argument, len(visible_gpus())
    add("pair", nargs="*", type=Path, metavar="A B", help="two records, or two folders of them")
    add("--no-run", action="store_true", help="run nothing, only read the records")
    numbers = [stage[:2] for stage in STAGES]
    add("--only", nargs="+", choices=numbers, default=numbers, help="some of the stages")
    add("--repeat", type=int, default=1, help="run each stage so many times, in turns (1)")
    add("--world-size", type=int, help="devices of stages 2 to 5 (every GPU; 2 on a CPU)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if gpus else "cpu")
    add("--data", type=Path, help="MNIST's folder ($MNIST_ROOT, else data)")
    add("--record", type=Path, default=Path("timings"), help="folder of the records (timings)")
    add("--together", action="store_true", help="stages 3 to 5 in one row: they run the same step")
    add("--picture", action="store_true", help="with --no-run: draw compare.png there, too")
    settings = parser.add_argument_group("settings of every stage, as in its own --help")
    for name in SETTINGS:
        short = {"epochs": ["-e"], "batch_size": ["-b"]}.get(name, [])
        kind = float if name == "lr" else int
        settings.add_argument(*short, f"--{name.replace('_', '-')}", type=kind, metavar="N")
    args = parser.parse_args()
    if len(args.pair) not in (0, 2):
        parser.error("give two records or two folders to compare, or none")
    if args.world_size is None:
        args.world_size = gpus if args.device == "cuda" else 2
    for name in ("repeat", "world_size"):  # the stages check the settings
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1")
    if args.device == "cuda" and args.world_size > gpus:
        parser.error(f"--world-size {args.world_size}: there are {gpus} GPU(s)")
    return args


def save(path, content):
    """Write under a temporary name, then rename: nobody reads half a file, and none is left."""
    temp = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temp.write_bytes(content)
        os.replace(temp, path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    finally:
        with suppress(OSError):
            temp.unlink()


# ---------------------------------------------------------------- running the stages


def run_all(args):
    """Run every job of the plan, --repeat times in turns -> rows, the names of jobs that failed."""
    args.record.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=args.record).close()  # raises now, not after the first stage
    root, dataset = find_data(args.data)
    facts = {"dataset": dataset, "device_name": device_name(args.device)}
    jobs = [(turn, *job) for turn in range(1, args.repeat + 1) for job in plan(args, root)]
    found, failed, started = [], [], time.monotonic()
    for number, (turn, name, processes) in enumerate(jobs):
        each = (time.monotonic() - started) / max(1, number)
        left = f", about {each * (len(jobs) - number):.0f} s left" if number else ""
        print(f"[{number + 1}/{len(jobs)}] {name}{left}", flush=True)
        file, record = run(processes, facts)
        if not record:
            failed.append(name)
            continue
        folder = args.record if args.repeat == 1 else args.record / f"repeat-{turn}"
        folder.mkdir(exist_ok=True)
        save(folder / file, json.dumps(record, indent=1).encode())
        found.append((folder / file, record))
    written = [path for path, _ in found]
    for path in written:  # what an earlier call with other repeats has left is stale
        for stale in {args.record / path.name, *args.record.glob(f"repeat-*/{path.name}")}:
            if stale not in written:
                stale.unlink(missing_ok=True)
    return records.group(found), failed


def plan(args, root):
    """-> [(name, [(command, its GPUs) of each process to start]), ...] in the order of the table"""
    flags = ["--device", args.device, "--data", str(root)]
    for name in SETTINGS:
        if getattr(args, name) is not None:
            flags += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    ranks, jobs = args.world_size, []
    gpus = visible_gpus()[:ranks] if args.device == "cuda" else []  # the same for every job

    def add(name, script, *own, launcher=(), nodes=1):
        command = [sys.executable, *launcher, str(ROOT / script), *own, *flags]
        jobs.append((name, [(command, ",".join(gpus[node::nodes])) for node in range(nodes)]))

    add("01_baseline", "01_baseline/train.py")
    if gpus[1:]:
        add("02_dp", "02_dp/train.py")
    elif ranks > 1:  # without GPUs nn.DataParallel would be stage 1 again
        add("02_dp-threads", "02_dp/from_scratch.py", "--train", "--devices", str(ranks))
    spawn = ("03_ddp_spawn/train.py", "--world-size", str(ranks))
    add("03_ddp_spawn", *spawn)
    for amp in native_amp(args.device):
        add(f"03_ddp_spawn with {amp}", *spawn, "--amp", amp)
    torchrun = ["-m", "torch.distributed.run"]
    alone = [*torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    add("04_ddp_torchrun", "04_ddp_torchrun/train.py", launcher=alone)
    nodes = 2 if ranks % 2 == 0 else 1  # two nodes: two torchruns on this machine
    endpoint = f"127.0.0.1:{free_port()}" if "05" in args.only else ""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    meeting += ["--rdzv-conf", "join_timeout=60", "--nnodes", str(nodes)]
    several = [*torchrun, *meeting, "--nproc-per-node", str(ranks // nodes)]
    add("05_multinode", "05_multinode/train.py", launcher=several, nodes=nodes)
    return [job for job in jobs if job[0][:2] in args.only]


def visible_gpus():
    """The GPUs of this process, by the names that CUDA_VISIBLE_DEVICES has for them."""
    count = torch.cuda.device_count()  # does not initialise CUDA
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(gpu) for gpu in range(count)])[:count]


def native_amp(device):
    """The kinds of mixed precision for which the device has instructions."""
    if device == "cuda":
        bf16 = asked("torch.cuda.is_bf16_supported(including_emulation=False)") == "True"
        return ("fp16", "bf16") if bf16 else ("fp16",)
    found = torch.cpu.get_capabilities().items()
    return ("bf16",) if any(has for name, has in found if "bf16" in name) else ()


def device_name(device):
    """The name of the first GPU, or of the CPU (on Linux; elsewhere its architecture)."""
    if device == "cuda":
        return asked("torch.cuda.get_device_name()")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.machine()


def asked(question):
    """A child process's answer: with CUDA initialised here, the stages would not be alone on it."""
    command = [sys.executable, "-c", f"import torch; print({question})"]
    child = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if child.returncode:
        fail(f"{question}: {child.stderr.strip().rpartition(chr(10))[2]}")
    return child.stdout.strip()


def free_port():
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def find_data(given):
    """The folder with MNIST, downloaded or drawn if need be -> folder, name of the data"""
    root = Path(given or os.environ.get("MNIST_ROOT", "data"))
    try:
        test_set = datasets.MNIST(root, train=False, download=root != DRAWN)
    except Exception as error:  # no network, or a damaged file: each has an exception of its own
        with suppress(OSError):
            os.removedirs(root / "MNIST" / "raw")  # empty folders that torchvision has made
        reason = " ".join(f"{type(error).__name__}: {error}".split())[-80:]
        if given or "MNIST_ROOT" in os.environ:
            fail(f"no MNIST in {root} ({reason}); python tools/draw_digits.py {root} draws digits")
        print(f"no MNIST in {root}, no download ({reason}): digits are drawn instead", flush=True)
        if not DRAWN.exists():
            subprocess.run([sys.executable, str(ROOT / "tools" / "draw_digits.py"), str(DRAWN)])
        return find_data(DRAWN)
    if zlib.crc32(test_set.data.numpy()) == 0xE4CA5F57:
        return root, "MNIST"
    print(f"*** {root} is NOT MNIST: times can be compared as ever, accuracies are not MNIST's ***")
    return root, "".join(c if c.isprintable() else "?" for c in f"{root.name} (NOT MNIST)")


def run(processes, facts):
    """Run a job, show what it prints -> name of its record's file, record; or None, None"""
    errors = tempfile.TemporaryFile("w+", errors="replace")
    with errors, tempfile.TemporaryDirectory() as temp:
        places = ["--record", temp, "--checkpoint", str(Path(temp, "model.pt"))]
        started = time.monotonic()
        code, first = watch([([*command, *places], gpus) for command, gpus in processes], errors)
        if code == 0:
            (path,) = Path(temp).glob("*.json")
            seconds = {"startup_seconds": first - started}
            seconds["command_seconds"] = time.monotonic() - started
            return path.name, {**records.read_record(path), **facts, **seconds}
        errors.seek(0)
        lines = [line.strip() for line in errors]
        reasons = [line for line in lines if ": error: " in line or "Error: " in line]
        print(f"    failed: {(reasons or lines or [f'exit code {code}'])[0]}")
    return None, None


def watch(processes, errors):
    """Start the processes of a job, print what they print -> exit code, time of the first line"""
    receiving, sending = os.pipe()  # one for all processes: it ends when the last of them ends
    started, first_line = [], None
    try:
        for command, gpus in processes:
            env = os.environ | {"CUDA_VISIBLE_DEVICES": gpus, "PYTHONUNBUFFERED": "1"}
            started.append(subprocess.Popen(command, env=env, stdout=sending, stderr=errors))
        os.close(sending)
        with open(receiving, errors="replace") as lines:
            for line in lines:
                first_line = first_line or time.monotonic()
                print(f"    {line}", end="", flush=True)
    finally:  # an interrupt must not leave a stage running; each ends its own ranks
        for process in started:
            process.terminate()
        codes = [process.wait() for process in started]
    return max(map(abs, codes)), first_line


# ---------------------------------------------------------------- pairs, and the picture


def compare_pairs(*paths):
    """Compare two records, or the records of two folders that have the same name -> exit code"""
    a, b = map(records.read_rows, paths)
    pairs = [(*a, *b)] if len(a) == len(b) == 1 else [(name, name) for name in a if name in b]
    if not pairs:
        fail(f"{paths[0]} and {paths[1]} have no record of the same name")
    for x, y in pairs:
        print(f"A = {paths[0]}: {x}\nB = {paths[1]}: {y}\n{records.pair_table(a[x], b[y])}\n")
    return 0


@rc_context(INK)
def draw(rows, path):
    """One bar per row: the phases of a step, and beside it the images per second."""
    figure = Figure(figsize=(10, 1.5 + 0.4 * len(rows)), layout="constrained")
    axes, places, ends = figure.subplots(), range(len(rows)), [0.0] * len(rows)
    for phase, color in PHASES.items():
        widths = [median(records.phases_of(row)[phase]) for row in rows.values()]
        axes.barh(places, widths, 0.6, ends, color=color, label=phase)
        ends = [end + width for end, width in zip(ends, widths)]
    speeds = [f" {median(map(records.speed, row)):,.0f} images/s" for row in rows.values()]
    for place, row in zip(places, rows.values()):  # from the quickest to the slowest repeat
        steps = [median(records.phases_of([record])["step"]) for record in row]
        below = (place + 0.4, place + 0.4)  # no gray is easy to read on every colour of a bar
        axes.plot((min(steps), max(steps)), below, "|-", color=GRAY, linewidth=1, markersize=6)
        axes.annotate(speeds[place], (ends[place], place), va="center")
    labels = [records.label(rows, row[0]) for row in rows.values()]
    axes.set_yticks(places, labels, parse_math=False)  # a $ in a name is a $
    axes.set(xlabel="milliseconds of one optimizer step", ylim=(len(rows) - 0.4, -0.6))
    axes.set_xlim(right=1.2 * max(ends))  # room for the text
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PHASES), frameon=False)
    style = dict(ha="left", fontsize=8, parse_math=False)
    figure.supxlabel(records.about(rows), x=0.01, **style)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the font lacks a letter
        save(path, pictures.png(figure))
    print(f"\npicture: {path}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the stages too, as Ctrl-C does
    sys.stdout.reconfigure(errors="replace")  # a terminal may lack a letter of a name
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ncompare.py: interrupted", file=sys.stderr)
        sys.exit(130)

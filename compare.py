"""Run the stages that this machine can run, one after the other, and compare their timings.

    python compare.py                       # run every stage; print two tables, draw a picture
    python compare.py --only 03 04 -b 120   # run some of them, with another batch size
    python compare.py --repeat 3            # run each of them three times, interleaved
    python compare.py FILE ...              # run nothing; print the table of these records

Each stage writes its record, and this script appends it to timings/runs.jsonl (--record) as it is.
Rows that differ in anything but the kind of parallelism get no ratio, and a note says why. The exit
code is 1 if a stage failed, and 2 for a flag or a file that cannot be used.
"""

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
from pathlib import Path

# While PyTorch is imported, Ctrl-C ends this script at once. The default handler would raise an
# exception inside of PyTorch, which prints fifty lines or is even lost.
HANDLER = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and HANDLER == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# ruff: noqa: E402 (what is imported below may be missing, which is said in one line)
NEEDED = ("torch", "torchvision", "matplotlib", "psutil", "tabulate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if MISSING:
    sys.exit(
        f"compare.py needs {', '.join(MISSING)}. Activate the environment "
        "(. .venv/bin/activate), or run: pip install -r requirements.txt"
    )

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torchvision import datasets

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # PYTHONSAFEPATH omits it

from lib import pictures, processes, records
from lib.records import PHASES, SETTINGS, STAGES
from tools import draw_digits

ROOT = Path(__file__).resolve().parent
DRAWN = Path("data", "drawn")  # the folder of synthetic digits, if MNIST cannot be downloaded
# How a shell tells the stages to use these digits: PowerShell, or any other.
if os.name == "nt":
    USE_DRAWN = f'$env:MNIST_ROOT = "{DRAWN}"'
else:
    USE_DRAWN = f"export MNIST_ROOT={DRAWN}"


def main():
    args = parse()
    found = []
    failed = []
    drawn = False
    try:
        if args.files:
            for path in args.files:
                found += records.read(path)
        else:
            found, failed, drawn = run_all(args)
        chosen = [record for record in found if record["stage"][:2] in args.only]
        rows = records.rows_of(chosen, args.repeat)
        if args.together:
            rows = records.together(rows)
        if not rows and not failed:
            fail(f"no record of these stages in {', '.join(map(str, args.files))}")
        if rows:
            print(f"\n{records.tables(rows)}")
        for name in failed:
            print(f"failed: {name}, see above")
        if rows and args.picture:
            draw(rows, args.picture)
        if drawn:
            print(f"\nMNIST could not be downloaded. Before other commands, type: {USE_DRAWN}")
    except (OSError, RuntimeError, ValueError) as error:  # no port, no room, no GPU, a bad record
        fail(error)
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    gpus = len(visible_gpus())
    numbers = [stage[:2] for stage in STAGES]
    add("files", nargs="*", type=Path, metavar="FILE", help="records to read instead of a run")
    add("--only", nargs="+", choices=numbers, default=numbers, help="some of the stages")
    add("--repeat", type=int, help="runs of each stage, interleaved (1); of a FILE the last (all)")
    add("--world-size", type=int, help="devices of stages 2 to 5 (every GPU; 2 on a CPU)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if gpus else "cpu")
    add("--data", type=Path, help="MNIST's folder ($MNIST_ROOT, else data)")
    add("--record", type=Path, default="timings/runs.jsonl", help="file for the records")
    add("--picture", type=Path, help="file for the picture (next to --record; none for a FILE)")
    add("--together", action="store_true", help="show stages 3 to 5 as one row: they do the same")
    settings = parser.add_argument_group("settings of every stage, as in its own --help")
    add_setting = settings.add_argument
    add_setting("-b", "--batch-size", type=int, metavar="N")
    add_setting("-e", "--epochs", type=int, metavar="N")
    add_setting("--lr", type=float, metavar="N")
    add_setting("--threads", type=int, metavar="N")
    add_setting("--workers", type=int, metavar="N")
    add_setting("--seed", type=int, metavar="N")
    args = parser.parse_args()
    if args.picture is None and not args.files:
        args.picture = args.record.with_suffix(".png")
    if args.world_size is None:
        args.world_size = gpus if args.device == "cuda" else 2
    # The stages check their own settings.
    if args.repeat is not None and args.repeat < 1:
        parser.error(f"--repeat {args.repeat}: at least 1")
    if args.world_size < 1:
        parser.error(f"--world-size {args.world_size}: at least 1")
    if args.device == "cuda" and args.world_size > gpus:
        parser.error(f"--world-size {args.world_size}: there are {gpus} GPU(s)")
    return args


def fail(message):
    """Bad input: one line and exit code 2."""
    print("compare.py:", " ".join(str(message).split()), file=sys.stderr)
    sys.exit(2)


def run_all(args):
    """Run all jobs, --repeat times, interleaved.

    Return their records, the names of the jobs that failed, and whether digits were drawn.
    """
    args.record.parent.mkdir(parents=True, exist_ok=True)
    args.record.open("a").close()  # raises an error now, not after the first stage
    root = find_data(args.data)
    jobs = plan(args, root) * (args.repeat or 1)
    text = f"{len(jobs)} run(s) follow. Each of them prints a line after each epoch."
    if args.device == "cpu":
        text += " On two idle cores an epoch takes 10 to 20 seconds."
    print(text, flush=True)
    found = []
    failed = []
    for number, (name, commands) in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}] {name}", flush=True)
        line = run(commands)
        if line is None:
            failed.append(name)
        else:
            with open(args.record, "a", encoding="utf-8") as file:
                file.write(line)
            found.append(records.record_of(line, args.record))
    return found, failed, root == DRAWN


def plan(args, root):
    """-> [(name, [(command, its GPUs) of each command to start]), ...] in the table's order"""
    flags = ["--device", args.device, "--data", str(root)]
    for name in SETTINGS:
        value = getattr(args, name)
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    ranks = args.world_size
    gpus = []
    if args.device == "cuda":
        gpus = visible_gpus()[:ranks]  # the same for every job
    jobs = []

    def add(name, script, *own, launcher=(), nodes=1):
        command = [sys.executable, *launcher, str(ROOT / script), *own, *flags]
        # On two nodes one has the GPUs 0, 2, ... and the other one 1, 3, ...
        jobs.append((name, [(command, ",".join(gpus[node::nodes])) for node in range(nodes)]))

    add("01_baseline", "01_baseline/train.py")
    if len(gpus) > 1:
        add("02_dp", "02_dp/train.py")
    elif ranks > 1:  # without GPUs nn.DataParallel does the same as stage 1
        add("02_dp-threads", "02_dp/from_scratch.py", "--train", "--devices", str(ranks))
    spawn = ("03_ddp_spawn/train.py", "--world-size", str(ranks))
    add("03_ddp_spawn", *spawn)
    for amp in native_amp(args.device):
        add(f"03_ddp_spawn with {amp}", *spawn, "--amp", amp)
    torchrun = ["-m", "torch.distributed.run"]
    alone = [*torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    add("04_ddp_torchrun", "04_ddp_torchrun/train.py", launcher=alone)
    nodes = 2 if ranks % 2 == 0 else 1  # two nodes: two torchruns on this machine
    endpoint = ""
    if "05" in args.only:
        endpoint = f"127.0.0.1:{processes.free_port()}"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    meeting += ["--rdzv-conf", "join_timeout=60", "--nnodes", str(nodes)]
    several = [*torchrun, *meeting, "--nproc-per-node", str(ranks // nodes)]
    add("05_multinode", "05_multinode/train.py", launcher=several, nodes=nodes)
    return [(name, commands) for name, commands in jobs if name[:2] in args.only]


def visible_gpus():
    """The GPUs of this process, by the names that CUDA_VISIBLE_DEVICES has for them."""
    count = torch.cuda.device_count()  # does not initialise CUDA
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")[:count]
    return [str(gpu) for gpu in range(count)]


def native_amp(device):
    """The kinds of mixed precision for which the device has instructions."""
    if device == "cuda":
        bf16 = processes.ask("torch.cuda.is_bf16_supported(including_emulation=False)") == "True"
        return ("fp16", "bf16") if bf16 else ("fp16",)
    found = torch.cpu.get_capabilities().items()
    return ("bf16",) if any(has for name, has in found if "bf16" in name) else ()


def find_data(given):
    """MNIST's folder. Without a network, synthetic digits replace MNIST."""
    root = Path(given or os.environ.get("MNIST_ROOT", "data"))
    try:
        datasets.MNIST(root, train=False, download=True)
    except Exception as error:  # no network, or a damaged file: each has an exception of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if given or "MNIST_ROOT" in os.environ:
            fail(f"no MNIST in {root} ({reason}); python tools/draw_digits.py {root} draws digits")
        print(f"no MNIST in {root} ({reason}): synthetic digits replace it", flush=True)
        root = DRAWN
        draw_digits.main([str(root), "--if-missing"])
    if (root / "NOT_MNIST.txt").exists():  # tools/draw_digits.py has written it
        print(f"*** {root} is NOT MNIST: times can be compared, accuracies are not MNIST's ***")
    return root


def run(commands):
    """Run a job and show what it prints -> the record that it wrote, or None if it failed."""
    errors = tempfile.TemporaryFile("w+", errors="replace")
    with errors, tempfile.TemporaryDirectory() as temp:
        file = Path(temp, "run.jsonl")
        flags = ["--record", str(file), "--checkpoint", str(Path(temp, "model.pt"))]
        # Nothing that a stage leaves in TMPDIR stays. Scripts need the path of their own folder.
        env = {"TMPDIR": temp, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": ""}
        env |= processes.KEEP_MEMORY
        mark = processes.new_mark()
        try:
            running = []
            for command, gpus in commands:
                env["CUDA_VISIBLE_DEVICES"] = gpus
                running.append(processes.start([*command, *flags], env, mark, stderr=errors))
            code = max(abs(process.wait()) for process in running)
        finally:  # an interrupt must not leave a stage running
            processes.end(mark)
        if code == 0:
            return file.read_text(encoding="utf-8")
        errors.seek(0)
        print(f"failed: {reason_in(errors.read(), code)}")
        return None


def reason_in(printed, code):
    """The line of an error's message that says most."""
    lines = [line.strip() for line in printed.splitlines()]
    for line in lines:
        if ": error: " in line or "Error: " in line:
            return line
    return lines[0] if lines else f"exit code {code}"


@rc_context(pictures.INK)
def draw(rows, path):
    """One bar per row: the phases of a step, and next to it the images per second."""
    height = min(100, 1.5 + 0.4 * len(rows))
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    middles = [records.medians(row) for row in rows]
    ends = [0.0] * len(rows)
    for phase, color in PHASES.items():
        widths = [middle[phase] for middle in middles]
        axes.barh(places, widths, 0.6, ends, color=color, label=phase)
        ends = [end + width for end, width in zip(ends, widths)]
    for place, middle in enumerate(middles):
        axes.annotate(f" {middle['images/s']:,.0f} images/s", (ends[place], place), va="center")
    labels = [records.label(rows, row) for row in rows]
    axes.set_yticks(places, labels, parse_math=False)  # a $ in a name is a $
    axes.set(xlabel="milliseconds of one optimizer step")
    axes.set(xlim=(0, 1.2 * max(ends)), ylim=(len(rows) - 0.4, -0.6))  # leaves room for the text
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PHASES), frameon=False)
    figure.supxlabel(records.about(rows), x=0.01, ha="left", fontsize=8, parse_math=False)
    path.write_bytes(pictures.png(figure))
    print(f"\npicture: {path}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, HANDLER)
    processes.exit_on_signals()  # a signal ends the stages, too
    if sys.stdout:  # it is None if the shell has closed it
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a letter of a name
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ncompare.py: interrupted", file=sys.stderr)
        sys.exit(130)

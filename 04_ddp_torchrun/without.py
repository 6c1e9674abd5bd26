"""Run minimal.py without one of its changes, on two ranks, and show what happens.

    python 04_ddp_torchrun/without.py 6b          run it without change 6b
    python 04_ddp_torchrun/without.py --all       run it without each change, one after the other
    python 04_ddp_torchrun/without.py --list      list the changes
    python 04_ddp_torchrun/without.py --show 6b   show which lines differ, and run nothing

The comments of minimal.py number what stage 4 changes in the script of stage 1. The script that
runs here is minimal.py with the lines of one number turned back into those of 01_baseline. Both
scripts train on 9,600 images and test on 1,000, on the CPU. The images are the first ones of MNIST
in MNIST_ROOT or in data/. If there is no MNIST, synthetic digits are drawn. Each run begins in an
empty folder and downloads these images from a small server that this script starts.

Most omissions do not show in the output. For these the script prints what differs inside: the
samples, the steps, the weights or the random numbers. The count of correct images proves little,
because another seed moves it, too. So a count that an omission changes is shown for several seeds.

Each reduced script runs under the doctor of this repository (docs/doctor.md), which does not change
the result. Two shared cores take about 15 seconds for a run, which is mostly the import of PyTorch
in each process. They take a minute or two for one number, and about six minutes for --all.
"""

import argparse
import contextlib
import difflib
import faulthandler
import functools
import gzip
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PLAIN = ROOT / "01_baseline" / "minimal.py"
PARALLEL = HERE / "minimal.py"
RANKS = 2
TRAIN_IMAGES = 9600  # These are 40 steps per epoch, without a rest.
TEST_IMAGES = 1000
SEEDS = 3  # of which the counts are shown, where the seed moves a count as a change does
TIMEOUT = 180  # seconds, after which a run counts as a hang
DOWNLOAD_SECONDS = 3  # that a simulated download takes, where the download is the subject
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Change(NamedTuple):
    title: str
    why: str  # in two sentences
    page: str  # the page to read, relative to the root of the repository
    shows: str = ""  # the measured number that differs, if the output does not show the damage
    also: str = ""  # a change that makes no sense without this one
    counts: bool = False  # Does it change the printed counts, as another seed does?
    environment: dict = {}
    alone: bool = False  # Does the doctor need a run on one rank to compare with?


CHANGES = {
    "1": Change(
        "the numbers that torchrun gives to each rank",
        "Every later change asks for one of these numbers. Python stops at the first line that "
        "uses one.",
        "04_ddp_torchrun/README.md#what-changes-in-minimalpy",
    ),
    "1b": Change(
        "a GPU of its own for each rank",
        "All ranks of this run compute on the CPU, so nothing differs. On GPUs all ranks would use "
        "the first GPU, and NCCL refuses two ranks on one GPU.",
        "docs/messages_devices.md#every-process-takes-memory-on-gpu-0",
    ),
    "2": Change(
        "a seed of its own for each rank",
        "This model draws no random numbers in training, and DDP sends the weights of rank 0 to "
        "all ranks. With dropout or augmentation all ranks would draw the same masks, so the batch "
        "would be less varied than it looks.",
        "docs/corrections.md#data-and-random-numbers",
        shows="dropout masks of rank 0 and rank 1",
    ),
    "3": Change(
        "joining the group",
        "A collective such as barrier needs a group of ranks. The first collective raises the "
        "error.",
        "docs/messages.md#this-process-has-no-process-group",
    ),
    "3b": Change(
        "destroying the group",
        "With gloo the group ends with the process. With NCCL PyTorch prints a warning, because "
        "communication that is still running could be cut off.",
        "docs/messages.md#the-group-was-not-destroyed-at-the-end",
        shows="calls of destroy_process_group",
    ),
    "4": Change(
        "downloading once, and waiting for it",
        "Each rank finds no data and downloads it into the same files. One rank may read a file "
        "that another rank is still writing.",
        "docs/adapt.md#step-by-step",
        shows="downloads",
    ),
    "4a": Change(
        "one rank per node downloads",
        "Each rank finds no data and downloads it into the same files. One rank may read a file "
        "that another rank is still writing.",
        "docs/adapt.md#step-by-step",
        shows="downloads",
    ),
    "4b": Change(
        "waiting for the download",
        "In this run gloo connects two ranks only when they first communicate, as NCCL does "
        "without device_id. So init_process_group does not wait for rank 0, and rank 1 downloads, "
        "too.",
        "docs/adapt.md#step-by-step",
        shows="downloads",
        environment={"TORCH_GLOO_LAZY_INIT": "1"},
    ),
    "5": Change(
        "the shard of the training set, and the divided batch",
        "Each rank trains on all images, in as many steps as one device alone, so the second "
        "device saves no time. A step uses 480 images instead of 240.",
        "docs/adapt.md#step-by-step",
        shows="training images that the ranks read per epoch",
        also="8",
        counts=True,
    ),
    "5a": Change(
        "dividing the batch by the number of ranks",
        "Two ranks with 240 images each take steps of 480 images, and half as many of them. The "
        "learning rate was chosen for 240 images.",
        "docs/batch_size_and_learning_rate.md",
        shows="steps per epoch",
        counts=True,
        alone=True,
    ),
    "5b": Change(
        "the shard of the training set",
        "Each rank reads all images, so an epoch has twice as many steps. Each rank computes as "
        "much as one device alone would, so the second device saves no time.",
        "docs/adapt.md#step-by-step",
        shows="steps per epoch",
        also="8",
        counts=True,
    ),
    "6": Change(
        "sharding and summing the test",
        "Each rank tests all images with the same weights, so the count is right. The second "
        "device saves no time.",
        "docs/corrections.md#testing-and-collectives",
        shows="test images that the ranks read",
    ),
    "6a": Change(
        "the shard of the test set",
        "Each rank counts the right ones of all images, and the counts are added. So every image "
        "counts twice.",
        "docs/uneven_inputs.md#distributedsampler-samples-counted-twice-or-left-out",
        shows="test images in the printed count",
    ),
    "6b": Change(
        "summing the counts",
        "Rank 0 prints the count of its own half of the images. The total next to it is that of "
        "the whole test set.",
        "docs/corrections.md#testing-and-collectives",
        shows="test images in the printed count",
    ),
    "7": Change(
        "DDP",
        "The ranks start with different weights and never communicate in training. Each rank "
        "trains a model of its own on half of the images, and only that of rank 0 is saved.",
        "docs/corrections.md#gradients-and-weights",
        shows="weights of the ranks",
        counts=True,
    ),
    "7b": Change(
        "calling DDP instead of the bare model",
        "DDP prepares the averaging of gradients in its forward pass, and a call of the bare model "
        "skips that. The ranks start with equal weights and drift apart.",
        "docs/corrections.md#gradients-and-weights",
        shows="weights of the ranks",
        counts=True,
    ),
    "8": Change(
        "a new order in each epoch",
        "The sampler shuffles with its seed plus the number of the epoch, and that number stays 0. "
        "So each epoch repeats the batches of the first epoch.",
        "docs/messages_training.md#distributedsampler-the-same-order-in-every-epoch",
        shows="first images of rank 0 in the two epochs",
        counts=True,
    ),
    "9": Change(
        "printing and saving on one rank",
        "Every rank prints its line and writes the same file. Two ranks that write one file at the "
        "same time can damage it.",
        "docs/checklist.md#review-your-script",
        shows="lines of rank 0 and rank 1",
    ),
}


class Run(NamedTuple):
    printed: list[str]
    code: int | None  # None: the run was ended because it hung
    error: str
    numbers: dict[str, str]  # what was measured, by its name
    findings: list[str] | None  # of the doctor; None: it did not run
    report: Path | None = None  # the file that the doctor has written


def main():
    args = parse_args()
    numbers = list(CHANGES) if args.all else [args.number]
    if args.list:
        for number, change in CHANGES.items():
            print(f"{number:3} {change.title}")
        return 0
    if args.show:
        for number in numbers:
            show_lines(number)
        return 0
    for number in SIGNALS:  # Whatever ends this script, the ranks are ended, too.
        signal.signal(number, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="without-") as folder:
            run_all(numbers, args, Path(folder))
    except KeyboardInterrupt:
        print("interrupted; all that was started has ended", file=sys.stderr)
        return 130
    return 0


def parse_args():
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("number", nargs="?", metavar="N", help="the change to leave out")
    parser.add_argument("--all", action="store_true", help="leave out each change, one at a time")
    parser.add_argument("--list", action="store_true", help="list the changes")
    parser.add_argument("--show", action="store_true", help="print the lines that differ")
    parser.add_argument("--no-doctor", action="store_true", help="run without the doctor")
    seeds = f"seeds whose counts are shown ({SEEDS}; 1 with --all, whose table has no counts)"
    parser.add_argument("--seeds", type=int, help=seeds)
    args = parser.parse_args()
    choices = ", ".join(CHANGES)
    if args.number is None and not (args.all or args.list):
        parser.exit(2, f"name a change or --all: choose one of {choices}\n")
    if args.number is not None and args.number not in CHANGES:
        parser.exit(2, f"there is no change {args.number}: choose one of {choices}\n")
    if args.seeds is None:
        args.seeds = 1 if args.all else SEEDS
    return args


def run_all(numbers, args, folder):
    data = prepare_data(folder)
    print(f"Data: {data}. Each run has {RANKS} ranks on the CPU.")
    print("A run takes about 15 seconds on two idle cores, and prints nothing while it runs.")
    print(f"A run that hangs is ended after {TIMEOUT} s at the latest.")
    with serve(folder / "source") as address:
        rows = run_numbers(numbers, args, folder, address)
    if args.all:
        print("\n| | left out | what one sees | who notices |")
        print("| --- | --- | --- | --- |")
        print("\n".join(rows))


def run_numbers(numbers, args, folder, address):
    """Run the complete script and the reduced ones, and return the rows of the table."""
    doctor = not args.no_doctor
    start = functools.partial(run_script, folder=folder, address=address)
    complete_text = PARALLEL.read_text()
    print("Running the complete script.", flush=True)
    complete = [start(complete_text, doctor=doctor)]
    if complete[0].code != 0:
        raise SystemExit(f"The complete script does not run here: {complete[0].error}")
    rows = []
    for number in numbers:
        change = CHANGES[number]
        text = without(number)
        print(f"Running the script without {number}.", flush=True)
        alone = None
        if doctor and change.alone:
            alone = start(complete_text, doctor=True, ranks=1).report
        runs = [start(text, doctor=doctor, change=change, alone=alone)]
        if change.counts:
            for seed in range(1, args.seeds):
                if len(complete) <= seed:
                    complete.append(start(complete_text, seed=seed))
                runs.append(start(text, change=change, seed=seed))
        show(number, complete, runs)
        seen = what_one_sees(change, complete[0], runs[0])
        notices = who_notices(complete[0], runs[0])
        rows.append(f"| {number} | {change.title} | {seen} | {notices} |")
    return rows


# Make the script without a change.


def without(*numbers):
    """Return the text of minimal.py with these changes turned back into the text of stage 1."""
    dropped = list(numbers)
    dropped += [CHANGES[number].also for number in numbers if CHANGES[number].also]
    plain = PLAIN.read_text().splitlines()
    parallel = PARALLEL.read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, plain, parallel, autojunk=False)
    result = []
    for tag, start, end, parallel_start, parallel_end in matcher.get_opcodes():
        new_lines = parallel[parallel_start:parallel_end]
        if tag == "equal":
            result += new_lines
        else:
            result += put_back(plain[start:end], new_lines, dropped)
    return "\n".join(result) + "\n"


def put_back(old_lines, new_lines, dropped):
    """Return new_lines. Those of the dropped changes are replaced by what they were before."""
    numbers = numbers_of(new_lines)
    new_codes = [code_of(line) for line in new_lines]
    candidates = [code for code in new_codes if code]
    before = {}  # The key is a position in new_lines, the value are the lines that it replaces.
    for old in old_lines:
        closest = difflib.get_close_matches(code_of(old), candidates, n=1, cutoff=0)
        if closest:
            position = new_codes.index(closest[0])
            before.setdefault(position, []).append(old)
    result = []
    for position, new in enumerate(new_lines):
        if numbers[position].startswith(tuple(dropped)):
            result += before.get(position, [])
        else:
            result.append(new)
    return result


def code_of(line):
    """Return a line without its comment and without the blanks around it."""
    return line.partition("# ")[0].strip()


def numbers_of(lines):
    """Return the number that each line carries: it holds until the next number or a blank line."""
    number = ""
    numbers = []
    for line in lines:
        found = re.search(r"# (\d+[a-z]?)\. ", line)
        if found:
            number = found[1]
        elif not line.strip():
            number = ""
        numbers.append(number)
    return numbers


def show_lines(number):
    print(f"without {number}: {CHANGES[number].title}")
    old = PARALLEL.read_text().splitlines()
    new = without(number).splitlines()
    for line in difflib.unified_diff(old, new, n=0, lineterm=""):
        if line[0] in "+-" and line[:3] not in ("+++", "---"):
            print(f"    {line}")


# Prepare the data.


def prepare_data(folder):
    """Put the files that the simulated download finds into a folder, and return what they are."""
    for root in (os.getenv("MNIST_ROOT"), "data"):
        raw = Path(root or "data", "MNIST", "raw")
        if (raw / "train-images-idx3-ubyte").exists():
            synthetic = (raw.parent.parent / "NOT_MNIST.txt").exists()
            break
    else:
        raw = draw_digits(folder / "drawn")
        synthetic = True
    (folder / "source").mkdir()
    train = copy_images(raw, folder / "source", "train", TRAIN_IMAGES)
    test = copy_images(raw, folder / "source", "t10k", TEST_IMAGES)
    name = "synthetic digits" if synthetic else "MNIST"
    return f"{train:,} training images and {test:,} test images of {name}"


def draw_digits(folder):
    print("There is no MNIST in MNIST_ROOT or data/, so synthetic digits are drawn.", flush=True)
    tool = str(ROOT / "tools" / "draw_digits.py")
    counts = [f"--train={TRAIN_IMAGES}", f"--test={TEST_IMAGES}"]
    command = [sys.executable, tool, str(folder), *counts]
    drawn = subprocess.run(command, capture_output=True, text=True)
    if drawn.returncode != 0:
        raise SystemExit(f"tools/draw_digits.py failed:\n{drawn.stderr}")
    return folder / "MNIST" / "raw"


def copy_images(raw, source, part, wanted):
    """Copy the first images of one part of MNIST, as the archives that torchvision downloads."""
    images = (raw / f"{part}-images-idx3-ubyte").read_bytes()[16:]
    labels = (raw / f"{part}-labels-idx1-ubyte").read_bytes()[8:]
    count = min(wanted, len(labels))
    images_header = struct.pack(">4i", 0x803, count, 28, 28)
    labels_header = struct.pack(">2i", 0x801, count)
    with gzip.open(source / f"{part}-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(images_header + images[: count * 28 * 28])
    with gzip.open(source / f"{part}-labels-idx1-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(labels_header + labels[:count])
    return count


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def copyfile(self, source, outputfile):
        # torchvision asks for each file twice, and does not read the first answer to its end.
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)


@contextlib.contextmanager
def serve(source):
    """Serve the files of a folder to this machine, and give the address."""
    handler = functools.partial(QuietHandler, directory=source)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


# Run a script on two ranks.


def run_script(text, folder, address, doctor=False, change=None, seed=0, ranks=RANKS, alone=None):
    """Run a script in a new folder without data, and return what it did.

    The doctor compares it with the run on one rank whose report is `alone`, if there is one.
    """
    work = Path(tempfile.mkdtemp(dir=folder))
    script = work / "minimal.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", __file__, "--as-rank", str(script)]
    report = work / "doctor.json"
    if doctor:
        before = [sys.executable, str(ROOT / "doctor"), "check", "--json", str(report)]
        if alone:
            before += ["--alone", str(alone)]
        command = [*before, f"--limit={TIMEOUT}", *command]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MNIST_ROOT": str(work / "data"),
        "no_proxy": "127.0.0.1",
        "WITHOUT_ADDRESS": address,
        "WITHOUT_SEED": str(seed),
    }
    if change:
        environment |= change.environment
        if change.shows == "downloads":
            environment["WITHOUT_DOWNLOAD_SECONDS"] = str(DOWNLOAD_SECONDS)
    # The doctor has its own limit, and needs some time to end the ranks and to report.
    limit = TIMEOUT + 60 if doctor else TIMEOUT
    code, out, err = run_command(command, work, environment, limit)
    printed = [line for line in out.splitlines() if line.startswith("epoch ")]
    pattern = r"^(?:\[rank\d+\]: )?(\w+(?:Error|Exception): .*?)(?: Did you mean.*)?$"
    errors = re.findall(pattern, err, re.MULTILINE)
    # Without a traceback, the last words on stderr have to do.
    error = errors[0] if errors else " ".join(err.split())[-300:]
    findings = None
    if doctor and report.exists():
        seen = json.loads(report.read_text())
        code = seen["command"]["code"]  # The doctor's own exit code says what it has found.
        findings = [describe(finding, work) for finding in seen["findings"]]
    return Run(printed, code, error, summary(work, text), findings, report)


def run_command(command, work, environment, limit):
    """Run a command in a folder, and return its exit code (None: ended at the limit) and output."""
    pipe = subprocess.PIPE
    options = {"cwd": work, "env": environment, "stdout": pipe, "stderr": pipe, "text": True}
    # A session of its own keeps Ctrl-C away from the ranks. They are ended in order, see below.
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        out, err = end(process)
        return None, out, err
    except KeyboardInterrupt:
        for number in SIGNALS:  # A second Ctrl-C would leave the ranks behind.
            signal.signal(number, signal.SIG_IGN)
        end(process)
        raise


def end(process):
    """End a command. The doctor and torchrun end the ranks when they receive SIGTERM."""
    process.terminate()
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()  # A rank that is left then is ended by its own faulthandler.
        return process.communicate(timeout=2 * TIMEOUT)


def describe(finding, work):
    """Return the title line of what the doctor has found, and the line of the script."""
    title = f"{finding['severity'].upper()} [{finding['key']}] {finding['at']}"
    file, _, line = finding["at"].rpartition(":")
    path = work / file
    if line.isdigit() and path.is_file():
        code = path.read_text().splitlines()[int(line) - 1].strip()
        return f"{title}\n    {code}"
    return title


def run_as_rank(script):
    """This is what torchrun starts: run the script, and note a few numbers while it runs."""
    # A rank that hangs ends itself, even if nobody is left to end it.
    faulthandler.dump_traceback_later(2 * TIMEOUT, exit=True)
    import torch
    from torch import distributed
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler
    from torchvision import datasets

    folder = Path(script).parent
    rank = os.environ["RANK"]
    seed = 1000 * int(os.environ["WITHOUT_SEED"])
    noted = {"downloads": 0, "steps": 0, "tested": 0, "lines": 0, "orders": []}
    optimizers = []

    def note_missing(check):
        def noting(mnist):
            if check(mnist):
                return True
            noted["downloads"] += 1
            seconds = int(os.environ.get("WITHOUT_DOWNLOAD_SECONDS", "0"))
            if seconds:
                wait_for_ranks(folder)
                # Rank 1 ends its download after rank 0, so that the outcome is no matter of luck.
                time.sleep(seconds * (int(rank) + 1))
            return False

        return noting

    def note_order(iterate):
        def noting(sampler):
            sampler.seed = seed
            order = list(iterate(sampler))
            noted["orders"].append(order)
            return iter(order)

        return noting

    def note_tested(iterate):
        def noting(sampler):
            noted["tested"] += len(sampler)
            return iterate(sampler)

        return noting

    def note_step(optimizer, args, kwargs):
        noted["steps"] += 1
        optimizers[:] = [optimizer]

    def add_seed(manual_seed):
        return lambda number: manual_seed(number + seed)

    datasets.MNIST.mirrors = [os.environ["WITHOUT_ADDRESS"]]
    datasets.MNIST.resources = [(name, None) for name, _ in datasets.MNIST.resources]
    datasets.MNIST._check_exists = note_missing(datasets.MNIST._check_exists)
    RandomSampler.__iter__ = note_order(RandomSampler.__iter__)
    DistributedSampler.__iter__ = note_order(DistributedSampler.__iter__)
    SequentialSampler.__iter__ = note_tested(SequentialSampler.__iter__)
    torch.manual_seed = add_seed(torch.manual_seed)
    register_optimizer_step_post_hook(note_step)
    sys.argv = [script]
    printed = folder / f"rank{rank}.out"
    (folder / f"rank{rank}.started").touch()
    try:
        with printed.open("w") as file, contextlib.redirect_stdout(file):
            runpy.run_path(script, run_name="__main__")
    finally:
        lines = printed.read_text()
        sys.stdout.write(lines)
        noted["lines"] = lines.count("\n")
        noted["mask"] = torch.rand(8).gt(0.5).int().tolist()
        noted["destroyed"] = not distributed.is_initialized()
        if optimizers:
            parameters = optimizers[0].param_groups[0]["params"]
            noted["weights"] = [parameter.double().norm().item() for parameter in parameters]
        (folder / f"rank{rank}.json").write_text(json.dumps(noted))


def wait_for_ranks(folder):
    """Wait until each rank has imported PyTorch, so that none comes when the data is there."""
    while len(list(folder.glob("rank*.started"))) < RANKS:
        time.sleep(0.1)


def summary(work, text):
    """Return the numbers that the ranks have noted, as text by name."""
    ranks = [json.loads(file.read_text()) for file in sorted(work.glob("rank*.json"))]
    finished = [rank for rank in ranks if len(rank["orders"]) == 2]
    if len(finished) < RANKS:
        return {}
    first, second = finished
    epochs = len(first["orders"])
    read = len(first["orders"][0]) + len(second["orders"][0])
    tested = (first["tested"] + second["tested"]) // epochs
    summed = "dist.all_reduce(correct)" in text
    counted = tested if summed else first["tested"] // epochs
    masks = ["".join(map(str, rank["mask"])) for rank in finished]
    beginnings = [str(order[:3]) for order in first["orders"]]
    return {
        "dropout masks of rank 0 and rank 1": " and ".join(masks),
        "calls of destroy_process_group": str(first["destroyed"] + second["destroyed"]),
        "downloads": str(first["downloads"] + second["downloads"]),
        "training images that the ranks read per epoch": f"{read:,}",
        "steps per epoch": str(first["steps"] // epochs),
        "test images that the ranks read": f"{tested:,}",
        "test images in the printed count": f"{counted:,}",
        "weights of the ranks": "equal" if first["weights"] == second["weights"] else "different",
        "first images of rank 0 in the two epochs": " and ".join(beginnings),
        "lines of rank 0 and rank 1": f"{first['lines']} and {second['lines']}",
    }


# Show what happened.


def what_one_sees(change, complete, reduced):
    """Say in one or two sentences what happened, as each run and each data set shows it."""
    if reduced.code is None:
        return "It hangs until it is ended."
    if reduced.code != 0:
        return f"It ends with an error: `{reduced.error}`"
    if reduced.printed == complete.printed:
        sentences = ["It prints the same."]
    elif len(reduced.printed) > len(complete.printed):
        sentences = [f"It prints {len(reduced.printed)} lines instead of {len(complete.printed)}."]
    elif change.counts:
        sentences = ["It prints other counts."]
    elif last_count(reduced) > last_total(reduced):
        sentences = ["It prints more correct images than there are."]
    else:
        sentences = ["It prints a wrong count."]
    before = complete.numbers.get(change.shows)
    after = reduced.numbers.get(change.shows)
    if before != after:
        sentences.append(f"The {change.shows} are {after} instead of {before}.")
    return " ".join(sentences)


def who_notices(complete, reduced):
    """Say who or what tells the author of the script."""
    counted = "test images in the printed count"
    if reduced.code is None:
        return "a hang"
    if reduced.code != 0:
        return "an error"
    if len(reduced.printed) > len(complete.printed):
        return "who reads the output"
    if reduced.numbers[counted] != complete.numbers[counted]:
        return "the printed count"
    if reduced.findings is None:
        return "nobody (the doctor was not asked)"
    if reduced.findings:
        return "only the doctor"
    return "nobody"


def show(number, complete, runs):
    change = CHANGES[number]
    first = complete[0]
    reduced = runs[0]
    print(f"\nWithout {number}: {change.title}")
    show_row("complete", f"without {number}")
    for position in range(max(len(first.printed), len(reduced.printed))):
        left = line_at(first.printed, position)
        show_row(left, line_at(reduced.printed, position))
    show_row(f"exit code {first.code}", f"exit code {reduced.code}")
    if change.shows in reduced.numbers:
        show_row(f"{change.shows}:", f"{change.shows}:")
        show_row(f"  {first.numbers[change.shows]}", f"  {reduced.numbers[change.shows]}")
    show_text("What happened: " + what_one_sees(change, first, reduced))
    if len(runs) > 1:
        show_text(compare_counts(number, complete[: len(runs)], runs))
    show_text(f"Why: {change.why}")
    if reduced.findings is not None:
        print("The doctor: " + ("\n  ".join(["", *reduced.findings]).strip() or "nothing"))
    print(f"Read {change.page}", flush=True)


def compare_counts(number, complete, runs):
    """Say what the last counts are with each seed, and whether the ranges overlap."""
    before = [last_count(run) for run in complete]
    after = [last_count(run) for run in runs]
    text = f"The last count with {len(runs)} seeds: complete {join(before)}; "
    text += f"without {number} {join(after)}."
    if max(after) >= min(before) and min(after) <= max(before):
        text += " The two ranges overlap, so the count of one run does not show the change."
    return text


def last_count(run):
    found = re.search(r"(\d+) of \d+ test images correct", run.printed[-1])
    return int(found[1])


def last_total(run):
    found = re.search(r"of (\d+) test images correct", run.printed[-1])
    return int(found[1])


def join(counts):
    return ", ".join(map(str, counts))


def line_at(lines, position):
    return lines[position] if position < len(lines) else ""


def show_row(left, right):
    """Print two texts next to each other, each in a column of its own."""
    left_lines = textwrap.wrap(left, 48)
    right_lines = textwrap.wrap(right, 48)
    for position in range(max(len(left_lines), len(right_lines))):
        left_line = line_at(left_lines, position)
        print(f"  {left_line:48}  {line_at(right_lines, position)}".rstrip())


def show_text(text):
    print(textwrap.fill(text, 100))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        run_as_rank(sys.argv[2])
    else:
        sys.exit(main())

"""Run minimal.py without one of its changes, on two ranks, and show what happens.

    python 04_ddp_torchrun/without.py 6b      run it without change 6b
    python 04_ddp_torchrun/without.py --all   run it without each change, one after the other

The comments of minimal.py number what stage 4 changes in the script of stage 1. The script that
runs here is minimal.py with the lines of one number turned back into those of 01_baseline. Both
scripts train on the first 9,600 images of MNIST and test on 1,000, on the CPU. Each run begins
without data, and its download is a copy of these images.

Most omissions do not show in the output. So each script runs under the doctor of this repository
(docs/doctor/check.md), which compares what the ranks do, and changes no result. A few omissions
change nothing here, but would with dropout or on GPUs. The reason below each run says so.
"""

import argparse
import difflib
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PLAIN = HERE.parent / "01_baseline" / "minimal.py"
PARALLEL = HERE / "minimal.py"
DOCTOR = HERE.parent / "doctor"
IMAGES = {"train": 9600, "t10k": 1000}  # 9,600 images are 40 steps per epoch, without a rest.
TIMEOUT = 180  # seconds, after which the doctor ends a run that hangs
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TITLES = {  # what is left out
    "1": "the numbers that torchrun gives to each rank",
    "1b": "a GPU of its own for each rank",
    "2": "a seed of its own for each rank",
    "3": "joining the group",
    "3b": "destroying the group",
    "4": "downloading once, and waiting for it",
    "4a": "one rank per node downloads",
    "4b": "waiting for the download",
    "5": "the shard of the training set, and the divided batch",
    "5a": "dividing the batch by the number of ranks",
    "5b": "the shard of the training set",
    "6": "sharding and summing the test",
    "6a": "the shard of the test set",
    "6b": "summing the counts",
    "7": "DDP",
    "7b": "calling DDP instead of the bare model",
    "8": "a new order in each epoch",
    "9": "printing and saving on one rank",
}
REASONS = {  # why the run then does what it does
    "1": "Later changes ask for these numbers. Python stops at the first line that uses one.",
    "1b": "All ranks of this run compute on the CPU, so nothing differs. On GPUs all ranks would "
    "use the first GPU, and NCCL refuses two ranks on one GPU.",
    "2": "DDP sends the weights of rank 0 to all ranks, and this model draws no random numbers in "
    "training, so nothing differs. With dropout all ranks would draw the same masks.",
    "3": "A barrier needs a group of ranks, and so does any other collective.",
    "3b": "With gloo the group ends with the process, so nothing differs. With NCCL PyTorch would "
    "print a warning, because communication that is still running could be cut off.",
    "4": "Each rank finds no data and downloads it into the same files. One rank may read a file "
    "that another rank is still writing.",
    "4a": "Each rank finds no data and downloads it into the same files. One rank may read a file "
    "that another rank is still writing.",
    "4b": "In this run the ranks connect when they first communicate. So init_process_group does "
    "not wait for rank 0, and rank 1 downloads, too.",
    "5": "Each rank trains on all images, in as many steps as one device alone, so the second "
    "device saves no time.",
    "5a": "Each rank takes 240 images. The learning rate was chosen for 240 images on all ranks.",
    "5b": "Each rank trains on all images, so the second device saves no time.",
    "6": "Each rank tests all images with the same weights, so the count is right, but the second "
    "device saves no time.",
    "6a": "Each rank tests all images, and the counts are added. So every image counts twice.",
    "6b": "Rank 0 prints the count of its own half of the images, next to the total of all images.",
    "7": "The ranks start with different weights and never communicate in training. Each rank "
    "trains a model of its own on half of the images, and only that of rank 0 is saved.",
    "7b": "DDP prepares the averaging of gradients in its forward pass, and a call of the bare "
    "model skips that. The ranks start with equal weights and drift apart.",
    "8": "The sampler shuffles with its seed plus the number of the epoch, which stays 0 here.",
    "9": "Every rank prints its line and writes the same file. Two ranks that write one file at "
    "the same time can damage it.",
}
ALSO = {"5": "8", "5b": "8"}  # Without its sampler, the script cannot have change 8, either.
BEFORE = {  # the lines of 01_baseline/minimal.py that a change has replaced
    "2": ["    torch.manual_seed(0)"],
    "5a": ["    batch_size = 240"],
    "5b": ["    loader = DataLoader(train_set, batch_size, shuffle=True)"],
    "6a": ["    test_loader = DataLoader(test_set, batch_size=500)"],
    "7b": ["            loss = F.cross_entropy(model(x), y)"],
    "9": [
        '        print(f"epoch {epoch + 1}: {correct} of {len(test_set)} test images correct")',
        '        torch.save(model.state_dict(), "minimal.pt")',
    ],
}


class Run(NamedTuple):
    printed: list[str]
    code: int | None  # None: the doctor ended the run, because it hung
    error: str  # the last words of a run that failed
    facts: dict  # what the doctor counted: "steps" of the run, and "samples" of a step
    findings: list[dict]  # what the doctor found, with "severity", "key" and "seen"
    report: Path  # the doctor's file


def main():
    args = parse_args()
    for number in SIGNALS:  # Whatever ends this script, the ranks are ended, too.
        signal.signal(number, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="without-") as folder:
            run_numbers(list(TITLES) if args.all else [args.number], Path(folder))
    except KeyboardInterrupt:
        print("\ninterrupted; all that was started has ended", file=sys.stderr)
        return 130
    return 0


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    help_text = "the change to leave out: " + ", ".join(TITLES)
    parser.add_argument("number", nargs="?", choices=TITLES, metavar="N", help=help_text)
    parser.add_argument("--all", action="store_true", help="leave out each change, one at a time")
    args = parser.parse_args()
    if args.number is None and not args.all:
        parser.error("name a change or --all")
    return args


def run_numbers(numbers, folder):
    """Run the complete script and the reduced ones, and print what differs."""
    prepare_data(folder / "mnist")
    complete_text = PARALLEL.read_text()
    complete = run_script("the complete script", complete_text, folder)
    if complete.code != 0:
        raise SystemExit(f"The complete script does not run here: {complete.error}")
    rows = []
    for number in numbers:
        title = TITLES[number]
        text = without(number)
        print(f"\nWithout {number}: {title}")
        show_lines(complete_text, text)
        options = []
        if number == "5a":  # The doctor sees this mistake only next to a run on one rank.
            alone = run_script("the complete script on one rank", complete_text, folder, ranks=1)
            options = ["--alone", alone.report]
        reduced = run_script(f"the script without {number}", text, folder, number, options)
        show(number, complete, reduced)
        seen, notices = compare(complete, reduced)
        rows.append(f"| {number} | {title} | {seen} | {notices} |")
    if len(numbers) > 1:
        print("\n| change | what is left out | what one sees | who notices |")
        print("| --- | --- | --- | --- |")
        print("\n".join(rows))
    else:
        print("docs/your_script/adapt.md explains the changes one by one.")


# Make the script without a change.


def without(*numbers):
    """Return the text of minimal.py with these changes turned back into the text of stage 1."""
    dropped = list(numbers)
    dropped += [ALSO[number] for number in numbers if number in ALSO]
    lines = PARALLEL.read_text().splitlines()
    result = []
    previous = ""
    for line, number in zip(lines, numbers_of(lines)):
        if not number.startswith(tuple(dropped)):
            result.append(line)
        elif number != previous:
            result += BEFORE.get(number, [])
        previous = number
    return "\n".join(result) + "\n"


def numbers_of(lines):
    """Return the number of the change that each line belongs to: "" if stage 1 has this line, too.

    A number holds for all lines until the next number, or until a line of stage 1.
    """
    plain = set(PLAIN.read_text().splitlines())
    number = ""
    numbers = []
    for line in lines:
        found = re.search(r"# (\d+[a-z]?)\. ", line)
        if found:
            number = found[1]
        elif line in plain:
            number = ""
        numbers.append(number)
    return numbers


# Run a script on two ranks.


def prepare_data(folder):
    """Write the first images of MNIST into a folder, from which the ranks will copy them."""
    root = Path(os.getenv("MNIST_ROOT", "data"))
    raw = root / "MNIST" / "raw"
    if not (raw / "t10k-labels-idx1-ubyte").exists():
        import train

        train.load_mnist(root)  # This downloads MNIST, or ends with a message.
    folder.mkdir()
    for part, count in IMAGES.items():
        copy_first(count, raw / f"{part}-images-idx3-ubyte", folder, header=16, size=28 * 28)
        copy_first(count, raw / f"{part}-labels-idx1-ubyte", folder, header=8, size=1)
    print(f"Data: the first 9,600 training images and 1,000 test images of {root}")


def copy_first(count, file, folder, header, size):
    """Copy the first items of one of MNIST's files. header, size: bytes of the header, of an item.

    The header begins with four bytes that name the kind of file, and four with the number of items.
    """
    content = file.read_bytes()
    count = min(count, int.from_bytes(content[4:8], "big"))
    new_header = content[:4] + count.to_bytes(4, "big") + content[8:header]
    items = content[header : header + count * size]
    (folder / file.name).write_bytes(new_header + items)


def run_script(name, text, folder, number="", options=(), ranks=2):
    """Run a script under the doctor, in a new folder without data, and return what it did."""
    work = Path(tempfile.mkdtemp(dir=folder))
    script = work / "minimal.py"
    script.write_text(text)
    report = work / "doctor.json"
    # Where the download is the subject, it takes long enough for both ranks to begin one.
    seconds = 4 if number.startswith("4") else 0
    command = [sys.executable, DOCTOR, "check", "--json", report, "--limit", TIMEOUT, *options]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", ranks, HERE / "without.py"]
    command += ["--as-rank", script, folder / "mnist", seconds]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MNIST_ROOT": str(work / "data"),
    }
    if number == "4b":  # The ranks connect when they first communicate.
        environment["TORCH_GLOO_LAZY_INIT"] = "1"
    print(f"Running {name} ", end="", flush=True)
    run_command([str(word) for word in command], work, environment)
    out = (work / "out.txt").read_text()
    err = (work / "err.txt").read_text()
    if not report.exists():
        raise SystemExit(f"The doctor has written no report:\n{err}")
    seen = json.loads(report.read_text())
    printed = [line for line in out.splitlines() if line.startswith("epoch ")]
    code = seen["command"]["code"]  # None if the doctor has ended the run
    return Run(printed, code, last_words(err), seen["facts"], seen["findings"], report)


def run_command(command, work, environment):
    """Run a command until it ends. Print a dot every five seconds, then how long it took.

    Its output goes to the files out.txt and err.txt in its folder.
    """
    begin = time.monotonic()
    with open(work / "out.txt", "w") as out, open(work / "err.txt", "w") as err:
        # In a session of its own, the command does not get a Ctrl-C. The doctor ends the ranks.
        process = subprocess.Popen(
            command, cwd=work, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    print(".", end="", flush=True)
        except KeyboardInterrupt:
            for number in SIGNALS:  # A second Ctrl-C would leave the ranks behind.
                signal.signal(number, signal.SIG_IGN)
            process.terminate()
            process.wait()
            raise
    print(f" {time.monotonic() - begin:.0f} s", flush=True)


def run_as_rank(script, source, seconds):
    """This is what torchrun starts: run the script. Its download is a copy of a folder."""
    from torchvision import datasets

    rank = int(os.environ["RANK"])

    def download(mnist):
        if not mnist._check_exists():
            # Rank 1 ends its download after rank 0, so that the outcome is no matter of luck.
            time.sleep(seconds * (1 + rank))
            shutil.copytree(source, mnist.raw_folder, dirs_exist_ok=True)

    datasets.MNIST.download = download
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def last_words(err):
    """Return the first exception on stderr, or the end of the text if there is none."""
    pattern = r"^(?:\[rank\d+\]: )?(\w+(?:Error|Exception): .*?)(?: Did you mean.*)?$"
    errors = re.findall(pattern, err, re.MULTILINE)
    return errors[0] if errors else " ".join(err.split())[-300:]


# Show what happened.


def compare(complete, reduced):
    """Return what one sees in the output and the number of steps, and who notices the mistake."""
    if reduced.code is None:
        return "It hangs until it is ended.", "a hang"
    if reduced.code != 0:
        return f"It ends with an error: `{reduced.error}`", "an error"
    if len(reduced.printed) > len(complete.printed):
        seen = f"It prints {len(reduced.printed)} lines instead of {len(complete.printed)}."
        return seen, "who reads the output"
    before, _ = last_count(complete)
    after, total = last_count(reduced)
    if after > total:
        return "It prints more correct images than there are.", "the printed count"
    if after < 0.7 * before:
        return "It prints about half of the count.", "the printed count"
    seen = "It prints different counts."
    if reduced.printed == complete.printed:
        seen = "It prints the same."
    if steps(reduced) != steps(complete):
        seen += f" It takes {steps(reduced)} instead of {steps(complete)}."
    keys = [f"`{finding['key']}`" for finding in reduced.findings]
    return seen, f"only the doctor: {', '.join(keys)}" if keys else "nobody"


def last_count(run):
    """Return how many test images were correct after the last epoch, and how many there are."""
    found = re.search(r"(\d+) of (\d+) test images correct", run.printed[-1])
    return int(found[1]), int(found[2])


def steps(run):
    """Return how many steps a run takes, and how many images a step has on its two ranks."""
    return f"{run.facts['steps']} steps of 2 x {run.facts['samples'] // 2} images"


def show_lines(before, after):
    """Print the lines of the script that differ."""
    differing = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    for line in list(differing)[2:]:  # without the names of the files
        if not line.startswith("@@"):
            print(f"    {line}")


def show(number, complete, reduced):
    print()
    show_row("complete", f"without {number}")
    for left, right in itertools.zip_longest(complete.printed, reduced.printed, fillvalue=""):
        show_row(left, right)
    show_row(f"exit code {complete.code}", f"exit code {reduced.code}")
    seen, _ = compare(complete, reduced)
    show_text(f"What happened: {seen}")
    show_text(f"Why: {REASONS[number]}")
    if not reduced.findings:
        print("The doctor finds nothing.")
    for finding in reduced.findings:
        show_text(
            f"The doctor: {finding['severity'].upper()} [{finding['key']}] {finding['seen']}."
        )


def show_row(left, right):
    print(f"  {left:48}  {right}".rstrip())


def show_text(text):
    print(textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        run_as_rank(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())

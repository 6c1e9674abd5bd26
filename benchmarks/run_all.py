"""Measure every committed figure again, one after the other, on one idle machine.

First it makes the records: the stages three times, interleaved, some other settings, what notebooks
quote. Then come the pages. It runs each shell block under a line
<!-- measured -->, and replaces the block after it by what was printed. A stage's page that shows a
run gets the lines of the one nearest to the median. Figures of benchmarks also go to
benchmarks/results. So the pages show the machine they were last run on, and `git diff` shows how
yours differs from ours.

    python -m benchmarks.run_all            # make figures does it, and the notebooks: an hour
    python -m benchmarks.run_all --only limit sweep --data ../mnist
    python -m benchmarks.run_all --only stages settings
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from lib import records
from lib.processes import KEEP_MEMORY

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"<!-- measured -->\n\n```sh\n([^`]+)\n```\n\n```\n.*?```\n", re.DOTALL)
RECORDS = "docs/timings/cpu-2-cores"
COMPARE = "python compare.py --device cpu --world-size 2 --data data --repeat 3 --together"
BEFORE = {  # by the name that --only knows: commands whose output no page shows as it is
    "stages": f"rm -f {RECORDS}.jsonl; {COMPARE} --record {RECORDS}.jsonl; rm {RECORDS}.png",
    "loaders": "python -m benchmarks.loaders --data data",
    "threads": "python -m benchmarks.threads",
    "all_reduce_ways": "python -m benchmarks.all_reduce_ways",
    "failures": (
        "python 05_multinode/rehearsal/failures.py --json 05_multinode/rehearsal/failures.json"
    ),
}
SETTINGS = [  # other settings that pages and notebooks quote
    "01_baseline/train.py --batch-size 120",
    "03_ddp_spawn/train.py --batch-size 120 --world-size 2",
    "01_baseline/train.py --threads 2",
    "03_ddp_spawn/train.py --threads 2 --world-size 2",
    "02_dp/train.py",
    "03_ddp_spawn/train.py --world-size 4",
]
# The lines that a stage prints about its epochs, as they stand on its page.
SHOWN = ("01_baseline", "03_ddp_spawn")  # the stages whose page shows a run
RAN = re.compile(r"(?:^epoch +\d+/\d+.*\n)+", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="run only scripts with such names")
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = parser.parse_args()
    wanted = args.only or [*BEFORE, "settings"]
    commands = [(None, command) for name, command in BEFORE.items() if name in wanted]
    for page in PAGES:
        for command in BLOCK.findall(page.read_text(encoding="utf-8")):
            if not args.only or script_of(command) in args.only:
                commands.append((page, command))
    if not commands and "settings" not in wanted:
        parser.error("--only: no command on the pages has such a name")
    load = psutil.cpu_percent(interval=3)
    if load > 10:
        parser.error(f"the machine is busy ({load:.0f} %): figures would not be believed")

    failed = 0
    if "settings" in wanted:
        failed += measure_settings(args.data)
    for number, (page, command) in enumerate(commands, start=1):
        print(f"[{number}/{len(commands)}] {command}", flush=True)
        code, output = run(command, args.data)
        print(output, flush=True)
        if code != 0:
            failed += 1
        elif page is not None:
            update_page(page, command, output)
    if "stages" in wanted or "settings" in wanted:
        update_stages()
    print(f"{failed} failed")
    return 1 if failed else 0


def measure_settings(data: Path) -> int:
    """Run stages with other settings, three times, interleaved -> how many runs failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "runs.jsonl")  # each run appends its line
        flags = f"--device cpu --data data --record {record} --checkpoint {folder}/model.pt"
        for line in SETTINGS * 3:
            print(line, flush=True)
            code, _ = run(f"python {line} {flags}", data)
            failed += code != 0
        shutil.copy(record, f"{ROOT / RECORDS}-settings.jsonl")
    return failed


def committed() -> list[records.Row]:
    """The rows of the committed records: those of all stages, then those with other settings."""
    found = records.read(ROOT / f"{RECORDS}.jsonl")
    found += records.read(ROOT / f"{RECORDS}-settings.jsonl")
    return records.rows_of(found)


def nearest(stage: str) -> dict:
    """The record of the run that the stage's page shows: of the repeats the one of median speed."""
    row = records.find(committed(), stage)
    return sorted(row, key=records.speed)[len(row) // 2]


def printed(record: dict) -> str:
    """The lines in which a stage says how its epochs went."""
    lines = ""
    for number, epoch in enumerate(record["history"], start=1):
        seconds = sum(epoch["phases"][0].values())
        correct, total = epoch["test"]
        lines += (
            f"epoch {number}/{record['epochs']}: {seconds:.2f} s, "
            f"{record['images'] / seconds:,.0f} images/s, "
            f"loss {epoch['loss']:.4f}, accuracy {correct / total:.2%}\n"
        )
    return lines


def update_stages() -> None:
    """Put the lines of the run nearest to the median on the pages that show a run."""
    for stage in SHOWN:
        page = ROOT / stage / "README.md"
        text = page.read_text(encoding="utf-8")
        lines = printed(nearest(stage))
        page.write_text(RAN.sub(lines, text, count=1), encoding="utf-8")


def script_of(command: str) -> str:
    """The name by which --only knows a command: that of its script, without folder and ending."""
    match = re.search(r"-m benchmarks\.(\w+)|(\w+)\.py", command)
    return match[1] or match[2]


def run(command: str, data: Path) -> tuple[int, str]:
    """Run a command of a page from the repository's root -> exit code, what it printed."""
    command = command.replace("--data data", f"--data {shlex.quote(str(data.resolve()))}")
    if command.startswith("python -m benchmarks."):
        command += " --results benchmarks/results"
    # The commands python and torchrun are those of this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=ROOT,
        env=os.environ | KEEP_MEMORY | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stdout


def update_page(page: Path, command: str, output: str) -> None:
    """Put the output under the command; read again, so that an edit in between survives."""

    def replaced(match: re.Match) -> str:
        fresh = f"<!-- measured -->\n\n```sh\n{command}\n```\n\n```\n{output.strip()}\n```\n"
        return fresh if match[1] == command else match[0]

    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(replaced, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

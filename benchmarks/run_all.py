"""Measure every committed figure again, one after the other, on one idle machine.

First the records: the stages three times, interleaved, some other settings, what notebooks quote,
the player's recordings. Then the pages: a shell block under the line <!-- measured --> is run, and
the block after it is replaced by what it prints; a stage's page gets the lines of the run nearest
to the median. Figures of benchmarks also go to benchmarks/results. So the pages show the
machine they were last run on, and `git diff` shows how yours differs from ours.

    python -m benchmarks.run_all            # make figures does it, and the notebooks: an hour
    python -m benchmarks.run_all --only limit sweep --data ../mnist
    python -m benchmarks.run_all --only stages settings recordings
"""

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

import records
from tools import processes

stage1 = importlib.import_module("01_baseline.train")

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- measured -->\n\n```sh\n([^`]+)\n```\n\n```\n.*?```\n", re.DOTALL)
RECORDS = "docs/timings/cpu-2-cores"
COMPARE = "python compare.py --device cpu --world-size 2 --data data --repeat 3 --together"
BEFORE = {  # by the name that --only knows: commands whose output no page shows as it is
    "stages": f"rm -f {RECORDS}.jsonl; {COMPARE} --record {RECORDS}.jsonl",
    "loaders": "python -m benchmarks.loaders --data data",
    "threads": "python -m benchmarks.threads",
    "all_reduce_ways": "python -m benchmarks.all_reduce_ways",
    "recordings": "python -m benchmarks.record",
    "failures": "python 05_multinode/rehearsal/failures.py --json "
    "05_multinode/rehearsal/failures.json",
}
SETTINGS = [  # other settings that pages and notebooks quote
    "01_baseline/train.py --batch-size 120",
    "03_ddp_spawn/train.py --batch-size 120 --world-size 2",
    "01_baseline/train.py --threads 2",
    "03_ddp_spawn/train.py --threads 2 --world-size 2",
    "01_baseline/train.py --workers 1",
    "02_dp/train.py",
    "03_ddp_spawn/train.py --world-size 4",
]
RAN = re.compile(r"((?:^epoch .*\n)+)^milliseconds per step: .*", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="run only scripts with such names")
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    parser.add_argument("--busy", action="store_true", help="measure though the machine is busy")
    args = parser.parse_args()
    before = [(None, command) for name, command in BEFORE.items() if name in (args.only or BEFORE)]
    found = before + [
        (page, command)
        for page in PAGES
        for command in BLOCK.findall(page.read_text(encoding="utf-8"))
        if not args.only or script_of(command) in args.only
    ]
    settings = not args.only or "settings" in args.only
    if not found and not settings:
        parser.error("--only: no command on the pages has such a name")
    load = psutil.cpu_percent(interval=3)
    if load > 10 and not args.busy:
        parser.error(f"the machine is busy ({load:.0f} %): figures would not be believed (--busy)")
    failed = measure_settings(args.data) if settings else 0
    for number, (page, command) in enumerate(found, start=1):
        print(f"[{number}/{len(found)}] {command}", flush=True)
        code, output = run(command, args.data)
        print(output, flush=True)
        failed += code != 0
        if code == 0 and page:
            update_page(page, command, output)
    if not args.only or {"stages", "settings"} & set(args.only):
        update_stages()
    print(f"{failed} failed")
    return 1 if failed else 0


def measure_settings(data: Path) -> int:
    """Run stages with other settings, three times, interleaved -> how many runs failed."""
    dataset = records.dataset_name(stage1.load_mnist(data)[1].data.numpy())
    facts = {"dataset": dataset, "device_name": processes.device_name()}
    lines, runs = [], SETTINGS * 3
    for line in runs:
        print(line, flush=True)
        with tempfile.TemporaryDirectory() as temp:
            places = f"--data data --record {temp}/run.jsonl --checkpoint {temp}/model.pt"
            code, _ = run(f"python {line} --device cpu {places}", data)
            if code == 0:
                record = json.loads(Path(temp, "run.jsonl").read_text()) | facts
                lines.append(json.dumps(record) + "\n")
    (ROOT / f"{RECORDS}-settings.jsonl").write_text("".join(lines), encoding="utf-8")
    return len(runs) - len(lines)


def committed() -> list[records.Row]:
    """The rows of the committed records: those of all stages, then those with other settings."""
    paths = (ROOT / f"{RECORDS}.jsonl", ROOT / f"{RECORDS}-settings.jsonl")
    return records.rows_of(record for path in paths for record in records.read(path))


def nearest(stage: str) -> dict:
    """The record of the run that the stage's page shows: of the repeats the one of median speed."""
    row = records.find(committed(), stage)
    return sorted(row, key=records.speed)[len(row) // 2]


def printed(record: dict) -> str:
    """The lines in which a stage says how its epochs went."""
    history, images = record["history"], record["images"]
    count = range(1, len(history) + 1)
    lines = [stage1.epoch_line(history[:n], record["epochs"], images) for n in count]
    steps = images / record["batch_size"]
    phases = history[-1]["phases"][0].items()
    split = ", ".join(f"{phase} {1000 * seconds / steps:.2f}" for phase, seconds in phases)
    return "\n".join([*lines, f"milliseconds per step: {split}"])


def update_stages() -> None:
    """Put the lines of the run nearest to the median on each stage's page."""
    for stage in records.STAGES:
        page = ROOT / stage / "README.md"
        text, lines = page.read_text(encoding="utf-8"), printed(nearest(stage))
        page.write_text(RAN.sub(lambda _, lines=lines: lines, text, count=1), encoding="utf-8")


def script_of(command: str) -> str:
    """The name by which --only knows a command: that of its script, without folder and ending."""
    match = re.search(r"-m benchmarks\.(\w+)|(\w+)\.py", command)
    return match[1] or match[2]


def run(command: str, data: Path) -> tuple[int, str]:
    """Run a command of a page from the repository's root -> exit code, what it printed."""
    command = command.replace("--data data", f"--data {shlex.quote(str(data.resolve()))}")
    if command.startswith("python -m benchmarks."):
        command += " --results benchmarks/results"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # python and torchrun
    environment = os.environ | {"PATH": path}
    words, options = ["bash", "-ec", command], {"stdout": subprocess.PIPE, "text": True}
    done = subprocess.run(words, cwd=ROOT, env=environment, **options)
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

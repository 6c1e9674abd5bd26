"""Run everything that needs a GPU once, and write one folder with what each step printed.

    python -m tools.gpu_record [FOLDER] [--only STEP ...] [--dry-run]      # what `make gpu` calls

It takes less than twenty minutes. A step that fails or takes too long does not stop the others, and
the exit code is 1 then. FOLDER (benchmarks/results/gpu by default) gets summary.md, a log for each
step, and the records of the runs; it can be committed or sent. On one GPU ranks share it over gloo,
and the steps that need two say that they were skipped.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lib import processes

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Step:
    """A command, which is run from the repository's root with FOLDER in place of {folder}."""

    name: str
    command: str
    minutes: float  # after which it is ended
    gpus: int = 1  # that it needs
    fails: bool = False  # a failure is what it shows
    env: dict = field(default_factory=dict)


def steps(gpus):
    """What is run on a machine with so many GPUs."""
    ranks = f"torchrun --standalone --nproc-per-node {max(gpus, 2)}"
    shared = "" if gpus >= 2 else " --backend gloo"  # NCCL refuses two ranks on one GPU
    stage = f"04_ddp_torchrun/train.py --epochs 1 --checkpoint {{folder}}/stage4.pt{shared}"
    traces = {"TORCH_FR_DUMP_TEMP_FILE": "{folder}/traces/rank_"}
    return [
        Step("environment", "python -m torch.utils.collect_env", 1, gpus=0),
        Step("preflight", "python doctor preflight", 1, gpus=0),
        Step("stages", "python compare.py --record {folder}/runs.jsonl", 4),
        Step("network", f"{ranks} doctor preflight --timeout 100", 2, gpus=2),
        Step("check", f"python doctor check {ranks} {stage}", 2),
        Step("speed", f"python doctor speed --json {{folder}}/speed.json {ranks} {stage}", 2),
        Step("costs", "python doctor/field/costs.py --pairs 1 exposed straggler own-code", 5),
        Step(
            "hang", "torchrun --standalone --nproc-per-node 2 tools/gpu_hang.py", 2, 2, True, traces
        ),
        Step("traces", "torchfrtrace --prefix rank_ {folder}/traces", 1, 2),
        Step("log", "python doctor log {folder}/hang.log", 1, 2, True),
        Step("nccl2", f"{ranks} 04_ddp_torchrun/minimal.py --backend nccl2", 2, 2),
        Step("compile", f"{ranks} docs/training/examples/compile_ddp.py", 2),
        Step("messages", "python tests/provoke_gpu_messages.py {folder}/messages", 4),
        Step("tests", "python -m pytest -q -p no:cacheprovider --timeout 200 tests/test_gpu.py", 8),
        Step("corpus", "python doctor/tests/judge_cases.py --innocents", 5, 2),
    ]


def main():
    args = parse_args()
    gpus = args.gpus if args.gpus is not None else count_gpus()
    chosen = [step for step in steps(gpus) if not args.only or step.name in args.only]
    if args.dry_run:
        for step in chosen:
            print(f"{step.name:12}{step.minutes:>4g} min  {step.command}")
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in chosen:
        rows.append(run(step, args.folder, gpus))
        write_summary(args.folder, rows)
        print(f"{rows[-1][0]:12}{rows[-1][1]:24}{rows[-1][2]:>6.0f} s", flush=True)
    failed = [name for name, result, _ in rows if result.startswith("FAILED")]
    print(f"{args.folder} has it all{'; failed: ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


def count_gpus():
    """In a process of its own, so that this one holds no memory of a GPU."""
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int(done.stdout or 0)


def run(step, folder, gpus):
    """Run a step -> (its name, how it ended, seconds)."""
    if gpus < step.gpus:
        return step.name, f"skipped: {step.gpus} GPU(s) needed", 0.0
    where = str(folder.resolve())
    command = [word.replace("{folder}", where) for word in shlex.split(step.command)]
    if command[0] == "python":
        command[0] = sys.executable
    env = {name: value.replace("{folder}", where) for name, value in step.env.items()}
    for value in env.values():
        Path(value).parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env["PATH"] = path
    log = folder / f"{step.name}.log"
    start = time.monotonic()
    code = processes.run_to_file(command, log, step.command, 60 * step.minutes, env, cwd=ROOT)
    seconds = time.monotonic() - start
    if code is None:
        return step.name, f"FAILED: more than {step.minutes:g} min", seconds
    if (code != 0) == step.fails:
        return step.name, "ok", seconds
    return step.name, f"FAILED: exit code {code}", seconds


def write_summary(folder, rows):
    lines = ["| step | result | seconds |", "| --- | --- | --- |"]
    for name, result, seconds in rows:
        lines.append(f"| {name} | {result} | {seconds:.0f} |")
    (folder / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = ROOT / "benchmarks/results/gpu"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="where to write")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="names of steps")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--gpus", type=int, help="how many to assume (all that PyTorch sees)")
    args = parser.parse_args()
    known = [step.name for step in steps(1)]
    for name in args.only or []:
        if name not in known:
            parser.error(f"there is no step {name}; there are {', '.join(known)}")
    return args


if __name__ == "__main__":
    sys.exit(main())

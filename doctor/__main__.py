"""Is my data-parallel script right? Runs it as it is, watches its ranks, and says what they did.

    python -m doctor torchrun --standalone --nproc-per-node 2 train.py --epochs 1
    python -m doctor --alone torchrun ...   # once more on one rank: does the batch grow with ranks?

Any command that starts Python will do: torchrun, a script with mp.spawn, accelerate launch, srun on
one node, bash -c with one line per rank. Take two short epochs. Exit code: 0, 1 (something is
wrong), 2 (it could not look, or not to the end).
"""

import argparse
import json
import re
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import judge, judge_data, judge_run, judge_step  # noqa: F401 (they register functions)
from .case import JUDGES, Case, certainty
from .launch import observe
from .report import as_json, exit_code, show

COPIED = 200_000_000  # bytes of the folder, at most, for the run on one rank
RANKS = r"(--(?:nproc.per.node|num.processes|world.size)[= ])\d+"  # how many ranks are started


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in both cases its ranks are ended
    try:
        # First, since the other run may save a checkpoint.
        alone = run_alone(args) if args.alone else None
        case = Case(observe(args.command, args.patience, args.limit))
    except OSError as error:
        print(f"doctor: {args.command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 2
    case.alone = alone
    found = diagnose(case)
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(case, found), indent=1) + "\n")
    show(case, found)
    return exit_code(case, found)


def diagnose(case):
    """All findings, the certain ones first. A judge that fails is named as not judged."""
    for judge_one in [one for one in JUDGES if len(case.ranks) >= one.ranks]:
        try:
            case.found += judge_one(case)
        except Exception as error:
            case.failed.append(f"{judge_one.key}: {error!r}")
    return sorted(case.found, key=certainty)


def parse_args():
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="doctor", description=__doc__, formatter_class=style)
    parser.add_argument("--patience", type=float, default=8, help="seconds all ranks may wait (8)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the command (900)")
    parser.add_argument("--alone", action="store_true", help="run it on one rank, too, and compare")
    parser.add_argument("--json", metavar="FILE", help="write the findings to this file, too")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="as you start your script")
    args = parser.parse_args()
    if not args.command:
        parser.error("what shall run? python -m doctor torchrun --nproc-per-node 2 train.py")
    return args


def run_alone(args):
    """The same command on one rank, in a copy of the folder -> Case or None."""
    command, found = re.subn(RANKS, r"\g<1>1", shlex.join(args.command))
    size = sum(p.stat().st_size for p in Path().rglob("*") if p.is_file() and not p.is_symlink())
    if not found or size > COPIED:
        why = "the folder is too large to copy" if found else "the command has no number of ranks"
        print(f"doctor: --alone was not done: {why}", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory(prefix="doctor-alone-") as folder:
        not_itself = shutil.ignore_patterns(f"{Path(folder).name}*")  # if it lies in this folder
        copy = shutil.copytree(Path(), Path(folder, "copy"), symlinks=True, ignore=not_itself)
        return Case(observe(shlex.split(command), args.patience, args.limit, copy))


if __name__ == "__main__":
    sys.exit(main())

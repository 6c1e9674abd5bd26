"""Is my data-parallel script right? Runs it unchanged, compares its ranks, names what is wrong.

    ddp-doctor torchrun --standalone --nproc-per-node 2 train.py --epochs 2
    ddp-doctor --alone torchrun ...   # once more on one rank: does the batch grow with the ranks?

Any command that starts Python works: torchrun, a script with mp.spawn, accelerate launch, srun on
one node, bash -c with one line per rank. Take two short epochs. The exit code is 1 if something is
wrong, 2 if the doctor could not look or not to the end, and 0 otherwise.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import TRIED, VERSION, judge, judge_data, judge_run, judge_step, speed  # noqa: F401
from .case import JUDGES, Case, certainty
from .launch import SIGNALS, START, observe
from .report import as_json, exit_code, show

COPIED = 200_000_000  # bytes of the folder, at most, for the run on one rank
RANKS = r"(--(?:nproc.per.node|num.processes|world.size)[= ])\d+"  # how many ranks are started


def main():
    args = parse_args()
    for number in SIGNALS:  # the ranks are ended in any case
        signal.signal(number, signal.default_int_handler)
    try:
        if args.speed:
            return speed.main(args)
        # First, since the other run may save a checkpoint.
        alone = run_alone(args) if args.alone else None
        case = Case(observe(args.command, args.patience, args.limit), args.ignore)
    except OSError as error:
        return refuse(f"{args.command[0]} cannot be started: {error.strerror}")
    except KeyboardInterrupt:
        return refuse("interrupted before the ranks were started")
    case.alone = alone
    found = diagnose(case)
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(case, found), indent=1) + "\n")
    show(case, found)
    return exit_code(case, found)


def refuse(message):
    print(f"ddp-doctor: {message}", file=sys.stderr)
    return 2


def diagnose(case):
    """All findings: the certain ones first, a cause before its effect; judges that fail by name."""
    for judge_one in [one for one in JUDGES if len(case.ranks) >= one.ranks]:
        try:
            case.found += judge_one(case)
        except Exception as error:
            case.failed.append(f"{judge_one.key}: {error!r}")
    found = [one for one in case.found if one.key not in case.ignored]
    return sorted(found, key=lambda one: (certainty(one), one.key == "weights-differ"))


def parse_args():
    style = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="ddp-doctor", **style)
    version = f"ddp-doctor {VERSION}, tried with PyTorch {TRIED}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--patience", type=float, default=8, help="seconds all ranks may wait (8)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the command (900)")
    parser.add_argument("--alone", action="store_true", help="run it on one rank, too, and compare")
    parser.add_argument(
        "--speed", action="store_true", help="where does the time go? docs/speed.md"
    )
    parser.add_argument("--picture", metavar="FILE", help="--speed: draw a bar per rank")
    parser.add_argument("--json", metavar="FILE", help="write the findings to this file, too")
    ignore = {"action": "append", "default": [], "metavar": "KEY"}
    parser.add_argument("--ignore", **ignore, help="leave this finding out: it is meant")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="as you start your script")
    args = parser.parse_args()
    if not os.path.isdir(START):
        parser.error("a zip file cannot be put on PYTHONPATH for the ranks: unpack it")
    if not args.command:
        parser.error("name a command: ddp-doctor torchrun --nproc-per-node 2 train.py")
    if unknown := set(args.ignore) - {one.key for one in JUDGES}:
        parser.error(f"--ignore {min(unknown)}: there is no such finding")
    return args


def run_alone(args):
    """The same command on one rank, in a copy of the folder -> Case or None."""
    command, found = re.subn(RANKS, r"\g<1>1", shlex.join(args.command))
    if not found:
        refuse("--alone was left out: the command does not say how many ranks to start")
        return None
    files = [path for path in Path().rglob("*") if path.is_symlink() or path.is_file()]
    if size_of(files) > COPIED:
        files = known_to_git() or files
    if size_of(files) > COPIED:
        limit = f"at most {COPIED // 10**6} MB are copied, without the files that git ignores"
        refuse(f"--alone was left out: this folder has {size_of(files) // 10**6} MB; {limit}")
        return None
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-alone-") as folder:
        for path in files:
            Path(folder, path.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, Path(folder, path), follow_symlinks=False)
        alone = Case(observe(shlex.split(command), args.patience, args.limit, folder))
    if alone.run.end == "interrupt":
        raise KeyboardInterrupt
    return alone


def size_of(files):
    return sum(path.lstat().st_size for path in files)


def known_to_git():
    """The files of this folder that git does not ignore. None: it is no repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\0")
    except (OSError, subprocess.CalledProcessError):
        return []
    return [path for path in map(Path, map(os.fsdecode, names[:-1])) if path.is_file()]


if __name__ == "__main__":
    sys.exit(main())

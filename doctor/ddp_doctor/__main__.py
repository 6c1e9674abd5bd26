"""Is my data-parallel script right? Runs it unchanged, compares its ranks, names what is wrong.

    ddp-doctor torchrun --standalone --nproc-per-node 2 train.py --epochs 2
    ddp-doctor --json one.json torchrun --nproc-per-node 1 train.py
    ddp-doctor --alone one.json torchrun ...   # does the batch grow with the ranks?

Any command that starts Python works: torchrun, a script with mp.spawn, accelerate launch, srun on
one node, bash -c with one line per rank. Take two short epochs. The exit code is 1 if something is
wrong, 2 if the doctor could not look or not to the end, and 0 otherwise.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from . import TRIED, VERSION, judge, judge_data, judge_run, speed  # noqa: F401
from .case import JUDGES, Case
from .launch import SIGNALS, START, observe
from .report import as_json, exit_code, show


def main():
    args = parse_args()
    for number in SIGNALS:  # the ranks are ended in any case
        signal.signal(number, signal.default_int_handler)
    try:
        if args.speed:
            return speed.main(args)
        case = Case(observe(args.command, args.patience, args.limit), args.ignore)
    except OSError as error:
        return refuse(f"{args.command[0]} cannot be started: {error.strerror}")
    except KeyboardInterrupt:
        return refuse("interrupted before the ranks were started")
    case.alone = args.alone or {}
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
    return sorted(found, key=lambda one: (one.severity != "wrong", one.key == "weights-differ"))


def parse_args():
    style = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="ddp-doctor", **style)
    version = f"ddp-doctor {VERSION}, tried with PyTorch {TRIED}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--patience", type=float, default=8, help="seconds all ranks may wait (8)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the command (900)")
    parser.add_argument("--alone", metavar="FILE", help="compare with one rank, a --json file")
    parser.add_argument("--speed", action="store_true", help="where does the time go? (speed.md)")
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
    if args.alone:
        try:
            args.alone = json.loads(Path(args.alone).read_text())["facts"]
        except (OSError, ValueError, KeyError, TypeError):
            parser.error(f"--alone {args.alone}: this is no file that --json has written")
    if unknown := set(args.ignore) - {one.key for one in JUDGES}:
        parser.error(f"--ignore {min(unknown)}: there is no such finding")
    return args


if __name__ == "__main__":
    sys.exit(main())

"""The command line. Each verb has a parser and a function of its own."""

import argparse
import difflib
import json
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from . import TRIED, __version__
from .check import report
from .check.findings import FINDINGS
from .check.judges import diagnose
from .run.launch import START, catch_signals, observe
from .run.run import build
from .run.words import about_short, hints, print_text, script_of, sentence

HELP = """The doctor for data-parallel PyTorch scripts: before, during and after a run.

    ddp-doctor check torchrun --nproc-per-node 2 train.py    is it right? names mistakes by line
    ddp-doctor speed torchrun --nproc-per-node 2 train.py    why is it slow? names costs by line
    torchrun ... -m ddp_doctor preflight                     are these nodes ready for a job?
    ddp-doctor log run.log                                   what did the ranks print on a failure?

ddp-doctor VERB --help says more, and ddp-doctor --version which versions of PyTorch were tried.
"""
CHECK = """Is my data-parallel script right?

    ddp-doctor check --short torchrun --standalone --nproc-per-node 2 train.py

Runs the command unchanged, compares what its ranks do, and names each mistake with its line. Any
command that starts Python works: torchrun, python for a script with mp.spawn, accelerate launch,
srun on one node, bash -c with one line per rank. Take two ranks. With --short every pass over a
DataLoader ends after 20 batches, and the run after two epochs.

The exit code is 1 if something is wrong, 2 if the doctor could not look or not to the end, 3 if a
part of the doctor failed, and 0 otherwise. To see whether the batch grows with the ranks:

    ddp-doctor check --json one.json torchrun --standalone --nproc-per-node 1 train.py
    ddp-doctor check --alone one.json torchrun --standalone --nproc-per-node 2 train.py

ddp-doctor check --list prints all findings.
"""
SPEED = """Why is my data-parallel script slow?

    ddp-doctor speed torchrun --standalone --nproc-per-node 2 train.py

Runs the command unchanged, shows where the time of a step goes on each rank, and names what costs
most with its line. Take a hundred steps or more, and close other programs. --film run.html shows
the last steps as a page that needs no network, and --film run.svg as a picture.

The exit code is 2 if the command fails or makes too few steps, and 0 otherwise. What one rank alone
would take, and so the efficiency, needs two runs:

    ddp-doctor speed --json one.json torchrun --standalone --nproc-per-node 1 train.py
    ddp-doctor speed --alone one.json torchrun --standalone --nproc-per-node 2 train.py
"""
PREFLIGHT = r"""Before a run: has this machine what ranks need, and do several nodes agree?

    ddp-doctor preflight

prints cores, open files, shared memory, memory, cards, the own name and IPv6 of this machine, what
is too little, and what to do. Started on every node with the job's own torchrun line, in place of
the script, it compares the nodes, and measures an all-reduce between them:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 -m ddp_doctor preflight --min-busbw 5

Rank 0 prints a line for each check. busbw is the bus bandwidth as nccl-tests counts it. The exit
code is 0 if all pass, 1 if one has failed, and 2 for bad input.
"""
LOG = """What do a run's logs say of errors, waiting ranks and its end? An excerpt, no judgement.

    ddp-doctor log run.log                one log of all ranks
    ddp-doctor log rank0.log rank1.log    all logs of one run
    ddp-doctor log logs/                  a folder of torchrun's --log-dir
    torchrun ... 2>&1 | ddp-doctor log    standard input

The exit code is 0 if nothing looks like an error, 1 if something does, and 2 for bad input.
"""
NEEDED = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()


class Parser(argparse.ArgumentParser):
    """Reports bad input in one line, without the usage."""

    def error(self, message):
        refuse(f"error: {message}")


def refuse(message):
    print(f"ddp-doctor: {message}", file=sys.stderr)
    sys.exit(2)


def main():
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(HELP.strip(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"ddp-doctor {__version__}, tried with PyTorch {TRIED}")
        return 0
    if words[0] not in VERBS:
        refuse(f"error: {meant(words)}")
    try:
        return VERBS[words[0]](words[1:])
    except KeyboardInterrupt:
        refuse("interrupted")


def meant(words):
    """One line for a command without a verb: the same with the verb that was meant."""
    alike = difflib.get_close_matches(words[0], VERBS, n=1)
    if alike:
        rest = words[1:]
        verb = alike[0]
    else:
        verb = "speed" if {"--speed", "--picture", "--film"} & set(words) else "check"
        rest = [word for word in words if word != "--speed"]
    return f"a verb is missing: ddp-doctor {verb} {shlex.join(rest)}"


# ------------------------------------------------------------------ check and speed


def check(words):
    if words == ["--list"]:
        report.show_all_findings()
        return 0
    parser = command_parser("check", CHECK)
    ignore = {"action": "append", "default": [], "metavar": "KEY"}
    parser.add_argument("--ignore", **ignore, help="leave this finding out: it is meant")
    args = parse(parser, words)
    for key in args.ignore:
        if key not in FINDINGS:
            parser.error(f"--ignore {key}: there is no such finding")
    run = watch(args, args.alone.get("facts"))
    all_found, failed = diagnose(run)
    found = [one for one in all_found if one.key not in args.ignore]
    ignored = [one.key for one in all_found if one.key in args.ignore]
    if args.json:
        write_json(args.json, report.as_json(run, found, ignored, failed))
    report.show(run, found, ignored, failed)
    return report.exit_code(run, found, failed)


def time_steps(words):
    # What one verb alone needs is imported by this verb: `check` starts faster without it.
    from .film import film
    from .run.facts import facts
    from .speed import report as speed
    from .speed.pace import pace_of

    parser = command_parser("speed", SPEED)
    parser.add_argument("--picture", metavar="FILE", help="draw a bar per rank, with matplotlib")
    parser.add_argument("--film", metavar="FILE", help="show the last steps: .html or .svg")
    args = parse(parser, words)
    reason = film.why_not(args.film) if args.film else None
    if reason:
        parser.error(f"--film {args.film}: {reason}")
    if args.picture and not find_spec("matplotlib"):
        parser.error("--picture: install matplotlib first")
    run = watch(args, args.alone.get("facts"), speed=True)
    pace = pace_of(run)
    figures = speed.measure(pace)
    code = 0 if figures and run.ended_well else 2
    if args.json:
        whole = {"exit": code, "command": {"code": run.code, "end": run.end}}
        whole["ranks"] = len(run.ranks)
        whole["facts"] = {"sentence": sentence(run), **facts(run)}
        whole["speed"] = figures
        write_json(args.json, whole)
    print_text(sentence(run), before="\n")
    for text in [*hints(run), *about_short(run)]:
        print(text)  # one line, so that a command in it can be copied
    if figures:
        speed.show(figures, args.alone.get("speed"))
    else:
        speed.show_too_little(run, pace)
    if args.picture and figures:
        speed.draw(figures, args.picture)
    if args.film:
        print("\n" + film.write(pace, figures, args.command, args.film))
    return code


def watch(args, alone, speed=False):
    """Run the command -> a Run."""
    script = script_of(args.command)
    if script and not os.path.exists(script):
        refuse(f"error: {script}: there is no such file")
    catch_signals()
    try:
        code, end, processes, kept = observe(
            args.command, args.patience, args.limit, speed, args.short
        )
    except OSError as error:
        refuse(f"{args.command[0]} cannot be started: {error.strerror}")
    except KeyboardInterrupt:
        refuse("interrupted before the ranks were started")
    about = {"short": args.short, "kept": kept, "command": tuple(args.command)}
    return build(code, end, processes, alone, **about)


def write_json(path, what):
    Path(path).write_text(json.dumps(what, indent=1) + "\n")


def command_parser(verb, text):
    style = argparse.RawDescriptionHelpFormatter
    usage = f"ddp-doctor {verb} [options] COMMAND ..."
    parser = Parser(f"ddp-doctor {verb}", usage, text, formatter_class=style)
    add = parser.add_argument
    add("--patience", type=float, default=8, help="seconds that all ranks may wait (8)")
    add("--limit", type=float, default=900, help="seconds that the command may take (900)")
    short = "end each pass over a DataLoader after N batches (20), and the run after two epochs"
    add("--short", type=int, metavar="N", help=short)
    add("--json", metavar="FILE", help="write everything to this file, too")
    add("--alone", metavar="FILE", help="compare with one rank: a file that --json wrote")
    add("command", nargs=argparse.REMAINDER, help="as you start your script")
    return parser


def with_number(parser, words):
    """`--short` without a number means --short 20. What belongs to the command stays as it is."""
    with_values = set()
    for action in parser._actions:
        if action.nargs is None:
            with_values.update(action.option_strings)
    place = 0
    while place < len(words) and words[place].startswith("-"):
        if words[place] == "--short":
            following = words[place + 1] if place + 1 < len(words) else ""
            if not following.lstrip("-").isdigit():
                return [*words[: place + 1], "20", *words[place + 1 :]]
        place += 2 if words[place] in with_values else 1
    return words


def parse(parser, words):
    args = parser.parse_args(with_number(parser, words))
    if not os.path.isdir(START):
        parser.error("a zip file cannot be put on PYTHONPATH for the ranks: unpack it")
    if not args.command:
        parser.error(f"name a command: {parser.prog} torchrun --nproc-per-node 2 train.py")
    if args.short is not None and args.short < 2:
        parser.error(f"--short {args.short}: at least 2 batches")
    args.alone = load_alone(parser, args.alone) if args.alone else {}
    return args


def load_alone(parser, path):
    try:
        alone = json.loads(Path(path).read_text())
        needed = alone["facts"]["steps"] if parser.prog.endswith("check") else alone["speed"]
    except (OSError, ValueError, KeyError, TypeError):
        needed = None
    if not needed:
        parser.error(f"--alone {path}: no file that {parser.prog} --json wrote after some steps")
    return alone


# ------------------------------------------------------------------ preflight


def preflight(words):
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser("ddp-doctor preflight", description=PREFLIGHT, formatter_class=style)
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="compare all files in it, too")
    add("--device", choices=("cpu", "cuda"), help="what ranks run on (cuda if there is a GPU)")
    add("--timeout", type=int, default=30, help="seconds that ranks wait (30)")
    add("--min-busbw", type=float, metavar="GB/S", help="fail below this bandwidth (256 MiB)")
    args = parser.parse_args(words)
    if not 1 <= args.timeout <= 600:
        parser.error(f"--timeout {args.timeout}: from 1 to 600")
    missing = [name for name in NEEDED if name not in os.environ]
    if len(missing) == len(NEEDED) and args.data is None and args.min_busbw is None:
        from .preflight import host

        return host.main()
    if missing:
        parser.error(f"start it with torchrun: {', '.join(missing)} not set")
    # Our lines name the fault. PyTorch would add pages of C++ frames, and reads this at its import.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from .preflight import nodes  # it imports torch, which takes seconds

    return nodes.main(args)


# ------------------------------------------------------------------ log


def read_logs(words):
    from . import log

    style = argparse.RawDescriptionHelpFormatter
    parser = Parser("ddp-doctor log", description=LOG, formatter_class=style)
    parser.add_argument("files", nargs="*", metavar="FILE", help="a log, a folder of logs, or -")
    parser.add_argument("--json", metavar="FILE", help="write all facts to this file, too")
    args = parser.parse_args(words)
    for path in args.files:
        if path != "-" and not os.path.exists(path):
            parser.error(f"{path}: there is no such file")
    try:
        return log.run(args.files, args.json)
    except log.NoText:
        parser.error("there is no text in these files")
    except BrokenPipeError:  # whoever read the output has enough, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        refuse(f"error: {error}")


# A verb gets the words after it, and returns the exit code.
VERBS = {"check": check, "speed": time_steps, "preflight": preflight, "log": read_logs}

if __name__ == "__main__":
    sys.exit(main())

"""What the rehearsal's commands share: arguments, and errors in one line."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class RehearsalError(Exception):
    """Something cannot be done; the message is one line that says what and why."""


class Parser(argparse.ArgumentParser):
    """Reports bad input in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def number(low: int, high: int) -> Callable[[str], int]:
    """Return an argparse type: an int from low to high."""

    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


def parser_of_actions(description: str, net: str) -> tuple[Parser, argparse.Action]:
    """Return a parser with the actions with, up and down, and the actions to add others to."""
    usage = f"{Path(sys.argv[0]).name} [--net NAME] ACTION ... [-- COMMAND]"
    parser = Parser(description=description, usage=usage)
    parser.add_argument("--net", default=net, help="which set of nodes: one word")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    helps = {"with": "make so many nodes, run COMMAND, remove them", "up": "make nodes that stay"}
    for name, text in helps.items():
        action = actions.add_parser(name, help=f"NUMBER: {text}")
        action.add_argument("number", type=number(1, 32), metavar="NUMBER")
    actions.add_parser("down", help="end all that runs on the nodes and remove them")
    return parser, actions


def parse_with_command(parser: Parser) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after "--", which the actions `with` and `run` need."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:split]), words[split + 1 :]
    if args.action in ("with", "run") and not command:
        fail("a command is missing: -- COMMAND")
    if args.action not in ("with", "run") and command:
        fail(f"{args.action} takes no command")
    return args, command


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2."""
    print(f"{Path(sys.argv[0]).stem}: error: {message}", file=sys.stderr)
    sys.exit(2)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exit with what main returns. An expected error and Ctrl-C end in one line, no traceback."""
    try:
        sys.exit(main())
    except (RehearsalError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print(f"\n{Path(sys.argv[0]).stem}: interrupted", file=sys.stderr)
        sys.exit(130)

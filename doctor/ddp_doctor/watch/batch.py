"""Watches what the script calls its batch: is it that of all ranks, by a flag or a comment?

Only the text of the script tells it. It is read once, when the first epoch of training begins.
"""

import argparse
import ast
import re
import sys

from ..run.events import GlobalBatch
from .lines import script_files, shown, text_of, tree_of, without_collection
from .note import now, write

ALL = "(ranks|gpus|devices|processes|workers|nodes)"
OF_ALL_RANKS = re.compile(
    r"(global|total|overall|effective)[ _-](train[ _-])?(mini-?)?batch"
    rf"|batch\b.{{0,60}}\b(over|of|across|on|for) all (the )?{ALL}"
    r"|batch\b.{0,60}\bin total\b",
    re.IGNORECASE | re.DOTALL,
)
# The words explain how the batch of a rank and that of all ranks belong together.
OF_EACH_RANK = re.compile(r"\b(per|each|every|one)[ _-]?(rank|gpu|device|process|node)|[*]|times")


def note_batch_words():
    """Write an event for each number that the script itself calls the batch of all ranks."""
    for path in dict.fromkeys(script_files()):
        text = text_of(path)
        # Most files have no such words, and to parse all files of a large script takes seconds.
        if path.endswith(".py") and OF_ALL_RANKS.search(text):
            note_numbers(path, text)


@without_collection
def note_numbers(path, text):
    lines = text.splitlines()
    for statement in statements(path):
        number = number_of(statement)
        last = min(statement.end_lineno, len(lines))
        words = "\n".join(lines[first_line(statement, lines) - 1 : last])
        is_global = OF_ALL_RANKS.search(words) and not OF_EACH_RANK.search(words)
        if number is not None and is_global:
            write(GlobalBatch(now(), f"{shown(path)}:{statement.lineno}", number))


def statements(path):
    nodes = ast.walk(tree_of(path))
    return [node for node in nodes if isinstance(node, (ast.Assign, ast.Expr))]


def first_line(statement, lines):
    """A comment that stands alone above a statement belongs to it."""
    number = statement.lineno
    while number > 1 and lines[number - 2].lstrip().startswith("#"):
        number -= 1
    return number


def number_of(statement):
    """The whole number that `name = 64` or `parser.add_argument("--name", default=64)` gives."""
    value = statement.value
    if isinstance(statement, ast.Assign):
        is_number = isinstance(value, ast.Constant) and type(value.value) is int
        return value.value if is_number else None
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("add_argument"):
        return number_of_flag(value)
    return None


def number_of_flag(call):
    """What the command line says, or else the default."""
    flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
    flags = [flag for flag in flags if isinstance(flag, str) and flag.startswith("-")]
    default = None
    for keyword in call.keywords:
        if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
            default = keyword.value.value
    if not flags:
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = lambda message: None  # the script itself reports bad input
    parser.add_argument(*flags, dest="number", default=default)
    known, _ = parser.parse_known_args(sys.argv[1:])
    number = str(known.number)
    return int(number) if number.isdigit() else None

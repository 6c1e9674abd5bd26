"""Watches at which port the ranks meet: is it free, or a number that the script always chooses?

The port may be chosen by another process than the one that joins: by the parent that starts the
ranks. A parent is no rank and has no file, so it leaves what it knows in the environment.
"""

import ast
import operator
import os
import re

from ..run.events import FixedPort
from .lines import is_script, line_of, script_files, script_frames, shown, text_of, tree_of
from .note import now, quietly, write
from .patch import listen

CHOSEN = "DDP_DOCTOR_PORT"  # "12355 train.py:20": what was put into MASTER_PORT, and where
SETTINGS = "DDP_DOCTOR_SETTINGS"  # files of settings that were read
ENDINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")


def install():
    listen(hear, "os.putenv", "open")


def hear(event, args):
    """An audit hook, of ranks and of those who start them."""
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            quietly(note_environment, os.fsdecode(args[1]))
        elif event == "open" and isinstance(args[0], str) and args[0].endswith(ENDINGS):
            quietly(note_settings, args[0])
    except Exception:  # the interpreter is shutting down
        pass


def note_environment(port):
    """Only the script's own choice counts, and not that of the launcher."""
    for frame in script_frames():
        os.environ[CHOSEN] = f"{port} {line_of(frame)}"
        return


def note_settings(path):
    path = os.path.abspath(path)
    known = os.environ.get(SETTINGS, "").split(os.pathsep)
    if is_script(path) and path not in known and len(known) < 20:
        os.environ[SETTINGS] = os.pathsep.join([*known, path])


def note_port(args, kwargs):
    """Before init_process_group(*args, **kwargs): is the port a number in one of the files?"""
    port, at = port_of([*args, *kwargs.values()])
    if port is None:
        return
    for find, computed in ((line_with, False), (line_that_computes, True)):
        for path in candidates(at):
            line = find(port, path)
            if line:
                number_at = f"{shown(path)}:{line}"
                name = os.path.basename(path)
                write(FixedPort(now(), at, int(port), name, number_at, computed))
                return


def port_of(values):
    """-> the port and the line that chose it, or None and None."""
    for value in values:
        found = re.match(r"tcp://.*:([1-9]\d*)", value) if isinstance(value, str) else None
        if found:
            for frame in script_frames():
                return found[1], line_of(frame)
    port, _, at = os.environ.get(CHOSEN, "").partition(" ")
    if port.isdigit() and port != "0" and port == os.environ.get("MASTER_PORT"):
        return port, at
    return None, None


def candidates(at):
    """The file of the line, all modules of the script, and the settings that were read."""
    paths = [at.rpartition(":")[0]]
    paths += script_files()
    paths += os.environ.get(SETTINGS, "").split(os.pathsep)
    return dict.fromkeys(paths)


def line_with(port, path):
    """The first line of the file that has the number, or 0."""
    for number, text in enumerate(text_of(path).splitlines(), 1):
        if re.search(rf"(?<!\d){port}(?!\d)", text):
            return number
    return 0


# ------------------------------------------------------------------ a port that is computed

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
# They return the same in each run of a user on a machine.
CONSTANT = {
    name: getattr(os, name) for name in ("getuid", "geteuid", "getgid") if hasattr(os, name)
}
PURE = {"hash": hash, "int": int, "abs": abs}


def line_that_computes(port, path):
    """The line of a computation like `2 ** 15 + os.getuid() % 1000` with this result, or 0.

    A port of the system, of a random number or of a job's number is not computed from constants.
    """
    if not path.endswith(".py"):
        return 0
    tree = tree_of(path)
    names = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and int(port) in values(node, names):
            return node.lineno
    return 0


def constants_of(tree):
    """{name: the expression that the file assigns to it, if it does so once}"""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def values(node, names, depth=8):
    """The whole numbers that an expression of constants may have: none if it has other parts."""
    if depth == 0:
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if type(node.value) is int else []
    if isinstance(node, ast.Name):
        return values(names[node.id], names, depth - 1) if node.id in names else []
    if isinstance(node, ast.IfExp):
        return values(node.body, names, depth - 1) + values(node.orelse, names, depth - 1)
    if isinstance(node, ast.Call):
        return values_of_call(node, names, depth)
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATIONS:
        return []
    found = []
    for left in values(node.left, names, depth - 1):
        for right in values(node.right, names, depth - 1):
            too_large = isinstance(node.op, (ast.Pow, ast.LShift)) and not 0 <= right <= 32
            by_zero = isinstance(node.op, (ast.Mod, ast.FloorDiv)) and right == 0
            if not too_large and not by_zero:
                found.append(OPERATIONS[type(node.op)](left, right))
    return found[:16]


def values_of_call(call, names, depth):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in CONSTANT and not call.args:
        return [CONSTANT[name]()]
    if name in PURE and len(call.args) == 1 and not call.keywords:
        return [PURE[name](value) for value in values(call.args[0], names, depth - 1)]
    return []

"""Reads the script: which line of it leads to the line in which a mistake shows?

Lines are "file:line", as events have them. What cannot be read has no such line: an empty text.
"""

import ast
import functools
import re
from pathlib import Path

from ..run.events import EpochBegan, Joined

# Words by which a script asks which rank it is, or whether there is a GPU.
RANK = re.compile(
    r"rank|master|main_process|is_main|is_chief|primary|process_index|global_zero|process_zero"
    r"|RANK\b[^=!<>]{0,12}[=!<>]|not \w*RANK\b"  # and not `"RANK" in os.environ`
)
GPU = re.compile(r"cuda|gpu|accel")
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
WRAPPERS = ("DistributedDataParallel", "DDP")
BLOCKS = ("body", "orelse", "finalbody")


@functools.cache
def tree_of(file):
    try:
        return ast.parse(Path(file).read_text(errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def parted(line):
    file, _, number = line.rpartition(":")
    return (file, int(number)) if number.isdigit() else ("", 0)


@functools.cache
def lines_of(file):
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []


def code_of(line):
    """The text of this line, up to the end of its statement or of the head of its block."""
    file, number = parted(line)
    end = number
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.stmt) and has(node, number):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            end = max(last, number)  # an inner statement comes later in this walk
    return "\n".join(lines_of(file)[number - 1 : end]).strip() if number else ""


def has(node, number):
    return node.lineno <= number <= node.end_lineno


def blocks_of(node):
    """Its lists of statements."""
    found = [getattr(node, name, None) for name in BLOCKS]
    return [block for block in found if isinstance(block, list)]


def contains(block, number):
    return any(has(statement, number) for statement in block)


def files_of(run):
    """The script's files that make steps, read data or join the group."""
    lines = [event.at for event in run.all(Joined)]
    for event in run.all(EpochBegan):
        lines += [event.at, *event.called_from]
    for rank in run.ranks:
        lines += [work.step.at for work in rank.steps]
    return {line.rpartition(":")[0] for line in lines}


# ------------------------------------------------------------------ an `if` by the rank


def guard_of(lines):
    """The innermost `if` by the rank around the first of these lines that has one."""
    for line in lines:
        file, number = parted(line)
        tree = tree_of(file)
        guards = [guard for node in ast.walk(tree) for guard in guards_in(node, number, tree)]
        if guards:
            return f"{file}:{max(guards)}"
    return ""


def guards_in(node, number, tree):
    """Lines of the `if`s that this node has for the line with this number."""
    if isinstance(node, ast.If) and contains([*node.body, *node.orelse], number):
        if asks_for_rank(node.test, tree):
            yield node.lineno
    if isinstance(node, ast.IfExp) and has(node, number) and asks_for_rank(node.test, tree):
        yield node.test.lineno
    if isinstance(node, ast.FunctionDef) and contains(node.body, number):
        # @rank_zero_only, @accelerator.on_main_process
        yield from (one.lineno for one in node.decorator_list if asks(one, RANK))
    for block in blocks_of(node):
        yield from left_before(block, number, tree)


def left_before(block, number, tree):
    """`if rank != 0: return` stands before the line, in the same block."""
    if not contains(block, number):
        return
    for statement in block:
        if has(statement, number):
            return
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], LEAVES):
            if asks_for_rank(statement.test, tree):
                yield statement.lineno


def asks(test, words):
    return words.search(ast.unparse(test)) is not None


def asks_for_rank(test, tree):
    """Also by a name: `chief = get_rank() == 0`, `writer = Writer() if rank == 0 else None`."""
    if asks(test, RANK):
        return True
    for name in {name_of(node) for node in ast.walk(test)} - {""}:
        values = assigned(name, tree)
        chooses = len(values) == 1 and isinstance(values[0], (ast.Compare, ast.IfExp, ast.BoolOp))
        if chooses and asks(getattr(values[0], "test", values[0]), RANK):
            return True
    return False


def name_of(node):
    """The last part of a name: that of a variable, an attribute or a function."""
    return getattr(node, "attr", getattr(node, "id", ""))


def assigned(name, tree):
    """What a file assigns to this name, or what a function of this name returns."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == name:
            found.append(node.value)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found += [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
    return found


# ------------------------------------------------------------------ loops


def loops_around(line):
    """The loops whose bodies have this line, the outer ones first."""
    file, number = parted(line)
    loops = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.For, ast.While)) and contains(node.body, number):
            loops.append(node)
    return loops


def loop_around(lines):
    """The innermost loop around the first of these lines that has one."""
    for line in lines:
        loops = loops_around(line)
        if loops:
            return f"{parted(line)[0]}:{loops[-1].lineno}"
    return ""


# ------------------------------------------------------------------ an attribute, a method


def assignment_of(attribute, files):
    """The only line of these files that assigns this attribute, or an empty text."""
    return only_line(files, lambda node: is_assignment(node, attribute))


def entry_assigned(key, files):
    """The only line of these files that assigns this entry: `group["lr"] = rate`."""

    def is_wanted(node):
        targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
        entries = [target for target in targets if isinstance(target, ast.Subscript)]
        return key in [getattr(target.slice, "value", "") for target in entries]

    return only_line(files, is_wanted)


def call_of(attribute, files):
    """The only line of these files that calls this method, or an empty text."""
    return only_line(files, lambda node: is_call(node, attribute))


def keyword_of(name, value, files):
    """The only line of these files that gives this value to an argument, or an empty text."""
    lines = set()
    for file, node in arguments_named(name, files):
        if getattr(node, "value", ...) is value:
            lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def arguments_named(name, files):
    """-> [(file, value)] of `Trainer(name=value)`, and of a dictionary: `{"name": value}`"""
    found = []
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.keyword) and node.arg == name:
                found.append((file, node.value))
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values):
                    if getattr(key, "value", None) == name:
                        found.append((file, value))
    return found


def the_only(lines):
    """The line, if there is only one. Where two are possible, the doctor names none."""
    return next(iter(lines)) if len(lines) == 1 else ""


def only_line(files, is_wanted):
    lines = []
    for file in sorted(files):
        lines += [f"{file}:{node.lineno}" for node in ast.walk(tree_of(file)) if is_wanted(node)]
    return the_only(lines)


def is_assignment(node, attribute):
    """`module.attribute = ...`, `group["attribute"] = ...`"""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AugAssign):
        targets = [node.target]
    names = [getattr(target, "attr", "") for target in targets]
    for target in targets:
        if isinstance(target, ast.Subscript):
            names.append(getattr(target.slice, "value", ""))
    return attribute in names


def is_call(node, attribute):
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == attribute


# ------------------------------------------------------------------ a wrapper for GPUs only


def wraps_on_gpus_only(files):
    """The `if` by which these files call DDP on a GPU only, if each of their calls has one."""
    found = []
    for file in sorted(files):
        tree = tree_of(file)
        wrappers = [node for node in ast.walk(tree) if is_wrapper(node)]
        for call in wrappers:
            tests = [node for node in ast.walk(tree) if is_gpu_guard(node, call.lineno)]
            if not tests:
                return ""
            found.append(f"{file}:{min(node.lineno for node in tests)}")
    return found[0] if found else ""


def is_wrapper(node):
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in WRAPPERS


def is_gpu_guard(node, number):
    if isinstance(node, ast.IfExp):
        return asks(node.test, GPU) and has(node, number)
    if not isinstance(node, ast.If) or not asks(node.test, GPU):
        return False
    branches = [block for block in (node.body, node.orelse) if wraps(block)]
    return len(branches) == 1 and contains(branches[0], number)


def wraps(block):
    return any(is_wrapper(node) for statement in block for node in ast.walk(statement))

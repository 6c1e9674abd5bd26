"""Reads the script: which line changes weights or gradients by hand, and only on some ranks?

As in values.py, where two lines are possible, the answer is an empty text.
"""

import ast
import re

from .source import RANK, asks, blocks_of, has, parted, the_only, tree_of
from .values import (
    FUNCTIONS,
    WORLD,
    Value,
    called,
    function_around,
    is_call,
    is_name,
    is_text,
    made,
    parts_of,
    targets_of,
)

CHANGING = ("load_state_dict", "update_parameters", "clip_grad_norm_", "clip_grad_value_")
WEIGHT = re.compile(r"weight|codebook|\.data$|\.bias$")
IN_PLACE = re.compile(r"(copy|lerp|mul|add|sub|div|fill|normal|uniform|clamp|zero)_")
OF_A_MODEL = re.compile(r"parameters\(\)|state_dict\(\)|\.data\b|\.weight|\.bias|buffers\(\)")


def guarded_change(files):
    """The only `if` by the rank in which weights are changed, also by a function of these files."""
    changing = {}
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, FUNCTIONS):
                changing[node.name] = changing.get(node.name, False) or changes(node)
    guards = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            if not isinstance(node, ast.If) or not asks(node.test, RANK):
                continue
            for statement in node.body:
                calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call)]
                if changes(statement) or any(changing.get(called(call)) for call in calls):
                    guards.add(f"{file}:{node.lineno}")
    return the_only(guards)


def loads_optimizer(line):
    """Does the `if` in this line load the state of an optimizer, also by a function of its file?"""
    file, number = parted(line)
    tree = tree_of(file)
    inside = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno == number:
            inside += node.body
    names = {called(one) for part in inside for one in ast.walk(part) if is_call(one)}
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name in names:
            inside.append(node)
    return any(is_state_load(one) for part in inside for one in ast.walk(part))


def is_state_load(node):
    """`optimizer.load_state_dict(state)`"""
    loads = is_call(node) and called(node) == "load_state_dict"
    return loads and "opt" in ast.unparse(node.func).lower()


def changed_in_place(files):
    """The only line that overwrites some rows of a weight, as `weight[dead] = ...` does."""
    lines = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            for target in targets_of(node):
                is_part = isinstance(target, ast.Subscript) and not is_text(target.slice)
                if is_part and WEIGHT.search(ast.unparse(target.value)):
                    lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def changes(scope):
    """Does it change weights in place, by load_state_dict(), or by a loop over parameters?"""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and called(node) in CHANGING:
            return True
        if isinstance(node, ast.For) and OF_A_MODEL.search(ast.unparse(node.iter)):
            if any(is_in_place(inner) for inner in ast.walk(node)):
                return True
        if is_in_place(node) and OF_A_MODEL.search(ast.unparse(node)):
            return True
    return False


def is_in_place(node):
    if isinstance(node, ast.Call):
        return IN_PLACE.fullmatch(called(node)) is not None
    targets = targets_of(node) if isinstance(node, (ast.Assign, ast.AugAssign)) else []
    return any(getattr(target, "attr", "") == "data" for target in targets)


# ------------------------------------------------------------------ by their names

OF_AUTOGRAD = ("requires_grad_", "detach_", "zero_grad_", "share_memory_", "record_stream_")


def changed_by_name(names, files):
    """The line that changes one of these parameters or buffers by hand.

    Of several lines in one function it is the first one: the others may follow from it.
    """
    words = {part for name in names for part in name.split(".") if not part.isdigit()}
    nodes = [(file, node) for file in sorted(files) for node in ast.walk(tree_of(file))]
    last = {name.rpartition(".")[2] for name in names}
    return first_change(nodes, last) or first_change(nodes, words)


def first_change(nodes, words):
    lines = {}  # of each function
    for file, node in nodes:
        if words & words_changed(file, node):
            scope = function_around(file, node.lineno)
            lines.setdefault(id(scope), []).append((file, node.lineno))
    if len(lines) != 1:
        return ""
    file, number = min(*lines.values())
    return f"{file}:{number}"


def words_changed(file, node):
    """The names in what this node changes in place: `self.codebook.data.copy_(...)` has three."""
    changed = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method.endswith("_") and not method.startswith("_") and method not in OF_AUTOGRAD:
            changed.append(node.func.value)
            if ast.unparse(node.func.value).endswith("init"):  # nn.init.normal_(weight)
                changed += node.args[:1]
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        for target in targets_of(node):
            is_part = isinstance(target, ast.Subscript) and not is_text(target.slice)
            if is_part or getattr(target, "attr", "") == "data" or isinstance(node, ast.AugAssign):
                changed.append(target)
            elif isinstance(target, ast.Attribute) and not is_constructed(node.value):
                changed.append(target)  # self.codebook = self.codebook * 0.9 + ...
    words = set()
    for one in changed:
        words |= names_of(file, one)
    return words


def is_constructed(node):
    """`self.codebook = nn.Parameter(...)` makes a parameter, and changes none."""
    return isinstance(node, ast.Call) and called(node) in ("Parameter", "Buffer", "register_buffer")


def names_of(file, node, depth=2):
    """The names in an expression, and those in the value of its first name."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    words = set()
    for inner in ast.walk(node):
        words.add(getattr(inner, "attr", getattr(inner, "id", "")))
    base = node
    while isinstance(base, (ast.Attribute, ast.Subscript, ast.Call)):
        base = base.func if isinstance(base, ast.Call) else base.value
    if depth and isinstance(base, ast.Name) and base.id != "self":
        value = made(Value(file, base.lineno, base))
        if value is not None and (is_name(value.node) or isinstance(value.node, ast.Subscript)):
            words |= names_of(file, value.node, depth - 1)
    return words


# ------------------------------------------------------------------ gradients, late values

OF_WEIGHT = re.compile(r"\.(weight|bias)\b")


def changed_weights(files):
    """The only line that changes weights in place: `p.data.add_(noise)`, `head.bias.fill_(x)`.

    An average of the weights, as by `zip(ema.parameters(), model.parameters())`, is left out.
    """
    lines = set()
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            inside = []
            if isinstance(node, ast.For) and OF_A_MODEL.search(ast.unparse(node.iter)):
                inside = [] if "zip" in ast.unparse(node.iter) else [*ast.walk(node)]
            elif is_call(node) and OF_WEIGHT.search(ast.unparse(node.func)):
                inside = [node]
            for inner in filter(is_in_place, inside):
                receiver = getattr(getattr(inner, "func", None), "value", None)
                if receiver is None or not is_gradient(receiver):
                    lines.add(f"{file}:{inner.lineno}")
    return the_only(lines)


def averaged_apart(files):
    """The only average of weights: the condition by which it is made, or else its line."""
    lines = set()
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.For) and is_average(node):
                line = f"{file}:{node.body[0].lineno}"
                lines.add(condition_around(line) or line)
    return the_only(lines)


AVERAGES = ("all_reduce", "all_gather", "reduce")
PARAMETERS = ("parameters", "named_parameters")


def average_without_buffers(files):
    """The only average over the ranks of all parameters of a model that leaves out its buffers.

    It is a loop over them, or a vector of them. An average of gradients is something else.
    """
    reducing = {*AVERAGES}
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, FUNCTIONS) and calls_one_of(AVERAGES, node):
                reducing.add(node.name)
    lines = set()
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.For) and calls_one_of(reducing, *node.body):
                taken = [*parts_of(Value(file, node.lineno, node.iter))]
            elif is_call(node) and called(node) == "parameters_to_vector":
                inside = function_around(file, node.lineno)
                taken = [node] if calls_one_of(reducing, inside) else []
                taken += node.args
            else:
                continue
            texts = "".join(map(ast.unparse, [node, *taken]))
            if calls_one_of(PARAMETERS, *taken) and not re.search(r"buffers\(|\bgrad", texts):
                lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def calls_one_of(names, *nodes):
    inner = [one for node in nodes for one in ast.walk(node)]
    return any(is_call(one) and called(one) in names for one in inner)


def is_average(loop):
    """`for a, b in zip(ema.parameters(), model.parameters()): a.lerp_(b, 0.1)`"""
    pairs = ast.unparse(loop.iter)
    of_models = "zip" in pairs and OF_A_MODEL.search(pairs)
    return bool(of_models) and any(map(is_in_place, ast.walk(loop)))


def changed_gradient(files):
    """The only line that changes gradients by hand: `p.grad.mul_(...)`, `p.grad = ...`"""
    lines = set()
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            changed = []
            if isinstance(node, ast.Call) and called(node).endswith("_"):
                changed.append(getattr(node.func, "value", None))
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                changed += [target for target in targets_of(node) if not is_none(node.value)]
            for one in changed:
                # To divide by the number of ranks is a part of the average.
                if is_gradient(one) and not asks(node, WORLD):
                    lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def is_gradient(node):
    while isinstance(node, ast.Subscript) or getattr(node, "attr", "") == "data":
        node = node.value
    return getattr(node, "attr", "") == "grad"


INITIALISES = re.compile(r"reset_parameters|reinit\w*|init_weights|(kaiming|xavier|trunc)_\w+_")


def initialised_late(wrapped, files):
    """The only line below DDP, in its function, that gives weights new random values."""
    file, number = parted(wrapped)
    inside = set()  # functions of these files that do so
    for name in files:
        for node in ast.walk(tree_of(name)):
            if isinstance(node, FUNCTIONS) and any(map(initialises, ast.walk(node))):
                inside.add(node.name)
    lines = set()
    for node in ast.walk(function_around(file, number)):
        if is_call(node) and node.lineno > number:
            if initialises(node) or called(node) in inside:
                lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def initialises(node):
    if not is_call(node):
        return False
    function = ast.unparse(node.func)
    return INITIALISES.fullmatch(called(node)) is not None or "init." in function


def condition_around(line):
    """The innermost `if` around this line that does not count steps, as accumulation does."""
    file, number = parted(line)
    tests = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.If) and has(node, number) and number > node.test.end_lineno:
            tests.append(node)
        for block in blocks_of(node):
            tests += skipping(block, number)
    tests = [node for node in tests if not counts_steps(node)]
    return f"{file}:{max(node.lineno for node in tests)}" if tests else ""


def skipping(block, number):
    """`if not isfinite(loss): continue` stands before the line, in the same block.

    Or an `except` does so, which has no test.
    """
    found = []
    if any(has(statement, number) for statement in block):
        for statement in block:
            if has(statement, number):
                break
            for part in (statement, *getattr(statement, "handlers", [])):
                skips = isinstance(part, (ast.If, ast.ExceptHandler))
                if skips and isinstance(part.body[-1], ast.Continue):
                    found.append(part)
    return found


def counts_steps(node):
    text = ast.unparse(getattr(node, "test", node.body[-1]))
    return "%" in text or "__name__" in text or "accum" in text or "sync" in text

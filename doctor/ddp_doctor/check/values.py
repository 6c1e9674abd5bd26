"""Reads the script: in which line was a value made that another line uses?

Only what the text of one file says is followed: the nearest assignment above in the same function,
the only assignment of the file, or the argument of the only call of a function. Where two lines are
possible, the answer is an empty text.
"""

import ast
import re
from dataclasses import dataclass, field, replace

from .source import (
    RANK,
    arguments_named,
    asks,
    blocks_of,
    has,
    loops_around,
    name_of,
    parted,
    the_only,
    tree_of,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMES = (ast.Name, ast.Attribute)
WORLD = re.compile(r"world|num_processes|num_replicas|n_?gpus?\b|ngpus|device_count|n_ranks", re.I)
# What gives no model with weights of its own.
NO_NEW_MODEL = re.compile(r"copy|AveragedModel|load|from_pretrained|Loss|DDP|Distributed|prepare")
LOSS_FUNCTIONS = ("training_step", "compute_loss")  # of Lightning, and of the Trainer
UNCHANGED = ("scale", "float", "mean", "sum", "to", "squeeze")  # methods: the loss is before them


@dataclass(frozen=True)
class Value:
    """An expression that stands in this line of a file.

    Of a function that several lines call, `callers` tells which ones have led to the value.
    """

    file: str
    number: int
    node: ast.expr
    callers: tuple[str, ...] = field(default=(), compare=False)  # the nearest one first

    @property
    def line(self):
        return f"{self.file}:{self.number}"

    def part(self, node):
        """An expression in this one, or next to it."""
        return replace(self, node=node)

    def given_in(self, number, node):
        """An expression in another line of the same function."""
        return replace(self, number=number, node=node)


# ------------------------------------------------------------------ functions and calls


def function_around(file, number):
    """The innermost function that has this line, or the whole file."""
    found = tree_of(file)
    for node in ast.walk(found):
        if isinstance(node, FUNCTIONS) and has(node, number):
            found = node
    return found


def called(call):
    """The name of the function or method that is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def calls_at(line, names=()):
    """The calls that have this line, the outer ones first."""
    file, number = parted(line)
    calls = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call) and has(node, number):
            if not names or called(node) in names:
                calls.append(node)
    return calls


def calls_of(names, files):
    """-> [(file, call)] of all calls of functions and methods with these names."""
    found = []
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and called(node) in names:
                found.append((file, node))
    return found


def only_call(names, files):
    """The line of the only call of functions or methods of these names, or an empty text."""
    calls = calls_of(names, files)
    return f"{calls[0][0]}:{calls[0][1].lineno}" if len(calls) == 1 else ""


def reduced_to_one(line, files):
    """Does this line, or the function that it calls, use dist.reduce(), whose sum one rank gets?

    The line of the only such call, or an empty text. Accelerate's reduce() gives it to all.
    """
    calls = calls_of(("reduce",), files)
    own = [(file, call) for file, call in calls if "dist" in ast.unparse(call.func)]
    if len(own) != 1 or not line:
        return ""
    file, call = own[0]
    function = function_around(file, call.lineno)
    names = {called(one) for one in calls_at(line)}
    is_here = function_around(*parted(line)) is function
    return f"{file}:{call.lineno}" if is_here or getattr(function, "name", "") in names else ""


def argument(call, place, *names):
    """An argument of a call, by its place or its names. None: it has no such argument."""
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    if place is not None and not starred and 0 <= place < len(call.args):
        return call.args[place]
    return None


def argument_of(line, callees, place, *names, callers=()):
    """The argument of the outermost such call in this line, as a Value, or None."""
    file, number = parted(line)
    for call in calls_at(line, callees):
        node = argument(call, place, *names)
        if node is not None:
            return Value(file, node.lineno, node, tuple(callers))
        for keyword in call.keywords:
            if keyword.arg is None:
                options = Value(file, number, keyword.value, tuple(callers))
                given = entry_given(made(options), names)
                if given is not None:
                    return given
    return None


def only_keyword(name, files):
    """What the only argument of this name in these files is, as a Value, or None."""
    given = arguments_named(name, files)
    return Value(given[0][0], given[0][1].lineno, given[0][1]) if len(given) == 1 else None


def entry_given(value, names):
    """The value of one of these names in a dictionary that a call gets as **options."""
    node = getattr(value, "node", None)
    pairs = []
    if isinstance(node, ast.Dict):
        pairs = [(getattr(key, "value", None), given) for key, given in zip(node.keys, node.values)]
    elif isinstance(node, ast.Call) and called(node) == "dict":
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    for name, given in pairs:
        if name in names:
            return value.given_in(given.lineno, given)
    return None


# ------------------------------------------------------------------ assignments


def targets_of(node):
    """What this statement gives a value to."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
        targets = [node.target]
    else:
        return []
    parts = []
    for target in targets:
        parts += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return parts


def assignments(scope, name):
    """The statements that give this name a value, in their order."""
    found = []
    for node in ast.walk(scope):
        if any(ast.unparse(target) == name for target in targets_of(node)):
            found.append(node)
    return sorted(found, key=lambda node: node.lineno)


def made(value):
    """The Value of the expression that a name stands for. Others stand for themselves."""
    if not is_name(value.node):
        return value
    name = ast.unparse(value.node)
    scope = function_around(value.file, value.number)
    above = [node for node in assignments(scope, name) if node.end_lineno < value.number]
    if above:
        return value_given(value.file, above[-1], name, value.callers)
    if isinstance(scope, FUNCTIONS) and name in parameters(scope):
        return argument_given(value, scope, name)
    return given_elsewhere(value, name)


def is_name(node):
    """`rate`, `self.rate`, `config["rate"]`"""
    return isinstance(node, NAMES) or (isinstance(node, ast.Subscript) and is_text(node.slice))


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def given_elsewhere(value, name):
    """What another function of the class, or else the only place of the file, gives this name."""
    scopes = [tree_of(value.file)]
    around = class_around(value.file, value.number)
    if name.startswith("self.") and around is not None:
        scopes.insert(0, around)
    for scope in scopes:
        found = assignments(scope, name)
        places = {function_around(value.file, node.lineno) for node in found}
        if len(places) == 1:
            return value_given(value.file, found[-1], name)
        if found:
            return None
    if isinstance(value.node, ast.Subscript):
        return entry_of(value.file, value.node.slice.value)
    if isinstance(value.node, ast.Attribute):
        return attribute_given(value.file, value.node.attr)
    return None


def class_around(file, number):
    """The innermost class that has this line, or None."""
    found = None
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ClassDef) and has(node, number):
            found = node
    return found


def attribute_given(file, attribute):
    """The only value of this attribute: of any object, in a class body, or a flag's default."""
    found = []
    for node in ast.walk(tree_of(file)):
        for target in targets_of(node):
            if getattr(target, "attr", "") == attribute:
                found.append(value_given(file, node, ast.unparse(target)))
        for entry in node.body if isinstance(node, ast.ClassDef) else ():
            if attribute in [getattr(target, "id", "") for target in targets_of(entry)]:
                found.append(value_given(file, entry, attribute))
        if isinstance(node, ast.Call) and is_flag(node, attribute):
            default = argument(node, None, "default")
            found.append(Value(file, node.lineno, default) if default is not None else None)
    return found[0] if len(found) == 1 else None


def is_flag(call, name):
    """`parser.add_argument("--batch-size")` gives args.batch_size."""
    if called(call) != "add_argument":
        return False
    words = [one.value for one in call.args if is_text(one)]
    return name in [word.lstrip("-").replace("-", "_") for word in words]


def entry_of(file, key):
    """The value of this key in the only dictionary of the file that has it."""
    found = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Dict):
            for name, given in zip(node.keys, node.values):
                if getattr(name, "value", None) == key:
                    found.append(Value(file, given.lineno, given))
    return found[0] if len(found) == 1 else None


def value_given(file, statement, name, callers=()):
    node = getattr(statement, "value", None)
    if node is None:
        return None
    if isinstance(statement, ast.AugAssign):
        node = ast.BinOp(statement.target, statement.op, node)
    for target in getattr(statement, "targets", []):
        if isinstance(target, ast.Tuple):
            whole = Value(file, statement.lineno, node, callers)
            return part_given(whole, target.elts, name)
    return Value(file, statement.lineno, node, callers)


def part_given(value, targets, name):
    """`a, b = x, y` gives x to a. A function that returns `x, y` does so, too."""
    inner = value
    if isinstance(value.node, ast.Call):
        inner = returned(value) or value
    if isinstance(inner.node, ast.Tuple):
        for part, given in zip(targets, inner.node.elts):
            if ast.unparse(part) == name:
                return inner.given_in(given.lineno, given)
    return value


def returned(value):
    """What a called function of the same file returns, if one `return` only gives a value."""
    found = all_returned(value)
    return found[0] if len(found) == 1 else None


def all_returned(value):
    """The values of each `return` of the only function of the same file that is called."""
    if not isinstance(value.node, ast.Call):
        return []
    functions = functions_named(value.file, called(value.node))
    if not functions:
        functions = functions_of_object(value)
    if len(functions) != 1:
        return []
    found = []
    for node in ast.walk(functions[0]):
        if isinstance(node, ast.Return) and node.value is not None:
            callers = (f"{value.file}:{value.node.lineno}", *value.callers)
            found.append(Value(value.file, node.lineno, node.value, callers))
    return found


def parameters(function):
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def functions_named(file, name):
    nodes = ast.walk(tree_of(file))
    return [node for node in nodes if isinstance(node, FUNCTIONS) and node.name == name]


def classes_named(file, name):
    nodes = ast.walk(tree_of(file))
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


def functions_of_object(value):
    """After `loss_of = Criterion()`, `loss_of(x)` calls forward() or __call__() of its class."""
    if not isinstance(value.node.func, NAMES):
        return []
    first = made_first(value.part(value.node.func))
    if first is None or not isinstance(first.node, ast.Call):
        return []
    found = []
    for kind in classes_named(value.file, called(first.node)):
        for node in kind.body:
            if isinstance(node, FUNCTIONS) and node.name in ("forward", "__call__"):
                found.append(node)
    return found


def argument_given(value, function, name):
    """What the call that led to this value gives for a parameter, or else its default.

    If the run does not tell which call it was, it has to be the only one of the file.
    """
    names = parameters(function)
    callee = function.name
    if callee == "__init__":
        callee = getattr(class_around(value.file, function.lineno), "name", callee)
    calls = []
    for line in value.callers[:1]:
        calls = [(parted(line)[0], call) for call in calls_at(line, (callee,))]
    above = value.callers[1:] if len(calls) == 1 else ()
    if len(calls) != 1:
        calls = calls_of((callee,), {value.file})
    if len(calls) != 1:
        return None
    file, call = calls[0]
    place = names.index(name) - (names[0] == "self")
    node = argument(call, place, name)
    if node is None:
        node = default_of(function, name)
    return Value(file, node.lineno, node, above) if node is not None else None


def is_parameter(value):
    """Is it a parameter of the function around it, that the function gives no other value?"""
    scope = function_around(value.file, value.number)
    name = ast.unparse(value.node)
    known = isinstance(scope, FUNCTIONS) and name in parameters(scope)
    return known and not assignments(scope, name)


def default_of(function, name):
    given = function.args
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    defaults = dict(zip(reversed(positional), reversed(given.defaults)))
    defaults |= dict(zip([one.arg for one in given.kwonlyargs], given.kw_defaults))
    return defaults.get(name)


def made_first(value, most=5):
    """The Value that a name stands for, through further names."""
    while value is not None and is_name(value.node) and most:
        value = made(value)
        most -= 1
    return value


def line_made(value):
    """The line in which an argument was made: its own, if it is no name."""
    if value is None:
        return ""
    first = made(value)
    return first.line if first is not None else ""


def parts_of(value, depth=4):
    """All nodes of an expression and of those that its names stand for."""
    for node in ast.walk(value.node):
        yield node
        if depth:
            own = value.part(node)
            inner = made(own) if is_name(node) else returned(own)
            if inner is not None:
                yield from parts_of(inner, depth - 1)


# ------------------------------------------------------------------ the loss


def loss_line(at, files):
    """The line that computes the loss of the backward pass in this line."""
    values = [loss_given(at, call) for call in calls_at(at, ("backward", "manual_backward"))]
    if not values:  # a framework calls backward()
        values = losses_returned(files)
    lines = {loss_made(value) for value in values}
    return the_only(lines)


def line_over_world(at, above=True):
    """The only line of this function that divides by the number of ranks, above this line."""
    file, number = parted(at)
    lines = set()
    for node in ast.walk(function_around(file, number)):
        value = getattr(node, "value", None)
        gives = targets_of(node) or isinstance(node, ast.Return)
        if not gives or value is None or (above and node.lineno > number):
            continue
        divides_itself = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)
        if is_of_world(value, ast.Div) or (divides_itself and is_number_of_ranks(value)):
            lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def loss_given(at, call):
    file, _ = parted(at)
    node = call.args[0] if call.args else call.func.value
    return Value(file, node.lineno, node)


def losses_returned(files):
    """What the only function of a framework's name for it returns."""
    functions = []
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, FUNCTIONS) and node.name in LOSS_FUNCTIONS:
                functions.append((file, node))
    if len(functions) != 1:
        return []
    file, function = functions[0]
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(Value(file, node.lineno, returned_loss(node.value)))
    return found


def returned_loss(node):
    """`return {"loss": loss}`, `return (loss, outputs) if return_outputs else loss`"""
    if isinstance(node, ast.IfExp):
        return node.orelse
    if isinstance(node, ast.Tuple):
        return node.elts[0]
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            if getattr(key, "value", "") == "loss":
                return value
    return node


def loss_made(value, most=8):
    """Back through `/ steps`, `.mean()`, scaler.scale(loss) and names to a call or a formula."""
    while value is not None and most:
        most -= 1
        node = value.node
        if is_mean_of_sum(node):
            return value.line
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            inner = node.left
        elif isinstance(node, ast.Call) and called(node) in UNCHANGED and node.args:
            inner = node.args[0]
        elif isinstance(node, ast.Call) and called(node) in UNCHANGED:
            inner = getattr(node.func, "value", None)
        elif is_name(node):
            value = made(value)
            continue
        elif returned(value) is not None:
            value = returned(value)
            continue
        else:
            return value.line
        if not isinstance(inner, (*NAMES, ast.Call, ast.BinOp)):
            return value.line
        value = value.part(inner)
    return ""


def term_made(line, number, count):
    """The line that made this one of so many terms, if the line of a loss is `found + 2 * size`.

    An empty text if the line is no such sum. Of a product it is not known which factor is the loss.
    """
    file, place = parted(line)
    for node in ast.walk(tree_of(file)):  # the outermost sum comes first
        if is_sum(node) and node.lineno == place:
            terms = [node]
            while is_sum(terms[0]):
                terms[:1] = [terms[0].left, terms[0].right]
            if len(terms) == count and isinstance(terms[number], (*NAMES, ast.Call)):
                return loss_made(Value(file, terms[number].lineno, terms[number]))
            return ""
    return ""


def is_sum(node):
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))


def is_mean_of_sum(node):
    """`(losses * mask).sum() / mask.sum()`"""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    return isinstance(node.left, ast.Call) and called(node.left) == "sum"


# ------------------------------------------------------------------ a result of an evaluation


def result_line(line):
    """After the loop over the data in this line: the only line of its function that divides."""
    file, number = parted(line)
    function = function_around(file, number)
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and has(node, number)]
    starts = [loop for loop in loops if loop.iter.lineno <= number <= loop.iter.end_lineno]
    if len(starts) != 1 or not isinstance(function, FUNCTIONS):
        return ""
    return only_result(file, function, after=starts[0].end_lineno)


def loops_over(line):
    """Does the script itself loop over the data in this line?"""
    file, number = parted(line)
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.For, ast.comprehension)):
            if node.iter.lineno <= number <= node.iter.end_lineno:
                return True
    return False


def not_prepared(line, files):
    """Which line should have given the loader of the loop in this line to Accelerate's prepare()?

    If prepare() has the name of the loader, the name was given another loader further below.
    """
    prepared = only_call(("prepare",), files)
    file, number = parted(line)
    if not prepared or not any(map(is_accelerator, files)):
        return ""  # a function of the script may have this name as well
    if parted(prepared)[0] != file:
        return prepared
    call = calls_at(prepared, ("prepare",))[0]
    given = {ast.unparse(argument) for argument in call.args}
    for loop in ast.walk(function_around(file, number)):
        if isinstance(loop, ast.For) and loop.iter.lineno <= number <= loop.iter.end_lineno:
            for name in given & names_in(loop.iter):
                return loader_given_below(file, call, name, loop.lineno)
    return prepared


def is_accelerator(file):
    """Does this file use Accelerate?"""
    names = {name_of(node) for node in ast.walk(tree_of(file))}
    return "Accelerator" in names or "accelerator" in names


def loader_given_below(file, call, name, before):
    scope = function_around(file, call.lineno)
    below = []
    for node in assignments(scope, name):
        if call.end_lineno < node.lineno < before:
            below.append(node)
    return f"{file}:{below[-1].lineno}" if below else ""


def only_result(file, function, after):
    """The first line that divides, if all that do stand in one block."""
    found = []  # the first of each block
    for node in ast.walk(function):
        for block in blocks_of(node):
            below = [one for one in block if one.lineno > after and not blocks_of(one)]
            results = [one for one in below if any(map(divides, ast.walk(one)))]
            found += results[:1]
    return f"{file}:{found[0].lineno}" if len(found) == 1 else ""


def result_of_caller(line, callers):
    """A function that loops over data returns counts, and its caller divides: in which line?"""
    file, number = parted(line)
    inner = function_around(file, number)
    if not isinstance(inner, FUNCTIONS) or any(map(divides, ast.walk(inner))) or not callers:
        return ""
    file, number = parted(callers[0])
    return only_result(file, function_around(file, number), after=number - 1)


def divides(node):
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div)
    return isinstance(node, ast.Call) and called(node) in ("mean", "compute", "average")


ENDS = re.compile(r"on_(validation|test)_epoch_end|(validation|test)_epoch_end")


def averaged_later(line):
    """Is the quotient that this line makes divided by the number of ranks further below?"""
    if not line:
        return False
    file, number = parted(line)
    scope = function_around(file, number)
    made_here = [node for node in ast.walk(scope) if getattr(node, "lineno", 0) == number]
    names = {ast.unparse(target) for node in made_here for target in targets_of(node)}
    for node in ast.walk(scope):
        is_below = getattr(node, "lineno", 0) > number
        if is_below and isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            if ast.unparse(node.target) in names and is_number_of_ranks(node.value):
                return True
        if is_below and isinstance(node, ast.BinOp) and is_of_world(node, ast.Div):
            if names & names_in(node.left):
                return True
    return False


def result_shown(line):
    """The line of a framework's function that makes the results which this line of it shows.

    It puts together the results of all batches, or else it is the first one that divides.
    """
    file, number = parted(line)
    function = function_around(file, number)
    if not isinstance(function, FUNCTIONS) or not ENDS.fullmatch(function.name):
        return ""
    names = set()
    for call in calls_at(line):
        names |= names_in(call)
    known = set()
    leading = []  # statements that lead to what is shown
    while names:
        name = names.pop()
        known.add(name)
        for statement in assignments(function, name):
            if statement.lineno < number and getattr(statement, "value", None) is not None:
                leading.append(statement)
                names |= names_in(statement.value) - known
    for is_wanted in (puts_together, divides):
        numbers = set()
        for statement in leading:
            if any(map(is_wanted, ast.walk(statement))):
                numbers.add(statement.lineno)
        if len(numbers) == 1 or (numbers and is_wanted is divides):
            return f"{file}:{min(numbers)}"
    return ""


def puts_together(node):
    """`torch.cat(self.predictions)`"""
    names = ("cat", "concat", "concatenate", "stack", "vstack", "hstack")
    return isinstance(node, ast.Call) and called(node) in names


def result_of_framework(files):
    """The only line that divides in a function that Lightning calls at the end of an evaluation."""
    functions = []
    for file in sorted(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, FUNCTIONS) and ENDS.fullmatch(node.name):
                functions.append((file, node))
    if len(functions) != 1:
        return ""
    file, function = functions[0]
    return only_result(file, function, after=function.lineno)


# ------------------------------------------------------------------ seeds of workers

SEEDS = {"torch": "torch.manual_seed", "numpy": "seed", "random": "random.seed"}


def seeding_in(function, generators):
    """The only line of a worker_init_fn that seeds one of these generators."""
    if function is None:
        return ""
    name = ast.unparse(function.node).rpartition(".")[2]
    lines = set()
    for node in ast.walk(tree_of(function.file)):
        if not isinstance(node, FUNCTIONS) or node.name != name:
            continue
        for call in filter(is_call, ast.walk(node)):
            text = ast.unparse(call.func)
            words = "np." in text or "numpy." in text
            for generator in generators:
                fits = text.endswith(SEEDS[generator]) and words == (generator == "numpy")
                if fits:
                    lines.add(f"{function.file}:{call.lineno}")
    return the_only(lines)


# ------------------------------------------------------------------ models, rates, batches


def model_made(line):
    """The line of the model whose parameters the optimizer of this line gets."""
    models = set()
    for call in calls_at(line):
        for inner in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for node in ast.walk(inner):
                if isinstance(node, ast.Call) and called(node) == "parameters":
                    models.add((node.lineno, ast.unparse(node.func.value)))
    if len({name for _, name in models}) != 1:
        return ""
    number, name = models.pop()
    file, _ = parted(line)
    node = ast.parse(name, mode="eval").body
    value = Value(file, number, node)
    first = made_first(value)
    is_call = first is not None and isinstance(first.node, ast.Call)
    return first.line if is_call else ""


def further_model_made(line):
    """The only line that constructs a model which this line calls, other than that of DDP.

    An empty text if the model is copied, or if weights are loaded into it.
    """
    file, number = parted(line)
    lines = set()
    for call in calls_at(line):
        first = made_first(Value(file, number, call.func)) if is_name(call.func) else None
        if first is None or not isinstance(first.node, ast.Call):
            continue
        text = ast.unparse(first.node)
        loaded = f"{ast.unparse(call.func)}.load_state_dict("
        if NO_NEW_MODEL.search(text) is None:
            if any(loaded in ast.unparse(one) for one in calls_named("load_state_dict", file)):
                return ""
            lines.add(first.line)
    return the_only(lines)


def calls_named(name, file):
    return [call for _, call in calls_of((name,), {file})]


def is_above(seeding, line, depth=5):
    """Does one line stand above another one in its function, or above a call that leads there?"""
    file, number = parted(line)
    scope = function_around(file, number)
    if parted(seeding)[0] == file and function_around(*parted(seeding)) is scope:
        return parted(seeding)[1] < number
    name = getattr(scope, "name", "")
    if name == "__init__":
        name = getattr(class_around(file, number), "name", name)
    leading = only_call((name,), {file})
    return depth > 0 and leading != "" and is_above(seeding, leading, depth - 1)


def rate_of(line):
    """The learning rate in the constructor of an optimizer, as a Value."""
    for call in calls_at(line):
        node = argument(call, None, "lr")
        if node is None and len(call.args) > 1 and asks(call.args[0], re.compile("param")):
            node = call.args[1]
        if node is not None:
            return Value(parted(line)[0], node.lineno, node)
    return None


def running_count(line):
    """The only line that adds to a count from which this line, in the same function, follows.

    `self.tokens += n`, `rate = self.peak * self.tokens / self.total`, `group["lr"] = rate`
    """
    if not line:
        return ""
    file, number = parted(line)
    scope = function_around(file, number)
    names = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno == number:
            names |= names_in(node.value)
    known = set()
    lines = set()
    while names:
        name = names.pop()
        known.add(name)
        for statement in assignments(scope, name) if isinstance(scope, FUNCTIONS) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.AugAssign) and not isinstance(value, ast.Constant):
                lines.add(f"{file}:{statement.lineno}")
            elif value is not None:
                names |= names_in(value) - known
    return the_only(lines)


SYNCS = ("no_sync", "no_backward_sync")


def context_made(line):
    """The line that calls no_sync(), if this one only enters the context: `with context:`

    A name, or a function of the script, stands for the context.
    """
    file, number = parted(line)
    lines = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno == number:
            for item in node.items:
                entered = Value(file, number, item.context_expr)
                lines |= {value.line for value in contexts(entered) if calls_no_sync(value.node)}
    return the_only(lines) or line


def contexts(value, depth=3):
    """This expression of a context, and all that lead to it."""
    yield value
    following = all_returned(value)
    if isinstance(value.node, ast.Name):
        scope = function_around(value.file, value.number)
        name = value.node.id
        given = [value_given(value.file, node, name) for node in assignments(scope, name)]
        following = [one for one in given if one is not None] or [made(value)]
    for one in following if depth else ():
        if one is not None:
            yield from contexts(one, depth - 1)


def calls_no_sync(node):
    return any(called(call) in SYNCS for call in filter(is_call, ast.walk(node)))


def condition_made(line):
    """The only line that makes NAME, if this line calls `no_backward_sync(model, enabled=NAME)`.

    In `no_sync() if last else nullcontext()` the line itself may have the branches the wrong way.
    """
    enabled = argument_of(line, ("no_backward_sync",), 1, "enabled")
    if enabled is None or not is_name(enabled.node):
        return ""
    scope = function_around(enabled.file, enabled.number)
    found = assignments(scope, ast.unparse(enabled.node))
    return f"{enabled.file}:{found[0].lineno}" if len(found) == 1 else ""


PER_DEVICE = ("per_device_train_batch_size", "batch_size", "train_batch_size")


def batch_given(made_in, files):
    """The only line that gives a framework the number of this line as the batch of each rank."""
    lines = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.keyword) and node.arg in PER_DEVICE:
                first = made_first(Value(file, node.value.lineno, node.value))
                if first is not None and first.line == made_in:
                    lines.add(f"{file}:{node.value.lineno}")
    return the_only(lines)


def times_world(value, depth=4):
    """How often is the number of ranks a factor in this expression?"""
    return sum(is_of_world(node, ast.Mult) for node in parts_of(value, depth))


def over_world(value):
    return any(is_of_world(node, (ast.Div, ast.FloorDiv)) for node in parts_of(value))


def is_of_world(node, operations):
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, operations):
        return False
    sides = [node.right, node.left] if isinstance(node.op, ast.Mult) else [node.right]
    return any(is_number_of_ranks(side) for side in sides)


def is_number_of_ranks(node):
    """`world_size`, `args.world_size`, `dist.get_world_size()`, and nothing more."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, NAMES) and asks(node, WORLD)


LENGTH = re.compile(
    r"((num|max|total|n)_)?(train(ing)?_)?(steps|iters|iterations|updates)|total", re.I
)


def length_assigned(files):
    """The only line of these files that computes a number of steps from a len(), or a product."""
    by_len = set()
    by_product = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            names = [ast.unparse(target).rpartition(".")[2] for target in targets_of(node)]
            value = node.value if isinstance(node, ast.Assign) else None
            if value is not None and any(map(LENGTH.fullmatch, names)):
                if any(called(call) == "len" for call in ast.walk(value) if is_call(call)):
                    by_len.add(f"{file}:{node.lineno}")
                elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
                    by_product.add(f"{file}:{node.lineno}")
    lines = by_len or by_product
    return the_only(lines)


def is_call(node):
    return isinstance(node, ast.Call)


# ------------------------------------------------------------------ how a rank left a loop


def decision(inside, outside):
    """By which line did a rank leave a loop in which another one is?

    `inside` and `outside` are the lines in which the two are, with their callers. The answer is
    the line that made the value which the only `if` with a `break` or `return` tests.
    """
    left = []
    for line in inside:
        for loop in loops_around(line):
            file = parted(line)[0]
            is_common = any(parted(o)[0] == file and has(loop, parted(o)[1]) for o in outside)
            if not is_common and (file, loop) not in left:
                left.append((file, loop))
    exits = []
    for file, loop in left:
        for node in ast.walk(loop):
            if isinstance(node, ast.If) and leaves(node, loop):
                exits.append((file, loop, node))
    # Two loops, one in the other, may be left by the same test. The inner one is the last here.
    if len({(file, ast.unparse(node.test)) for file, _, node in exits}) != 1:
        return ""
    file, loop, test = exits[-1]
    if asks(test.test, RANK):
        return f"{file}:{test.lineno}"
    return decided_by(file, loop, test) or f"{file}:{test.lineno}"


def leaves(test, loop):
    """Does this `if` end the loop? A break within an inner loop ends only that one."""
    for statement in test.body:
        if isinstance(statement, ast.Return):
            return True
        if isinstance(statement, ast.Break):
            inner = [one for one in ast.walk(loop) if isinstance(one, (ast.For, ast.While))]
            around = [one for one in inner if has(one, statement.lineno)]
            return max(around, key=lambda one: one.lineno) is loop
    return False


def decided_by(file, loop, test):
    """The only call in the loop whose result leads to the tested value."""
    names = names_in(test.test)
    known = set()
    lines = set()
    while names:
        name = names.pop()
        if name in known:
            continue
        known.add(name)
        for statement in assignments(loop, name):
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and called(value) not in ("min", "max", "float", "int"):
                lines.add(f"{file}:{statement.lineno}")
            elif value is not None:
                names |= names_in(value)
                for node in ast.walk(loop):
                    if isinstance(node, ast.If) and has(node, statement.lineno):
                        names |= names_in(node.test)
    return the_only(lines)


def names_in(node):
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, NAMES)}


def seeded_by_rank(files):
    """The only line that gives all generators a seed with the rank in it, or an empty text."""
    lines = set()
    for file, call in calls_of(("seed_everything", "set_seed", "manual_seed"), files):
        if any(RANK.search(ast.unparse(argument).lower()) for argument in call.args):
            lines.add(f"{file}:{call.lineno}")
    return the_only(lines)


def guarded_call(line, name):
    """In the file of this line: the `if` around the only call of this function."""
    file, _ = parted(line)
    calls = [call for _, call in calls_of((name,), {file})]
    if len(calls) != 1:
        return ""
    tests = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.If) and has(node, calls[0].lineno):
            tests.append(node)
    inner = [node for node in tests if "__name__" not in ast.unparse(node.test)]
    return f"{file}:{inner[-1].lineno}" if inner else ""

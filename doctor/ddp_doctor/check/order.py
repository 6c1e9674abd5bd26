"""Reads the script: which samples does a rank get, and in which order?

As in values.py, where two lines are possible, the answer is an empty text.
"""

import ast
import re

from .source import RANK, asks, blocks_of, has, loops_around, parted, the_only, tree_of
from .values import (
    FUNCTIONS,
    NAMES,
    Value,
    all_returned,
    argument,
    argument_of,
    assignments,
    called,
    calls_at,
    calls_of,
    class_around,
    classes_named,
    function_around,
    functions_named,
    is_name,
    is_number_of_ranks,
    is_parameter,
    made,
    made_first,
    parts_of,
    returned,
    targets_of,
)

# The number of a rank, and not how many ranks there are: `self.rank`, `args.local_rank`.
OWN_RANK = re.compile(r"(?<![a-z])(?<!per_)(?<!num_)rank(?!s|_zero)|process_index", re.I)

# ------------------------------------------------------------------ the part of a rank


def subset_made(began, others):
    """The line of the innermost subset, of those that have other positions on other ranks."""
    for (line, order), *met in zip(began.subsets, *(other.subsets for other in others)):
        if any(other != order for _, other in met):
            return line
    return began.subsets[0][0] if began.subsets else ""


def part_of_data(began, others):
    """The line that takes the part of a rank: in the script's sampler, its subset, or its data."""
    if began.order_by:
        return part_in_class(began.order_by) or giving_line(began.order_by)
    made_in = subset_made(began, others)
    if made_in:
        indices = argument_of(made_in, ("Subset",), 1, "indices")
        return line_with_rank(indices) or line_of_count(indices) or made_in
    data = data_of_loader(began)
    return line_with_rank(data) or divides_by_rank(data) or part_of_stream(began)


def line_of_part_of(function, iterable):
    """The number of the only line of the function that takes a part for this name, or 0."""
    numbers = set()
    for statement in assignments(function, ast.unparse(iterable)):
        given = getattr(statement, "value", None)
        if given is not None and any(map(takes_some, ast.walk(given))):
            numbers.add(statement.lineno)
    return numbers.pop() if len(numbers) == 1 else 0


def takes_some(node):
    """`shards[worker::workers]`, `range(worker, n, workers)`, `i % workers == worker`"""
    if isinstance(node, ast.Call):
        return called(node) in ("range", "islice", "arange") and len(node.args) > 2
    return isinstance(node, ast.Slice) or is_modulo(node)


def part_of_stream(began):
    return part_in_class(began.streams) if began.streams else ""


def data_of_loader(began):
    """What the loader gets as its data, through a helper that makes several loaders."""
    return argument_of(began.made, ("DataLoader",), 0, "dataset", callers=began.made_from)


def drawn_order(began, others):
    """The only line that draws the order for a rank's part, without a seed.

    In a sampler of the script, or for its subset. After a seed in the same class all ranks may draw
    alike.
    """
    if not began.order_by:
        indices = argument_of(subset_made(began, others), ("Subset",), 1, "indices")
        return drawn_for(indices) if indices is not None else ""
    file, number = parted(began.order_by)
    scope = class_around(file, number) or function_around(file, number)
    if any(call.args for call in calls_in(scope) if called(call) in SEEDING):
        return ""
    drawing = [call for call in calls_in(scope) if draws(call) or is_unseeded(call)]
    return the_only({f"{file}:{call.lineno}" for call in drawing})


def calls_in(scope):
    return [node for node in ast.walk(scope) if isinstance(node, ast.Call)]


def is_unseeded(call):
    """`np.random.default_rng()`"""
    return called(call) in ("default_rng", "RandomState", "Random") and not call.args


def line_of_subset(made_in, has_same_length, files):
    """-> the role and the line by which the ranks' subsets, made in this line, became different."""
    indices = argument_of(made_in, ("Subset",), 1, "indices")
    part = line_with_rank(indices)
    if part:
        return "part", part
    if indices is not None and has_same_length:
        drawn = drawn_for(indices) or shuffled(files)
        return ("drawn", drawn) if drawn else ("subset", made_in)
    count = line_of_count(indices)
    return ("share", count) if count else ("subset", made_in)


def drawn_for(value):
    """The only line that draws random numbers for this value, and gets no generator."""
    lines = set()
    for node in parts_of(value):
        if isinstance(node, ast.Call) and draws(node):
            lines.add(f"{value.file}:{node.lineno}")
    return the_only(lines)


def line_of_count(value):
    """`Subset(data, order[:count])`, `Subset(data, range(count))`: the only line of such a count.

    An empty text if the count stands in the same expression, or if it is no more than a number.
    """
    chosen = made_first(value) if value is not None else None
    bounds = []
    if chosen is not None and isinstance(chosen.node, ast.Subscript):
        if isinstance(chosen.node.slice, ast.Slice):
            bounds = [chosen.node.slice.lower, chosen.node.slice.upper]
    elif chosen is not None and isinstance(chosen.node, ast.Call):
        if called(chosen.node) in ("range", "arange"):
            bounds = chosen.node.args
    lines = set()
    for bound in bounds:
        if bound is not None and is_name(bound):
            count = made_first(chosen.part(bound))
            if count is not None and not isinstance(count.node, ast.Constant):
                lines.add(count.line)
    return the_only(lines)


def divides_by_rank(value, depth=5):
    """The line in which a class or function gets the rank and the number of ranks, to divide data.

    `Corpus(texts, part=rank, parts=world_size)`: what they mean is told by another file perhaps.
    """
    if value is None or not depth:
        return ""
    for node in ast.walk(value.node):
        given = []
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for one in [*given]:
            given += getattr(one, "elts", [])  # shard=(rank, world_size)
        worlds = [one for one in given if is_number_of_ranks(one)]
        if worlds and any(map(is_rank, given)):
            return value.line
    for node in ast.walk(value.node):
        inner = value.part(node)
        line = the_only({divides_by_rank(one, depth - 1) for one in leading_to(inner)} - {""})
        if line:
            return line
    return ""


def leading_to(value):
    """What a name stands for, or what each `return` of a called function gives."""
    return [made(value)] if is_name(value.node) else all_returned(value)


def line_with_rank(value, depth=5):
    """The nearest line that takes a part by the rank, of those that lead to this value."""
    if value is None or not depth:
        return ""
    if any(takes_part(node) for node in ast.walk(value.node)):
        return value.line
    for node in ast.walk(value.node):
        inner = value.part(node)
        lines = {line_with_rank(one, depth - 1) for one in leading_to(inner)} - {""}
        line = the_only(lines) or part_in_own_class(inner)
        if line:
            return line
    return ""


def rank_in_call(line):
    """The line in which an argument of the outermost call of this line gets the rank."""
    file, _ = parted(line)
    for call in calls_at(line)[:1]:
        for node in [*call.args, *(keyword.value for keyword in call.keywords)]:
            value = Value(file, node.lineno, node)
            most = 3
            while value is not None and most:
                if has_rank(value.node):
                    return value.line
                following = made(value)
                value = following if following != value else None
                most -= 1
    return ""


def own_source(files):
    """The only line that broadcasts from the rank itself: `broadcast(tensor, src=rank)`."""
    lines = set()
    for file, call in calls_of(("broadcast", "broadcast_object_list"), files):
        source = argument(call, 1, "src")
        if source is not None and is_rank(source):
            lines.add(f"{file}:{call.lineno}")
    return the_only(lines)


def part_in_own_class(value):
    """The same within a class of this file, if the value constructs an object of it."""
    if isinstance(value.node, ast.Call):
        for node in classes_named(value.file, called(value.node)):
            return part_in_class(f"{value.file}:{node.lineno}")
    return ""


def part_in_class(line):
    """The only line of the class around this one that takes a part by the rank."""
    file, number = parted(line)
    scope = class_around(file, number) or function_around(file, number)
    lines = set()
    for node in ast.walk(scope):
        for expression in expressions_of(node):
            if any(takes_part(inner) for inner in ast.walk(expression)):
                lines.add(expression.lineno)
    return f"{file}:{lines.pop()}" if len(lines) == 1 else ""


def expressions_of(statement):
    """The expressions of a statement itself, and not those of the statements in it."""
    if not isinstance(statement, ast.stmt) or isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return []
    if not blocks_of(statement):
        return [statement]
    return [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr)]


def takes_part(node):
    """`order[rank::world]`, `range(rank, n, world)`, `i % world == rank`, `rank * size`"""
    if isinstance(node, ast.Slice):
        return has_rank(node)
    if isinstance(node, ast.Call):
        return called(node) in ("range", "islice", "arange") and any(map(has_rank, node.args))
    if isinstance(node, ast.Compare):
        return has_rank(node) and any(is_modulo(inner) for inner in ast.walk(node))
    if isinstance(node, ast.IfExp):
        return has_rank(node.test)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return is_rank(node.left) or is_rank(node.right)
    return False


def is_modulo(node):
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


def has_rank(node):
    return any(is_rank(inner) for inner in ast.walk(node))


def is_rank(node):
    if isinstance(node, ast.Call):
        node = node.func
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(node, NAMES) and OWN_RANK.search(name) is not None


def giving_line(line):
    """The only `return` or `yield` of the function that begins in this line."""
    file, number = parted(line)
    function = function_around(file, number)
    lines = set()
    for node in ast.walk(function):
        gives = isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom))
        if gives and node.value is not None:
            lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


# ------------------------------------------------------------------ a seed that does not change

SEEDING = ("manual_seed", "default_rng", "RandomState", "Random", "seed")


def seed_in_class(line):
    """The only line of the class around this one that gives a generator a seed."""
    file, number = parted(line)
    scope = class_around(file, number) or function_around(file, number)
    lines = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and called(node) in SEEDING and node.args:
            lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def seed_by_rank(line):
    """Where does the seed of the order in this class get the rank, if it does?

    Also in another line: `args.seed += rank`, and `Sampler(args.seed)` follows.
    """
    seeding = seed_in_class(line) if line else ""
    if not seeding:
        return ""
    file, number = parted(seeding)
    for call in calls_at(seeding, SEEDING):
        found = line_that_adds_rank(Value(file, number, call.args[0])) if call.args else ""
        if found:
            return found
    return ""


def line_that_adds_rank(value, depth=5):
    """The line in which a value gets the rank, of those that lead to it."""
    if has_rank(value.node):
        return value.line
    names = [node for node in ast.walk(value.node) if is_name(node)] if depth else []
    for node in names:
        following = made(Value(value.file, value.number, node))
        line = rank_assigned(value.file, node)
        if not line and following is not None:
            line = line_that_adds_rank(following, depth - 1)
        if line:
            return line
    return ""


def rank_assigned(file, node):
    """The line of this file that gives `args.seed` the rank. Each object has its own self."""
    name = ast.unparse(node)
    if not isinstance(node, ast.Attribute) or name.startswith("self."):
        return ""
    for statement in ast.walk(tree_of(file)):
        given = getattr(statement, "value", None)
        if name in map(ast.unparse, targets_of(statement)) and given is not None:
            if has_rank(given):
                return f"{file}:{statement.lineno}"
    return ""


NOISE = re.compile(r"(randn?|normal|uniform|bernoulli|exponential|gauss)(_like|_)?|random|laplace")


CHOOSES = re.compile(r"randint|randperm|choices?|permut\w+|shuffle|sample|multinomial|integers")
NUMBERS = ("randint", "integers", "choice", "choices")  # may also be the place of a crop


def makes_noise(name, files):
    """Does a generator of this name draw numbers, and choose no samples by them?"""
    last = name.rpartition(".")[2]
    makes = False
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and last in names_of_generator(node):
                makes |= NOISE.fullmatch(called(node)) is not None
                if CHOOSES.fullmatch(called(node)) and chooses_samples(file, node):
                    return False
    return makes


def chooses_samples(file, call):
    """A draw of an order, or of numbers below a len(), or one of which a rank takes its part."""
    inner = [*ast.walk(call)]
    if called(call) not in NUMBERS or any(is_call_of(node, "len") for node in inner):
        return True
    return any(map(takes_part, ast.walk(function_around(file, call.lineno))))


def is_call_of(node, name):
    return isinstance(node, ast.Call) and called(node) == name


def names_of_generator(call):
    """`randn(8, generator=self.noise)`, `noise.normal(8)`"""
    given = argument(call, None, "generator")
    return last_name(given), last_name(getattr(call.func, "value", None))


def line_of_generator(name, files):
    """The only line that seeds a generator of this name, or else makes it."""
    last = name.rpartition(".")[2]
    seeded = set()
    assigned = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and called(node) in ("manual_seed", "seed"):
                if last_name(node.func.value) == last:
                    seeded.add(f"{file}:{node.lineno}")
            if last in map(last_name, targets_of(node)):
                assigned.add(f"{file}:{node.lineno}")
    lines = seeded or assigned
    return the_only(lines)


def last_name(node):
    return getattr(node, "attr", getattr(node, "id", None))


def line_of_statistic(name, files, steps):
    """The only line that gives this variable a value, if it is outside of the training loop."""
    owner, _, last = name.rpartition(".")
    is_weight = owner not in ("", "self")  # of a loss: `criterion.weight`
    found = []
    for file in files:
        for node in ast.walk(tree_of(file)):
            for target in targets_of(node):
                wanted = owner.rpartition(".")[2] if is_weight else last
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                if wanted in map(last_name, parts) and getattr(node, "value", None) is not None:
                    found.append(Value(file, node.lineno, node.value))
    if len(found) != 1:
        return ""
    [value] = found
    for step in steps:
        for loop in loops_around(step):
            if parted(step)[0] == value.file and has(loop, value.number):
                return ""
    if is_weight and isinstance(value.node, ast.Call):
        given = argument(value.node, 0, last)
        inner = made(Value(value.file, value.number, given)) if given is not None else None
        value = inner or value
    return value.line


MOMENTS = ("mean", "var", "std", "var_mean", "std_mean", "sum")


def running_statistic(name, files):
    """Where a class updates `self.mean` or `self.var`, if it also normalises by it.

    It is the only line of the method that computes the values of a batch, or else the line that
    updates.
    """
    last = name.rpartition(".")[2]
    lines = set()
    for file in sorted(files):
        for kind in ast.walk(tree_of(file)):
            if not isinstance(kind, ast.ClassDef) or not normalises_by(last, kind):
                continue
            for method in kind.body:
                is_other = isinstance(method, FUNCTIONS) and method.name != "__init__"
                updates = assignments(method, f"self.{last}") if is_other else []
                if updates:
                    number = line_of_moments(method) or updates[0].lineno
                    lines.add(f"{file}:{number}")
    return the_only(lines)


def line_of_moments(method):
    """The only line that computes a mean or a variance, or 0."""
    numbers = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and called(node) in MOMENTS:
            numbers.add(node.lineno)
    return numbers.pop() if len(numbers) == 1 else 0


def normalises_by(last, kind):
    """`(x - self.mean) / ...`, `... / self.std`"""
    for node in ast.walk(kind):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        taken = [node.right]
        for inner in ast.walk(node.left):
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
                taken.append(inner.right)
        for part in taken:
            if any(ast.unparse(inner) == f"self.{last}" for inner in ast.walk(part)):
                return True
    return False


# ------------------------------------------------------------------ an order that differs

UNORDERED = ("listdir", "scandir", "glob", "iglob", "iterdir", "rglob", "hash")
ORDERS = ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "sort")
TAKES_ORDER = ("list", "tuple", "enumerate", "fromkeys", "zip", "map", "join", "iter", "array")
# Methods of a set whose result is a set.
OF_SETS = ("union", "intersection", "difference", "symmetric_difference")
SHUFFLES = ("shuffle", "permutation", "randperm", "sample")


def unordered(files):
    """The only line that takes the order of a set or a folder: it may differ between ranks."""
    lines = set()
    for file in files:
        tree = tree_of(file)
        safe = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in ORDERS:
                safe.update(id(inner) for inner in ast.walk(node) if inner is not node)
        for node in ast.walk(tree):
            if id(node) not in safe and gives_no_order(file, node):
                lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def gives_no_order(file, node):
    """os.listdir(), hash(text), a loop over a set, list(set(...))"""
    if isinstance(node, ast.Call) and called(node) in UNORDERED:
        return True
    taken = []
    if isinstance(node, ast.Call) and called(node) in TAKES_ORDER:
        taken = node.args
    elif isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
        taken = [part.iter for part in node.generators]
    elif isinstance(node, ast.For):
        taken = [node.iter]
    elif isinstance(node, ast.Starred):
        taken = [node.value]
    return any(is_set(Value(file, one.lineno, one)) for one in taken)


def is_set(value, depth=3):
    node = value.node
    if isinstance(node, ast.Call):
        if getattr(node.func, "id", "") in ("set", "frozenset"):
            return True
        inner = getattr(node.func, "value", None)
        if inner is not None and called(node) in OF_SETS:
            return is_set(Value(value.file, value.number, inner), depth)
        following = returned(value)
        return depth > 0 and following is not None and is_set(following, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub)):
        return is_set(Value(value.file, value.number, node.left), depth)
    if is_name(node) and depth:
        following = made_set(value)
        return following is not None and is_set(following, depth - 1)
    return isinstance(node, (ast.Set, ast.SetComp))


def made_set(value):
    """`words = set()`, and then `words |= ...`: the first assignment tells."""
    scope = function_around(value.file, value.number)
    for statement in assignments(scope, ast.unparse(value.node)):
        node = getattr(statement, "value", None)
        if node is not None and statement.lineno < value.number:
            return Value(value.file, statement.lineno, node)
    return made(value)


def drawn_in(value):
    """The only line of the class or function that makes this value which draws random numbers.

    A call that gets a generator is left out: all ranks may seed it alike.
    """
    first = made(value) if value is not None else None
    if first is None or not isinstance(first.node, ast.Call):
        return ""
    name = called(first.node)
    scopes = classes_named(first.file, name) or functions_named(first.file, name)
    lines = set()
    for scope in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and draws(node):
                lines.add(f"{first.file}:{node.lineno}")
    return the_only(lines)


def draws(call):
    """`torch.rand(8)`, `np.random.normal()`, `random.sample(...)`, without a generator"""
    receiver = ast.unparse(getattr(call.func, "value", call.func))
    by_module = receiver in ("torch", "random", "np.random", "numpy.random")
    is_random = NOISE.fullmatch(called(call)) or CHOOSES.fullmatch(called(call))
    return by_module and bool(is_random) and argument(call, None, "generator") is None


MODULES = {"torch": "torch", "random": "random", "np": "numpy", "numpy": "numpy"}


def draws_in_loop(lines, files):
    """-> the seed of the script's generator that draws in the loop, and which common ones do so.

    The loop is the outermost one around these lines, with the functions of these files that it
    calls. The seed is the only line that gives one to such a generator of the script or to an
    environment. It is an empty text if it stands in the loop. Nothing is told if the script may
    only draw an order of stored samples, and noise: another seed would not divide these.
    """
    calls = calls_in_loop(lines, files)
    seeds = set()
    common = set()
    acts = False  # in an environment, or it draws from a distribution
    for _, call in calls:
        is_random = NOISE.fullmatch(called(call)) or called(call) in (*NUMBERS, "multinomial")
        is_sample = called(call) in ("sample", "rsample") and not defined(called(call), files)
        acts |= is_sample or called(call) == "reset"
        if is_random and draws(call):
            common.add(MODULES[ast.unparse(call.func).partition(".")[0]])
        elif is_random or is_sample:
            names = {*names_of_generator(call)} - {None, *MODULES}
            own = {seed_of_generator(name, files) for name in names} - {""}
            seeds |= own
            if not own and (is_sample or called(call).endswith("_")):
                common.add("torch")  # `Normal(mean, 1).sample()`, `noise.normal_()`
    for file, call in calls_of(("reset",), files):  # of an environment
        given = argument(call, None, "seed")
        if given is not None:
            seeds |= {place_of_seed(Value(file, given.lineno, given))} - {""}
    if not acts and any(called(call) in SHUFFLES for _, call in calls):
        return "", set()
    inside = {f"{file}:{call.lineno}" for file, call in calls}
    seed = the_only(seeds)
    return ("" if seed in inside else seed), common


def calls_in_loop(lines, files):
    """-> [(file, call)] in the outermost loops around these lines, and in what they call."""
    pending = [(parted(line)[0], loop) for line in lines for loop in loops_around(line)[:1]]
    found = []
    known = set()
    while pending:
        file, scope = pending.pop()
        for call in calls_in(scope):
            found.append((file, call))
            if called(call) not in known:
                known.add(called(call))
                pending += defined(called(call), files)
    return found


def defined(name, files):
    """-> [(file, function)] of this name."""
    return [(file, function) for file in sorted(files) for function in functions_named(file, name)]


def seed_of_generator(name, files):
    """The line that gives this generator of the script its seed: it may stand in a caller."""
    line = line_of_generator(name, files)
    for call in calls_at(line, SEEDING) if line else ():
        if call.args:
            return place_of_seed(Value(*parted(line), call.args[0]))
    return ""


def place_of_seed(value):
    """The line with this seed, or that of the caller which gives it, if the rank is not in it."""
    if line_that_adds_rank(value):
        return ""
    given = made(value) if is_name(value.node) and is_parameter(value) else value
    return given.line if given is not None else ""


def shuffled(files):
    """The only line that draws an order, and gets no generator with one seed for all ranks."""
    lines = set()
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and called(node) in SHUFFLES:
                given = any(keyword.arg == "generator" for keyword in node.keywords)
                if not given and not is_of_seeded_generator(file, node):
                    lines.add(f"{file}:{node.lineno}")
    return the_only(lines)


def is_of_seeded_generator(file, call):
    """`np.random.default_rng(8).permutation(n)`, or `rng.permutation(n)` of such a generator."""
    if not isinstance(call.func, ast.Attribute):
        return False
    generator = made(Value(file, call.lineno, call.func.value))
    node = getattr(generator, "node", None)
    if not isinstance(node, ast.Call) or called(node) not in SEEDING:
        return False
    return bool(node.args) and not any(asks(argument, RANK) for argument in node.args)

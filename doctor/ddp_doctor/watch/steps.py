"""Watches the training step: DDP, backward(), the optimizer, schedules, graphs that are kept.

Values of tensors are given to the events as tensors. On a GPU they stay there for a while, and no
step waits for them: see note.settled().
"""

import ast
import functools
import math
import re
import weakref
from collections import Counter
from types import ModuleType

import torch
from torch.distributed import get_process_group_ranks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ..run.events import (
    Backward,
    Clipped,
    Forward,
    Gradients,
    Keeps,
    Last,
    Loose,
    Parameters,
    Plateau,
    Restored,
    ScalerStepped,
    Scheduled,
    Step,
    Totals,
    Wrapped,
)
from .lines import (
    callers,
    here,
    line_of,
    maker_of,
    script_frames,
    shown,
    tree_of,
    without_collection,
)
from .note import EVERY_STATE, PROCESS, now, quietly, tell_later, waiting, write
from .patch import after, before, is_recorded, replace
from .tensors import (
    checksum,
    fingerprint,
    fingerprints,
    is_plain,
    random_states,
    state_of,
    weighted_sums,
)

# A loss goes through these without a change of its value.
SAME_VALUE = ("Unsqueeze", "Squeeze", "View", "Reshape", "Alias", "ToCopy", "Clone")
# Losses whose mean is over each number of their input.
OF_EACH_NUMBER = ("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")
MOST_RANDOM = 60  # looks at the states of the random generators
MOST_FURTHER = 30  # looks at steps whose last backward pass DDP did not average
MOST_TERMS = 8  # of a loss that is a sum
EVERY = 50  # steps after which values that have waited on a GPU are read


class Training:
    """The models and optimizers of this process."""

    def reset(self):
        self.in_ddp = {}  # a weak reference to each parameter that DDP averages, by its id
        self.models = weakref.WeakKeyDictionary()  # the number of each model that DDP has wrapped
        self.model_of = {}  # the number of its model, by the id of a parameter in DDP
        self.computed = set()  # numbers of the models that DDP called for the next backward pass
        self.cleared = False  # were gradients cleared since the last backward pass?
        self.unaveraged = False  # was the last backward pass one in which DDP averaged nothing?
        self.further_looks = 0  # at steps that follow such a pass
        self.numbers = {}  # of optimizers, by the ids of their parameters
        self.optimizers = weakref.WeakKeyDictionary()  # their numbers
        self.lines_made = weakref.WeakKeyDictionary()  # optimizer -> line of its constructor
        self.made = Counter()  # steps, by the number of the optimizer
        self.before = Counter()  # steps with other parameters, by the number of the optimizer
        self.joint = {}  # does DDP have parameters of it? By the number of the optimizer
        self.trained = set()  # ids of the parameters that have had a gradient
        self.generators = {}  # that the script has made, by the names of variables
        self.random_looks = 0  # at the states of the random generators
        self.steps = 0  # of joint optimizers
        self.averaged = 0  # backward passes
        self.averages = False  # does the next backward pass average?
        self.no_sync = ""  # the line that called no_sync() last
        self.lines = set()  # of forward and backward passes
        self.phase = 0  # training passes, forward or backward, that had begun
        self.first_forward = True  # of the step that is being made
        self.marked = False  # has the graph of the next backward pass a mark?
        self.graphs = weakref.WeakSet()  # marks of the graphs that are in memory
        self.keeps = False
        self.loaded = -1  # steps that had been made when weights were loaded
        self.scaled = None  # the last loss that a GradScaler has multiplied: see note_scale()
        self.scaler = None  # a weak reference to it, until it has divided the gradients
        self.ended = False  # has note_end() said its words?
        self.schedules = []  # Schedule
        self.known = weakref.WeakKeyDictionary()  # the Schedule of each scheduler


class Mark:
    """Lies in the graph of a forward pass, and is freed with it."""


class Schedule:
    """What is known of a scheduler. It does not keep the scheduler alive."""

    def __init__(self, scheduler):
        self.name = type(scheduler).__name__
        self.length = None  # for how many steps is it made?
        self.rises = ends_with_the_full_rate(scheduler)
        self.at = "?"  # the line that steps it
        self.made = here()  # its first step() is a part of its constructor
        self.gone = 0
        self.calls = 0  # of step(), up to the tenth one


TRAINING = Training()
TRAINING.reset()
EVERY_STATE.append(TRAINING)


def install():
    # Not DDP.__init__: its warnings must name the line of the script.
    replace(DDP, "_ddp_init_helper", after(note_ddp))
    replace(DDP, "forward", around_forward)
    replace(DDP, "no_sync", before(note_no_sync))
    replace(DDP, "register_comm_hook", before(note_loose))
    replace(Join, "__enter__", before(note_loose))
    replace(torch.autograd, "backward", around_backward)
    replace(torch.nn.utils, "clip_grad_norm_", before(note_clip))
    replace(torch.nn.utils, "clip_grad_value_", before(note_clip))
    replace(torch.amp.GradScaler, "scale", after(note_scale))
    replace(torch.amp.GradScaler, "unscale_", before(note_unscale))
    replace(torch.amp.GradScaler, "step", after(note_scaler_step))
    replace(torch.nn.Module, "load_state_dict", after(note_loaded))
    replace(torch.optim.Optimizer, "__init__", before(note_optimizer))
    replace(torch.optim.Optimizer, "zero_grad", before(note_cleared))
    replace(torch.nn.Module, "zero_grad", before(note_cleared))
    for kind in (LRScheduler, *LRScheduler.__subclasses__()):
        if "step" in vars(kind):  # SequentialLR has a step() of its own, for example
            replace(kind, "step", after(note_schedule))
    replace(ReduceLROnPlateau, "step", before(note_plateau))
    register_optimizer_step_pre_hook(before_step)


def note_ddp(_, ddp, *args, **kwargs):
    number = TRAINING.models.setdefault(ddp.module, len(TRAINING.models))
    for parameter in ddp.module.parameters():
        if parameter.requires_grad:
            TRAINING.in_ddp[id(parameter)] = weakref.ref(parameter)
            TRAINING.model_of[id(parameter)] = number
    ranks = get_process_group_ranks(ddp.process_group)
    write(Wrapped(now(), here(), ranks, ddp.broadcast_buffers))


def note_no_sync(*args, **kwargs):
    TRAINING.no_sync = here()


def note_cleared(*args, **kwargs):
    TRAINING.cleared = True


def note_loose(*args, **kwargs):
    write(Loose(now(), here()))


def note_loaded(_, module, *args, **kwargs):
    TRAINING.loaded = PROCESS.step
    prints = fingerprints(module.parameters())
    state = prints.sum() if isinstance(prints, torch.Tensor) else 0
    write(Restored(now(), here(), callers(), state))


def note_optimizer(optimizer, *args, **kwargs):
    TRAINING.lines_made[optimizer] = maker_of(optimizer)


# ------------------------------------------------------------------ forward and backward


def around_forward(original, ddp, *args, **kwargs):
    quietly(note_forward, ddp, args, kwargs)
    with waiting("forward"):
        output = original(ddp, *args, **kwargs)
    quietly(mark_output, output)
    return output


def note_forward(ddp, args, kwargs):
    training = ddp.module.training and torch.is_grad_enabled()
    tensor = first_tensor(args, kwargs)
    samples = 0
    inputs = -1
    if tensor is not None and tensor.dim() > 0:
        samples = tensor.shape[0]
    if torch.is_grad_enabled():
        TRAINING.averages = ddp.require_backward_grad_sync
        TRAINING.computed.add(TRAINING.models.get(ddp.module, -1))
    if training:
        TRAINING.phase += 1
        # Where no loader tells which samples a rank gets, its inputs have to tell it.
        looks = 20 if PROCESS.fed == PROCESS.step else 300
        looked_at = TRAINING.first_forward and PROCESS.step < looks
        if looked_at and tensor is not None and is_plain(tensor):
            inputs = fingerprint(thinned(tensor))
        TRAINING.first_forward = False
    at = here()
    sends = ddp.will_sync_module_buffers()
    write(Forward(now(), at, training, samples, inputs, sends, callers_once(at)))


def first_tensor(args, kwargs):
    if args and isinstance(args[0], torch.Tensor):
        return args[0]  # as of most models: tree_leaves() takes a while to find that out
    for leaf in tree_leaves([args, kwargs]):
        if isinstance(leaf, torch.Tensor):
            return leaf
    return None


def callers_once(at):
    """The lines that led to this one, if it is new."""
    if at in TRAINING.lines:
        return []
    TRAINING.lines.add(at)
    return callers()


def thinned(tensor):
    """Some 1,000 of its numbers: enough to know a batch again, and cheap in each step."""
    numbers = tensor.detach().reshape(-1)
    return numbers[:: 1 + len(numbers) // 1000]


def mark_output(output):
    leaves = [output] if isinstance(output, torch.Tensor) else tree_leaves(output)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            mark_graph(leaf.grad_fn)
            TRAINING.marked = True
            return


def mark_graph(node):
    """The mark lives as long as the graph does, whoever holds it: a loss, a sum of losses."""
    mark = Mark()
    node.metadata["ddp_doctor"] = mark
    TRAINING.graphs.add(mark)


def around_backward(original, tensors, *args, **kwargs):
    quietly(note_backward, tensors)
    PROCESS.passes += 1
    TRAINING.phase += 1
    TRAINING.averaged += TRAINING.averages
    TRAINING.unaveraged = not TRAINING.averages
    TRAINING.averages = False
    TRAINING.computed = set()
    TRAINING.cleared = False
    with waiting("backward"):
        result = original(tensors, *args, **kwargs)
    quietly(note_gradients, before_clip=False)
    return result


def note_backward(tensors):
    root = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
    if root.grad_fn is not None and not TRAINING.marked:
        mark_graph(root.grad_fn)  # without DDP no forward pass was seen
    TRAINING.marked = False
    scaled = TRAINING.scaled is not None and TRAINING.scaled[0]() is root
    node = root.grad_fn
    loss = root.detach()
    if scaled:
        _, node, loss = TRAINING.scaled
    TRAINING.scaled = None
    factor, node = factor_of(node)
    at = here()
    terms = quietly(targets_of_terms, node, factor)
    event = Backward(
        now(),
        at=at,
        averages=TRAINING.averages,
        loss=loss.float().sum() if loss.numel() == 1 else None,
        factor=factor,
        mean=node is not None and is_mean(node),
        targets=quietly(targets_of, node, factor) if node is not None else None,
        scaled=scaled,
        no_sync="" if TRAINING.averages else TRAINING.no_sync,
        called_from=callers_once(at),
        models=sorted(TRAINING.computed),
        cleared=TRAINING.cleared,
        terms=terms if terms is not None else [],
    )
    write(event)


def is_mean(node):
    return "Mean" in node.name() or getattr(node, "_saved_reduction", 0) == 1


def factor_of(node):
    """From the loss back through * and / to what it is made of: 0.25 for loss / 4, and its node."""
    factor = 1.0
    while node is not None:
        name = node.name()
        if name.startswith(("MulBackward", "DivBackward")):
            number = constant(node)
            if number is None:
                return None, None
            if name.startswith("Mul"):
                factor = factor * number
            elif number == 0:
                return None, None
            else:
                factor = factor / number
        elif smoothed_loss(node) is not None:
            return factor, smoothed_loss(node)
        elif not name.startswith(SAME_VALUE) and not is_mean_of_one(node):
            break
        node = node.next_functions[0][0]
    return factor, node


def constant(node):
    """The number by which the loss is multiplied or divided, if it is one and lies on the host."""
    other = getattr(node, "_saved_other", None)
    if isinstance(other, (int, float)):
        return other
    if other is None or other.numel() > 1 or other.requires_grad or other.device.type != "cpu":
        return None
    return other.item()


def smoothed_loss(node):
    """With label_smoothing, cross_entropy adds a part of NllLoss to another sum -> its NllLoss."""
    if node.name() != "AddBackward0":
        return None
    part = node.next_functions[0][0]
    if part is None or not part.name().startswith("MulBackward"):
        return None
    inner = part.next_functions[0][0]
    return inner if inner is not None and inner.name().startswith("NllLoss") else None


def is_mean_of_one(node):
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return node.name() == "MeanBackward0" and sizes is not None and math.prod(sizes) == 1


def targets_of(node, factor):
    """The number of targets that a mean is over, as far as the graph shows it."""
    name = node.name()
    if name.startswith("SumBackward") or getattr(node, "_saved_reduction", 1) == 2:
        # A sum, divided by the count. A factor of 0 is that of a rank without a sample.
        return 1 / factor if factor not in (0, 1) else None
    if name == "MeanBackward0":
        return float(math.prod(node._saved_self_sym_sizes))
    if name.startswith(OF_EACH_NUMBER):
        before, output = node.next_functions[0]
        # Not node._saved_self: to unpack it may compute a checkpointed part again.
        metadata = getattr(before, "_input_metadata", [])
        return float(math.prod(metadata[output].shape)) if len(metadata) > output else None
    weight = getattr(node, "_saved_total_weight", None)  # of cross_entropy
    return weight.float().sum() if weight is not None else None


def targets_of_terms(node, factor):
    """If the loss is a sum: targets_of() each term, 0 for a term whose graph does not show it."""
    if node is None or not is_sum(node):
        return []
    counts = []
    parts = [(node, factor)]
    while parts:
        node, factor = parts.pop()
        if node is not None and is_sum(node):
            for inner, _ in reversed(node.next_functions):
                own, inner = factor_of(inner)
                # A factor that is not known leaves the term unknown.
                parts.append((inner, factor * own if own is not None else None))
        elif node is not None and factor is not None:
            counts.append(targets_of(node, factor) or 0.0)
        else:
            counts.append(0.0)
        if len(counts) + len(parts) > MOST_TERMS:
            return []
    tensors = [count for count in counts if isinstance(count, torch.Tensor)]
    if not tensors:
        return counts
    # One tensor: if it lies on a GPU, no step waits for it.
    parts = []
    for count in counts:
        is_tensor = isinstance(count, torch.Tensor)
        parts.append(count if is_tensor else tensors[0].new_full((), count))
    return torch.stack(parts)


def is_sum(node):
    return node.name() in ("AddBackward0", "SubBackward0")


def note_gradients(before_clip):
    """In the first steps only: it costs a pass over the gradients."""
    if TRAINING.made and min(TRAINING.made.values()) >= 9:
        return
    for optimizer, number in TRAINING.optimizers.items():
        if TRAINING.made[number] < 9:
            gradients = [parameter.grad for parameter in parameters_of(optimizer)[:20]]
            write(Gradients(now(), number, before_clip, weighted_sums(gradients)))


# ------------------------------------------------------------------ scaling and clipping


def note_scale(result, scaler, outputs):
    """The loss before it was multiplied: the factor is no choice of the script."""
    if scaler.is_enabled() and isinstance(outputs, torch.Tensor):
        TRAINING.scaled = (weakref.ref(result), outputs.grad_fn, outputs.detach())
        TRAINING.scaler = weakref.ref(scaler)


def note_unscale(*args, **kwargs):
    TRAINING.scaler = None


def note_scaler_step(_, scaler, *args, **kwargs):
    TRAINING.scaler = None
    if scaler.is_enabled():  # otherwise it leaves no step out
        write(ScalerStepped(now()))


def note_clip(parameters, limit=None, *args, **kwargs):
    scaler = TRAINING.scaler() if TRAINING.scaler is not None else None
    if scaler is not None and PROCESS.written[Clipped] < 5:
        limit = kwargs.get("max_norm", kwargs.get("clip_value", limit))
        write(Clipped(now(), here(), scaler.get_scale(), float(limit)))
    note_gradients(before_clip=True)


# ------------------------------------------------------------------ the optimizer


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_in_ddp(parameter):
    reference = TRAINING.in_ddp.get(id(parameter))
    return reference is not None and reference() is parameter


def before_step(optimizer, args, kwargs):
    if not PROCESS.is_rank() or is_recorded():
        return
    closure = any(map(callable, [*args[1:], *kwargs.values()]))
    quietly(note_step, optimizer, closure)
    PROCESS.step += 1
    TRAINING.first_forward = True
    if PROCESS.step % EVERY == 0:
        quietly(tell_later)


def note_step(optimizer, closure):
    parameters = parameters_of(optimizer)
    number = number_of(optimizer, parameters)
    n = TRAINING.made[number]
    TRAINING.made[number] += 1
    TRAINING.steps += TRAINING.joint[number]
    looked_at = is_looked_at(n) or follows_other_pass(number)
    gradients = [parameter.grad for parameter in parameters]
    if looked_at:
        TRAINING.trained.update(id(p) for p in parameters if p.grad is not None)
    event = Step(
        now(),
        at=here(),
        optimizer=number,
        n=n,
        closure=closure,
        rates=rates_of(optimizer),
        finite=are_finite(gradients) if looked_at else None,
        gradients=fingerprints(gradients) if looked_at else [],
        weights=weights_of(parameters) if looked_at else [],
        sums=weighted_sums(gradients[:20]) if n < 9 else [],
        random=states_before_step() if looks_at_random() else {},
        graphs=len(TRAINING.graphs),
        memory=memory_used() if n % 10 == 9 else 0,
    )
    write(event)
    if event.graphs > 8 and not TRAINING.keeps:
        note_keeper()


def is_looked_at(n):
    """Are gradients and weights compared in this step? In a long run it becomes rare."""
    if n < 12:
        return True
    distance = 10 if n < 100 else 50
    return n % distance == distance - 1


def follows_other_pass(number):
    """Did DDP average nothing in the last pass, although it averages in others?

    This step may be a rare one, as the rest of an accumulation is. Such looks have a bound.
    """
    rare = TRAINING.unaveraged and TRAINING.joint[number] and TRAINING.averaged > 0
    TRAINING.further_looks += rare
    return rare and TRAINING.further_looks <= MOST_FURTHER


def number_of(optimizer, parameters):
    """Optimizers of the same parameters have one number: one may take the place of the other."""
    key = (len(TRAINING.in_ddp), *map(id, parameters))
    number = TRAINING.numbers.get(key)
    if number is None:
        number = len(TRAINING.numbers)
        TRAINING.numbers[key] = number
        in_ddp = [is_in_ddp(parameter) for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters)
        TRAINING.joint[number] = any(in_ddp)
        made = TRAINING.lines_made.get(optimizer, "")
        models = [TRAINING.model_of.get(id(parameter), -1) for parameter in parameters]
        other = TRAINING.optimizers.get(optimizer)  # before add_param_group()
        before = TRAINING.before[other] + TRAINING.made[other] if other is not None else 0
        TRAINING.before[number] = before
        write(Parameters(now(), number, sizes, in_ddp, plain, made, models, before))
    TRAINING.optimizers[optimizer] = number
    return number


def weights_of(parameters):
    """What never had a gradient may be in no model, and each rank may have its own."""
    return fingerprints(one if id(one) in TRAINING.trained else None for one in parameters)


def rates_of(optimizer):
    rates = [group["lr"] for group in optimizer.param_groups]
    on_gpu = [rate for rate in rates if isinstance(rate, torch.Tensor) and rate.is_cuda]
    if on_gpu:
        return torch.stack([rate.detach().reshape(()) for rate in on_gpu])
    return [float(rate) for rate in rates]


def are_finite(gradients):
    """The largest number is nan or inf if any one is, and it cannot overflow as a sum can."""
    present = [gradient for gradient in gradients if is_plain(gradient)]
    if not present:
        return True
    largest = torch.nn.utils.get_total_norm(present, norm_type=math.inf)
    return torch.isfinite(largest)


def memory_used():
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0


def looks_at_random():
    """In the first steps, and in some after a seed. It costs a pass over all states."""
    if PROCESS.step >= 20 and PROCESS.step >= PROCESS.seeded + 8:
        return False
    TRAINING.random_looks += 1
    return TRAINING.random_looks <= MOST_RANDOM


def states_before_step():
    states = random_states()
    if torch.cuda.is_initialized():  # the state of its generator is kept on the host
        states["cuda"] = checksum(torch.cuda.get_rng_state())
    for name, generator in TRAINING.generators.items():
        states[name] = state_of(generator)
    return states


def note_end():
    """At the end of the process, or when it leaves its group."""
    if TRAINING.ended:
        return
    TRAINING.ended = True
    # Otherwise the rank has loaded other weights, to evaluate or to save them.
    if TRAINING.loaded < PROCESS.step:
        for optimizer, number in TRAINING.optimizers.items():
            weights = weights_of(parameters_of(optimizer))
            write(Last(now(), number, TRAINING.made[number], weights))
    for schedule in TRAINING.schedules:
        fields = (schedule.at, schedule.name, schedule.length, schedule.rises, schedule.gone)
        write(Scheduled(now(), *fields, schedule.made))
    write(Totals(now(), TRAINING.steps, TRAINING.averaged))


# ------------------------------------------------------------------ schedules

# Numbers of the script or of transformers which say how long a schedule is.
LENGTHS = re.compile(
    "(num|max|total|n)_?(train(ing)?_?)?(steps|iters|iterations|updates)|total|t_total", re.I
)


def note_schedule(_, scheduler, *args, **kwargs):
    schedule = TRAINING.known.get(scheduler)
    if schedule is None:
        schedule = Schedule(scheduler)
        TRAINING.known[scheduler] = schedule
        TRAINING.schedules.append(schedule)
    schedule.gone = getattr(scheduler, "last_epoch", 0)
    if schedule.calls < 10:  # the first ones are a part of constructors
        schedule.calls += 1
        schedule.at = here()
    if schedule.length is None and schedule.gone < 3:
        schedule.length = length_of(scheduler)


def note_plateau(_, metrics, *args, **kwargs):
    value = metrics.detach().float().sum() if isinstance(metrics, torch.Tensor) else float(metrics)
    write(Plateau(now(), here(), value))


def length_of(scheduler):
    """For how many steps was it made? None: it does not say that."""
    for name in ("total_steps", "T_max", "total_iters"):
        if hasattr(scheduler, name):
            return getattr(scheduler, name)
    milestones = getattr(scheduler, "_milestones", None)
    if milestones:  # SequentialLR: the last schedule begins at the last of them
        last = length_of(scheduler._schedulers[-1])
        return milestones[-1] + last if last else None
    for function in getattr(scheduler, "lr_lambdas", ()):
        for name, value in names_in(function).items():
            if LENGTHS.fullmatch(name) and isinstance(value, (int, float)):
                return int(value)
    return None


def names_in(function):
    """The numbers that a function of the rate knows: of a partial(), a closure, its module."""
    names = dict(getattr(function, "keywords", {}))
    code = getattr(function, "__code__", None)
    if code is not None:
        for name in code.co_names:
            names[name] = function.__globals__.get(name)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            names[name] = cell.cell_contents
    return names


def ends_with_the_full_rate(scheduler):
    """A warm-up is short on purpose: the rate goes on at its end, and is not used up."""
    if type(scheduler).__name__ == "ConstantLR":
        return True
    return getattr(scheduler, "end_factor", 0) >= 1


# ------------------------------------------------------------------ what keeps graphs


def note_keeper():
    """Which variable of the script holds the graphs of many steps, and which line adds to it?"""
    for frame in script_frames():
        for name, value in variables(frame.f_locals):
            if holds_graphs(value):
                TRAINING.keeps = True
                at = line_that_adds(frame.f_code.co_filename, name) or line_of(frame)
                write(Keeps(now(), at, name))
                return


def variables(scope):
    """The variables of a frame, and the attributes of objects, which a class calls self.NAME."""
    for name, value in [*scope.items()]:
        yield name, value
        if hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            attributes = {**vars(type(value)), **vars(value)}
            for attribute, inner in attributes.items():
                yield f"self.{attribute}", inner


def holds_graphs(value):
    if isinstance(value, (list, tuple)) and len(value) > 5:
        return all(isinstance(v, torch.Tensor) and v.grad_fn is not None for v in value[:6])
    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
        return depth_of_sum(value.grad_fn) > 5
    return False


def depth_of_sum(node):
    """How many additions lie above each other: `total += loss` makes one in each step."""
    depth = 0
    while node is not None and node.name().startswith("AddBackward"):
        depth += 1
        node = node.next_functions[0][0]
    return depth


@functools.cache
@without_collection
def line_that_adds(filename, name):
    """The first `name.append(...)`, `name += ...` or `name = name + ...` of a file."""
    for node in ast.walk(tree_of(filename)):
        adds = isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name
        adds |= isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append"
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            adds |= ast.unparse(node.value).startswith(f"{name} + ")
        if adds:
            return f"{shown(filename)}:{node.lineno}"
    return None

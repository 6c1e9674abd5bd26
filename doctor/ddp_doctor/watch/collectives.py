"""Watches torch.distributed: who joins, who calls which collective where, what may wait."""

import ast
import functools
from itertools import islice
from traceback import walk_stack

import torch
from torch import distributed as dist

from ..run.events import Collective, Destroyed, Joined, Joining
from . import state, steps
from .data import FEW, values_of_result
from .lines import (
    HERE,
    TORCH,
    function_of,
    here,
    line_of,
    script_frames,
    tree_of,
    without_collection,
)
from .note import PROCESS, now, quietly, waiting, write
from .patch import replace
from .ports import note_port

# Functions of Lightning and Accelerate that send decisions, or states of random generators.
NO_RESULTS = {"reduce_boolean_decision", "synchronize_rng_state"}

# Functions of the Trainer that bring together what belongs to the training.
OF_TRAINER = {
    "_maybe_log_save_evaluate",
    "get_batch_samples",
    "_get_num_items_in_batch",
    "store_flos",
}
COLLECTIVES = """all_reduce reduce broadcast all_gather all_gather_into_tensor gather scatter
 reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier
 all_gather_object broadcast_object_list gather_object scatter_object_list send recv isend irecv
 batch_isend_irecv new_group""".split()
HOOKED = ("forward", "backward")  # in which the script's own code and hooks may run
MOST_LOOKS = 100  # at the numbers of a tensor, which may wait for a GPU


def install():
    module = dist.distributed_c10d
    for name in COLLECTIVES:
        around = functools.partial(around_collective, name)
        setattr(module, name, replace(dist, name, around))
    replace(dist.Work, "wait", functools.partial(around_collective, "wait"))
    watch_group()


def watch_group():
    """A process is a rank as soon as it joins: is_rank() is not asked here."""
    module = dist.distributed_c10d
    join = dist.init_process_group
    destroy = dist.destroy_process_group

    @functools.wraps(join)
    def init_process_group(*args, **kwargs):
        PROCESS.forked = False
        quietly(note_port, args, kwargs)
        quietly(note_joining)
        with waiting("init_process_group"):
            join(*args, **kwargs)
        quietly(note_joined)

    @functools.wraps(destroy)
    def destroy_process_group(group=None):
        if group is None:
            quietly(state.note_end)
            quietly(steps.note_end)
            quietly(note_destroyed)
        destroy(group)

    dist.init_process_group = module.init_process_group = init_process_group
    dist.destroy_process_group = module.destroy_process_group = destroy_process_group


def note_joining():
    write(Joining(now(), here()))


def note_joined():
    write(Joined(now(), here(), dist.get_rank(), dist.get_world_size()))


def note_destroyed():
    write(Destroyed(now()))


def around_collective(name, original, *args, **kwargs):
    inside = PROCESS.waits_in[-1] if PROCESS.waits_in else None
    if inside is not None and (inside not in HOOKED or is_called_by_torch()):
        return original(*args, **kwargs)  # a part of another call
    quietly(note_collective, name, [*args, *kwargs.values()])
    with waiting(name):
        return original(*args, **kwargs)


def is_called_by_torch():
    """Is it PyTorch that calls the watched function, as Join or SyncBatchNorm do?"""
    for frame, _ in walk_stack(None):
        name = frame.f_code.co_filename
        if not name.startswith(HERE):
            # torch.distributed.nn does what the script asks it to do.
            return name.startswith(TORCH) and not name.startswith(f"{TORCH}/distributed/nn")
    return False


def note_collective(name, values):
    script = list(islice(script_frames(), 20))
    functions = [function_of(frame) for frame in script]
    frames = script[:4]
    lines = [line_of(frame) for frame in frames] or ["?"]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    groups = [value for value in values if isinstance(value, dist.ProcessGroup)]
    operations = [value for value in values if isinstance(value, dist.ReduceOp)]
    given = object_given(name, values)
    about = {}
    for frame in reversed(frames):
        about |= words_around(frame)
    if frames and tensors:
        about |= name_of(tensors[0], frames[0])
        about |= keys_of(tensors[0], frames[0])
    codes = [frame.f_code for frame, _ in walk_stack(None)]
    callers = {code.co_name for code in codes}
    event = Collective(
        now(),
        at=lines[0],
        op=name,
        called_from=lines[1:],
        functions=functions,
        numel=tensors[0].numel() if tensors else 0,
        whole_group=all(group is dist.group.WORLD for group in groups),
        about=about,
        by_torch=is_called_by_torch(),
        trimmed="gather_for_metrics" in callers,
        decides=bool(callers & NO_RESULTS),
        of_training=is_of_training(codes),
        sums=all(op == dist.ReduceOp.SUM for op in operations),
        values=values_of_result(own_part(name, tensors), given),
        given=rows_of(own_part(name, tensors)[0]) if tensors else rows_of(given),
    )
    write(event)


GIVE_OBJECTS = {"all_gather_object": 1, "gather_object": 0}  # the place of a rank's own object


def object_given(name, values):
    place = GIVE_OBJECTS.get(name, len(values))
    return values[place] if place < len(values) else None


def own_part(name, tensors):
    """all_gather_into_tensor(output, input) has two tensors, and the rank gives the last one."""
    return tensors[-1:] if name == "all_gather_into_tensor" else tensors


def rows_of(thing):
    """How many results are in it? An object may have a few lists of them, as (guesses, labels)."""
    if thing is None or isinstance(thing, str):
        return 0
    if isinstance(thing, torch.Tensor):
        return len(thing) if thing.dim() else 1
    if isinstance(thing, (dict, tuple)) and len(thing) <= FEW:
        parts = thing.values() if isinstance(thing, dict) else thing
        return max(map(rows_of, parts), default=0)
    try:
        return len(thing)
    except TypeError:  # a number, also one of NumPy
        return 1


def is_of_training(codes):
    """Lightning brings together what training_step() has logged after it has evaluated.

    The Trainer does so with the loss of the training, and counts the targets of the next batches.
    """
    functions = {code.co_name for code in codes}
    if functions & OF_TRAINER and "evaluate" not in functions:
        return True
    names = [code.co_filename for code in codes]
    fits = any(name.endswith("loops/fit_loop.py") for name in names)
    return fits and not any(name.endswith("loops/evaluation_loop.py") for name in names)


# ------------------------------------------------------------------ what is a call about?


def name_of(tensor, frame):
    """The variable that holds the tensor, if it is exactly one, or the key of a dictionary."""
    names = []
    for name, value in frame.f_locals.items():
        if value is tensor:
            names.append(name)
        if type(value) is dict and len(value) <= 50:
            for key, inner in value.items():
                if inner is tensor and type(key) is str:
                    return {"key": key}
    return {"tensor": names[0]} if len(names) == 1 else {}


def keys_of(tensor, frame):
    """`all_reduce(torch.tensor([*sums.values()]))`: the keys of `sums`, in their order."""
    count = tensor.numel()
    if not 1 < count <= 50 or PROCESS.written[Collective] > MOST_LOOKS:
        return {}
    for value in frame.f_locals.values():
        if type(value) is dict and len(value) == count and has_named_numbers(value):
            numbers = torch.tensor([float(number) for number in value.values()])
            if torch.allclose(tensor.detach().cpu().float().reshape(-1), numbers):
                return {"keys": ", ".join(value)}
    return {}


def has_named_numbers(dictionary):
    for key, value in dictionary.items():
        is_number = isinstance(value, (int, float))
        is_number |= isinstance(value, torch.Tensor) and value.numel() == 1
        if type(key) is not str or not is_number:
            return False
    return True


def words_around(frame):
    """Loop variables and parameters that are words: `for name in sums: all_reduce(sums[name])`."""
    code = frame.f_code
    names = set(code.co_varnames[: code.co_argcount])
    names |= loop_variables(code.co_filename).get(frame.f_lineno, set())
    words = {}
    for name in names:
        value = frame.f_locals.get(name)
        if type(value) is str and len(value) < 60:
            words[name] = value
    return words


@functools.cache
@without_collection
def loop_variables(filename):
    """{line: the variables of the for loops around this line}"""
    variables = {}
    for loop in ast.walk(tree_of(filename)):
        if isinstance(loop, ast.For):
            targets = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
            for line in range(loop.lineno, loop.end_lineno + 1):
                variables.setdefault(line, set()).update(targets)
    return variables

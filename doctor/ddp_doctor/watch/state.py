"""Watches what the script holds next to the weights that an optimizer trains.

A DDP model may have parameters that the script changes by hand, such as a codebook, and modules of
the script may have buffers. Both are looked at before three steps, and parameters at the end, too.
When training begins, the variables of the script are looked at once: words that get numbers, and
random generators, whose states steps.py then notes.
"""

import re
import sys
import weakref
import zlib

import torch
from torch.nn.modules.loss import _Loss as Loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..run.events import Statistic, Untrained, Vocabulary
from .data import READING, below_subsets
from .lines import is_script, script_frames
from .note import EVERY_STATE, PROCESS, now, quietly, write
from .patch import after, is_recorded, replace
from .steps import TRAINING
from .tensors import fingerprints, is_generator, is_plain

LOOKS = (0, 2, 5, 9)  # steps before which it looks
MOST_NUMBERS = 50_000_000  # of the tensors of a look: the cost of a look has a bound
FEWEST_WORDS = 4  # fewer words may have one order by chance
MOST_WORDS = 200_000
MOST_GENERATORS = 5
MOST_OF_STATISTIC = 1000  # numbers: a mean per channel, a weight per class
STATISTIC = re.compile(
    r"(.*[_.])?(mean|std|stdev|var|mu|sigma|medians?|priors?|idf|freqs?|frequencies"
    r"|class_weights?|class_counts?|pos_weight|weights?)"
)


class Held:
    """The models that DDP has wrapped."""

    def reset(self):
        self.models = weakref.WeakSet()
        self.ended = False


HELD = Held()
HELD.reset()
EVERY_STATE.append(HELD)


def install():
    replace(DDP, "_ddp_init_helper", after(note_ddp))
    register_optimizer_step_pre_hook(before_step)


def note_ddp(_, ddp, *args, **kwargs):
    HELD.models.add(ddp)


def before_step(optimizer, args, kwargs):
    """It is called after the hook of steps.py, which has counted this step."""
    if PROCESS.step - 1 not in LOOKS or is_recorded() or not PROCESS.is_rank():
        return
    if PROCESS.step == 1:
        quietly(note_variables)
    else:
        quietly(note_untrained, last=False)
    if PROCESS.step <= 3:
        quietly(note_statistics)


def note_end():
    if not HELD.ended and PROCESS.step:
        HELD.ended = True
        note_untrained(last=True)


# ------------------------------------------------------------------ parameters and buffers


def note_untrained(last):
    if len(HELD.models) != 1:
        return
    [ddp] = HELD.models
    ignored = ddp.parameters_to_ignore
    held = {}
    for name, parameter in ddp.module.named_parameters():
        if id(parameter) not in TRAINING.trained and name not in ignored:
            held[name] = parameter
    count = len(held)
    if not last:
        held |= own_buffers(ddp.module, ignored)
    if held and sum(tensor.numel() for tensor in held.values()) < MOST_NUMBERS:
        state = fingerprints(held.values())
        write(Untrained(now(), [*held], state, len(held) - count, last))


def own_buffers(model, ignored):
    """Buffers of modules that the script defines. Those of a BatchNorm differ rightly."""
    buffers = {}
    for prefix, module in model.named_modules():
        code = getattr(type(module).forward, "__code__", None)
        if code is None or not is_script(code.co_filename):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            if full not in ignored and is_plain(buffer):
                buffers[full] = buffer
    return buffers


# ------------------------------------------------------------------ words, random generators


def note_variables():
    known = set()
    for name, value in every_variable():
        if name in known:
            continue
        if is_generator(value) and len(TRAINING.generators) < MOST_GENERATORS:
            known.add(name)
            TRAINING.generators[name] = value
        words = words_of(value)
        if words:
            known.add(name)
            numbers = isinstance(value, dict)
            in_common = fingerprint_of(sorted(words))
            write(Vocabulary(now(), name, len(words), in_common, fingerprint_of(words), numbers))


def note_statistics():
    """It is called twice: what changes from step to step is no statistic of the data."""
    known = set()
    for name, value in every_variable():
        if name not in known and STATISTIC.fullmatch(name) and is_small(value):
            known.add(name)
            write(Statistic(now(), name, zlib.crc32(str(value).encode())))


def is_small(value):
    """A number, or a few of them, and no part of a graph."""
    if isinstance(value, torch.Tensor):
        on_host = value.device.type == "cpu" and not value.requires_grad
        return on_host and not isinstance(value, torch.nn.Parameter) and is_short(value.numel())
    return isinstance(value, float) or is_short(getattr(value, "size", 0))


def is_short(count):
    return type(count) is int and 0 < count <= MOST_OF_STATISTIC


def every_variable():
    """Of the frames that led here, of the script's modules, and of the data sets."""
    seen = set()  # ids of objects
    for frame in script_frames():
        yield from variables(frame.f_locals, seen)
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_script(file):
            yield from variables(vars(module), seen)
    for loader in [*READING.loaders]:
        dataset, _ = below_subsets(loader.dataset)
        yield from variables({"dataset": dataset}, seen)


def variables(scope, seen, depth=2):
    """Also the attributes of objects of the script's classes, and of their attributes."""
    for name, value in [*scope.items()]:
        yield name, value
        if isinstance(value, Loss):
            for inner, weight in value.named_buffers():
                yield f"{name}.{inner}", weight
        if depth and id(value) not in seen and is_of_script(type(value)):
            seen.add(id(value))
            attributes = getattr(value, "__dict__", {})
            named = {f"self.{inner}": one for inner, one in attributes.items()}
            yield from variables(named, seen, depth - 1)


def is_of_script(kind):
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_script(file)


def words_of(value):
    """The words of a list, or those of a dictionary in the order of their numbers."""
    if type(value) not in (list, dict) or not FEWEST_WORDS <= len(value) <= MOST_WORDS:
        return []
    if any(type(word) is not str for word in value):
        return []
    if type(value) is list:
        return value
    numbers = [*value.values()]
    if any(type(number) is not int for number in numbers) or len({*numbers}) < len(numbers):
        return []
    return sorted(value, key=value.get)


def fingerprint_of(words):
    return zlib.crc32("\n".join(words).encode(errors="replace"))

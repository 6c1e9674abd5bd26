"""Watches what the script shows: print, logging, tqdm, TensorBoard, Lightning's self.log.

Each way to print is one row of PRINTERS: the module, the function, and what it makes a text of.
"""

import inspect
import re
import sys
from itertools import islice
from types import ModuleType

import torch

from ..run.digits import NUMBER, agrees
from ..run.events import Asked, Printed
from .data import evaluates
from .lines import callers, here, line_of, script_frames
from .note import EVERY_STATE, now, quietly, write
from .patch import before, replace


def of_print(*values, file=None, **kwargs):
    return " ".join(map(str, values)) if file in (None, sys.stdout, sys.stderr) else ""


def of_logging(logger, record):
    return record.getMessage()


def of_postfix(bar, values=None, *args, **kwargs):
    shown = {} if bar.disable else {**(values or {}), **kwargs}
    return ", ".join(f"{name}={value}" for name, value in shown.items() if name != "refresh")


def of_text(bar, text="", *args, **kwargs):
    return "" if bar.disable else str(text)


def of_write(text, *args, **kwargs):
    return str(text)


def of_scalar(writer, tag, value, *args, **kwargs):
    return f"{tag} {float(value)}"


def of_scalars(writer, tag, values, *args, **kwargs):
    return ", ".join(f"{name} {float(value)}" for name, value in values.items())


def of_lightning(module, name, value, *args, **kwargs):
    return of_lightning_values(module, {name: value}, *args, **kwargs)


def of_lightning_values(module, values, *args, sync_dist=False, **kwargs):
    """With sync_dist Lightning brings the values of the ranks together. A metric does it itself."""
    if sync_dist:
        write(Asked(now(), here(), callers()))
        return ""
    words = []
    for name, value in values.items():
        if isinstance(value, (int, float)) or is_number_at_hand(value):
            words.append(f"{name} {float(value)}")
    return ", ".join(words)


def is_number_at_hand(value):
    """A value on a GPU is not read: the step would wait for it, and the script does not."""
    is_tensor = isinstance(value, torch.Tensor) and value.numel() == 1
    return is_tensor and value.device.type == "cpu"


def of_values(logger, values, *args, **kwargs):
    """Weights & Biases, Accelerate's and Fabric's trackers: a dictionary of numbers."""
    words = []
    for name, value in values.items():
        if isinstance(value, (int, float)) or is_number_at_hand(value):
            words.append(f"{name} {float(value)}")
    return ", ".join(words)


def of_named_value(logger, name, value, *args, **kwargs):
    return of_values(logger, {name: value})


def of_rich(console, *values, **kwargs):
    return " ".join(
        of_table(value) if hasattr(value, "columns") else str(value) for value in values
    )


def of_table(table):
    """The last row of a rich table, with the names of its columns."""
    words = []
    for column in table.columns:
        cells = [*column.cells]
        words.append(f"{column.header} {cells[-1] if cells else ''}")
    return ", ".join(words)


def of_progress(progress, task, *args, description=None, **fields):
    if progress.disable:
        return ""
    shown = [f"{name}={value}" for name, value in fields.items() if name not in TASK]
    return ", ".join([*filter(None, [description]), *shown])


def of_row(writer, row, *args, **kwargs):
    return of_values(writer, row)


def of_loguru(logger, level, from_decorator, options, message, args, kwargs):
    return message.format(*args, **kwargs) if args or kwargs else str(message)


TASK = ("total", "completed", "advance", "visible", "refresh")  # of a rich progress bar
PRINTERS = [
    ("builtins", "print", "print", of_print),
    ("logging:Logger", "handle", "logging", of_logging),
    ("tqdm.std:tqdm", "set_postfix", "tqdm", of_postfix),
    ("tqdm.std:tqdm", "set_postfix_str", "tqdm", of_text),
    ("tqdm.std:tqdm", "set_description", "tqdm", of_text),
    ("tqdm.std:tqdm", "set_description_str", "tqdm", of_text),
    ("tqdm.std:tqdm", "write", "tqdm", of_write),
    ("torch.utils.tensorboard.writer:SummaryWriter", "add_scalar", "TensorBoard", of_scalar),
    ("torch.utils.tensorboard.writer:SummaryWriter", "add_scalars", "TensorBoard", of_scalars),
    ("tensorboardX:SummaryWriter", "add_scalar", "TensorBoard", of_scalar),
    ("lightning.pytorch:LightningModule", "log", "Lightning", of_lightning),
    ("lightning.pytorch:LightningModule", "log_dict", "Lightning", of_lightning_values),
    ("pytorch_lightning:LightningModule", "log", "Lightning", of_lightning),
    ("pytorch_lightning:LightningModule", "log_dict", "Lightning", of_lightning_values),
    ("lightning.fabric:Fabric", "log", "Fabric", of_named_value),
    ("lightning.fabric:Fabric", "log_dict", "Fabric", of_values),
    ("accelerate:Accelerator", "log", "Accelerate", of_values),
    ("wandb.sdk.wandb_run:Run", "log", "wandb", of_values),
    ("rich.console:Console", "print", "rich", of_rich),
    ("rich.console:Console", "log", "rich", of_rich),
    ("rich.progress:Progress", "update", "rich", of_progress),
    ("csv:DictWriter", "writerow", "csv", of_row),
    ("loguru._logger:Logger", "_log", "loguru", of_loguru),
]


class Imported:
    """How many modules were imported at the last look?"""

    count = 0


IMPORTED = Imported()


def install():
    install_known()
    replace(sys.modules["torch"].autograd, "backward", before(install_known))


def install_known(*args, **kwargs):
    """Watch the modules that the script has imported by now, each once."""
    if len(sys.modules) == IMPORTED.count:
        return  # as in almost every step
    IMPORTED.count = len(sys.modules)
    for row in [*PRINTERS]:
        module, _, name = row[0].partition(":")
        owner = sys.modules.get(module)
        if name:
            owner = getattr(owner, name, None)  # not there while the module is being imported
        if owner is not None:
            PRINTERS.remove(row)
            quietly(watch_printer, owner, *row[1:])


def watch_printer(owner, name, by, text_of):
    def note(*args, **kwargs):
        note_text(by, text_of(*args, **kwargs))

    is_class_method = isinstance(vars(owner).get(name), classmethod)
    watched = replace(owner, name, before(note))
    if is_class_method:
        setattr(owner, name, staticmethod(watched))


def note_text(by, text):
    text = with_columns(by, text)
    if not NUMBER.search(text):
        return
    through = [line_of(frame) for frame in islice(script_frames(), 5)]
    for frame in script_frames():
        if not was_handed(frame, text):
            write(Printed(now(), line_of(frame), by, text[:300], evaluates(), through))
            return
    write(Printed(now(), here(), by, text[:300], evaluates(), through))


# ------------------------------------------------------------------ tables

SEPARATORS = (re.compile(r"\s*[|,;\t│┃]\s*|\s{2,}"), re.compile(r"\s+"))


class Headers:
    """The names of columns that were shown last, by the way in which they were shown."""

    def reset(self):
        self.columns = {}


HEADERS = Headers()
HEADERS.reset()
EVERY_STATE.append(HEADERS)


def with_columns(by, text):
    """A row of a table gets the names of its columns: "0  0.69" becomes "epoch 0, loss 0.69"."""
    if "\n" in text.strip() or not 1 < len(text) < 300:
        return text
    if not NUMBER.search(text):
        names = text.strip(" |│┃")
        if "loss" in names.lower():
            HEADERS.columns[by] = [separator.split(names) for separator in SEPARATORS]
        return text
    for names, separator in zip(HEADERS.columns.get(by, []), SEPARATORS):
        cells = separator.split(text.strip(" |│┃"))
        if len(cells) == len(names) > 1:
            return ", ".join(f"{name} {cell}" for name, cell in zip(names, cells))
    return text


# ------------------------------------------------------------------ wrappers


def was_handed(frame, text):
    """A wrapper prints numbers that were handed to it, in a text, by themselves, or in a dict."""
    code = frame.f_code
    if code.co_name == "<module>":
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    handed = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        handed += numbers_in(value)
        handed += numbers_of(value, depth=2)
    wanted = [number for number in NUMBER.findall(text) if "." in number]
    return bool(wanted) and all(is_among(number, handed) for number in wanted)


def numbers_in(value):
    if isinstance(value, str):
        return [float(number) for number in NUMBER.findall(value)]
    if isinstance(value, float):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        found = []
        for part in value[:20]:
            found += numbers_in(part)
        return found
    return []


def numbers_of(thing, depth):
    """The numbers that an object of the script keeps: a meter prints itself, and is a wrapper."""
    if isinstance(thing, (list, tuple)):
        parts = thing[:20]
    elif isinstance(thing, dict):
        parts = [*thing.values()][:20]
    else:
        parts = attributes_of(thing)[:50]
    found = []
    for part in parts:
        if isinstance(part, float):
            found.append(part)
        elif depth > 0 and not isinstance(part, (str, int, type(None))):
            found += numbers_of(part, depth - 1)
    return found


def attributes_of(thing):
    """Only of simple objects: a model or a data set is no meter."""
    if isinstance(thing, (type, ModuleType, torch.nn.Module, torch.Tensor)):
        return []
    return [*getattr(thing, "__dict__", {}).values()]


def is_among(number, handed):
    """Is this printed number one of them, as far as its digits tell?"""
    return any(agrees(number, value) for value in handed)

"""With --short N each pass over a DataLoader ends after N batches, on all ranks alike.

A rank counts the batches that a loader gives it, and so all ranks end a pass at the same batch. The
loop sees the end as the loader's own, by StopIteration, and len(loader) stays what it is. A loop
that calls next() and expects no end there would fail: its pass is not shortened.

If a model was trained in two passes over some data, the third one does not begin. The rank says
Enough and waits, and the launcher ends the run when all ranks wait.
"""

import ast
import functools
import inspect
import opcode
import os
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..run.events import ENOUGH, Enough, LoaderRead, NotEnded
from .keep import around_writer
from .lines import HERE, here, tree_of
from .note import EVERY_STATE, now, quietly, write
from .patch import before, replace

TWICE = 2  # passes of training over some data: the order of the second one is known then


@dataclass(frozen=True)
class LoaderPass:
    """A pass over a loader that began."""

    loader: object  # a weak reference
    at: str
    data: int  # the id of the data set below all subsets
    trained: int  # backward passes before it


class Short:
    """The passes of this process."""

    def reset(self):
        self.given = weakref.WeakKeyDictionary()  # iterator -> batches of this pass
        self.passes = weakref.WeakKeyDictionary()  # iterator -> its LoaderPass, until it is over
        self.ended = weakref.WeakSet()  # iterators that give no further batch of this pass
        self.reads = False  # has this process read a loader?
        self.trained = 0  # backward passes
        self.training = []  # each LoaderPass that is over and in which a model was trained
        self.loaders = weakref.WeakSet()  # that have begun a pass


SHORT = Short()
SHORT.reset()
EVERY_STATE.append(SHORT)


def install():
    """It comes before the other watchers, so that they see the end as that of the loader."""
    replace(torch.autograd, "backward", before(note_backward))
    replace(DataLoader, "__init__", before(install_known))
    replace(DataLoader, "__iter__", around_iter)
    replace(_BaseDataLoaderIter, "__next__", around_next)


def note_backward(*args, **kwargs):
    SHORT.trained += 1


def most():
    return int(os.environ["DDP_DOCTOR_SHORT"])


def around_iter(original, loader):
    if quietly(has_trained_twice, loader):
        wait_for_the_end()
    iterator = original(loader)
    quietly(note_pass, iterator, loader)
    return iterator


def note_pass(iterator, loader):
    """Persistent workers have one iterator for all passes."""
    if not SHORT.reads:
        SHORT.reads = True
        write(LoaderRead(now()))
    data = id(below_subsets(loader.dataset))
    SHORT.passes[iterator] = LoaderPass(weakref.ref(loader), here(), data, SHORT.trained)
    SHORT.loaders.add(loader)
    SHORT.given[iterator] = 0
    SHORT.ended.discard(iterator)


def below_subsets(dataset):
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def around_next(original, iterator):
    """After the last batch the iterator is at its end, whether the loop asks for more or not."""
    if iterator in SHORT.ended:
        raise StopIteration
    given = SHORT.given.get(iterator, 0) + 1
    is_last = given == most() and quietly(can_end, iterator, given)
    try:
        batch = original(iterator)
    except StopIteration:
        quietly(note_end, iterator)
        raise
    SHORT.given[iterator] = given
    if is_last:
        SHORT.ended.add(iterator)
        quietly(note_end, iterator)
    return batch


def note_end(iterator):
    one = SHORT.passes.pop(iterator, None)
    if one is None:
        return
    if SHORT.trained > one.trained:
        SHORT.training.append(one)


# ------------------------------------------------------------------ frameworks that count


def around_length(original, engine, data):
    """Ignite counts the batches of an epoch, and begins to read again if there are too few."""
    length = original(engine, data)
    return length if length is None else min(length, most())


def around_fetch(original, fetcher):
    """Lightning evaluates after the batch that it knows to be the last one."""
    batch = original(fetcher)
    if fetcher.fetched >= most() and fetcher.combined_loader._mode != "sequential":
        fetcher.done = True
    return batch


def around_validation(original, loop, *args, **kwargs):
    """Lightning evaluates after as many batches as the whole epoch has."""
    is_last = loop.batch_progress.is_last_batch and loop._should_check_val_epoch()
    return original(loop, *args, **kwargs) or is_last


FRAMEWORKS = [
    ("ignite.engine.engine", "Engine", "_get_data_length", around_length),
    ("safetensors.torch", "", "serialize_file", functools.partial(around_writer, 1, "filename")),
]
for name in ("lightning.pytorch", "pytorch_lightning"):
    fetchers = f"{name}.loops.fetchers"
    loop = f"{name}.loops.training_epoch_loop"
    FRAMEWORKS.append((fetchers, "_DataFetcher", "__next__", around_fetch))
    FRAMEWORKS.append((loop, "_TrainingEpochLoop", "_should_check_val_fx", around_validation))


def install_known(*args, **kwargs):
    """Those that the script has imported by now, each once."""
    for row in [*FRAMEWORKS]:
        module, owner, name, around = row
        if module in sys.modules:
            FRAMEWORKS.remove(row)
            found = sys.modules[module]
            quietly(replace, getattr(found, owner) if owner else found, name, around)


# ------------------------------------------------------------------ the end of the run


def has_trained_twice(loader):
    """Over this loader, or a new one over data for which the same line has begun others."""
    place = (here(), id(below_subsets(loader.dataset)))
    is_new = loader not in SHORT.loaders
    alike = 0
    for one in SHORT.training:
        alike += one.loader() is loader or (is_new and (one.at, one.data) == place)
    return alike >= TWICE


def wait_for_the_end():
    from . import laps, steps  # They end what they have begun to tell.

    quietly(steps.note_end)
    quietly(laps.note_end)
    quietly(note_enough)
    folder = Path(os.environ["DDP_DOCTOR_FOLDER"])
    while not (folder / ENOUGH).exists():  # the launcher makes this file when all ranks wait
        time.sleep(0.1)
    sys.stdout.flush()
    os._exit(0)  # no rank waits for another one, and no launcher reports an error


def note_enough():
    write(Enough(now(), here()))


# ------------------------------------------------------------------ can a pass be ended?


def can_end(iterator, given):
    """Would more batches come, and does the loop expect that they come to an end?"""
    one = SHORT.passes.get(iterator)
    loader = one.loader() if one is not None else None
    if loader is None or is_over(loader, given):
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    if ends_quietly(frame):
        return True
    write(NotEnded(now(), here()))
    return False


def is_over(loader, given):
    try:
        return given >= len(loader)
    except TypeError:  # it has no length
        return False


def ends_quietly(frame):
    """Does StopIteration end a loop or a call there, or is it caught? Otherwise it is an error.

    In a generator it would become a RuntimeError, as in one that says `yield next(batches)`.
    """
    inner = "__next__"  # the function that the frame calls
    asks = True  # is it this frame that asks for the next batch?
    while frame is not None:
        if inner == "__next__" and not is_in_call(frame):
            return True  # a loop, or `yield from`
        if asks and not calls_next(frame):
            return True  # a call such as list(loader)
        if frame.f_lineno in lines_of(frame.f_code.co_filename).caught:
            return True
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        asks = False
        inner = frame.f_code.co_name
        frame = frame.f_back
    return False


def is_in_call(frame):
    """Not so in a loop, which fetches the next batch by another instruction."""
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return "CALL" in name


def calls_next(frame):
    return frame.f_lineno in lines_of(frame.f_code.co_filename).next


@dataclass(frozen=True)
class Lines:
    """Lines of a file."""

    next: frozenset  # with a call of next() that has no default
    caught: frozenset  # within a try statement that catches StopIteration


@functools.cache
def lines_of(filename):
    """In a file that cannot be read every line may call next(), and none catches its end."""
    tree = tree_of(filename)
    if not tree.body:
        return Lines(frozenset(range(1_000_000)), frozenset())
    asking = set()
    caught = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_next(node):
            asking.update(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.Try) and any(map(catches, node.handlers)):
            caught.update(range(node.body[0].lineno, node.body[-1].end_lineno + 1))
    return Lines(frozenset(asking), frozenset(caught))


def is_next(call):
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "__next__"
    return isinstance(call.func, ast.Name) and call.func.id == "next" and len(call.args) == 1


def catches(handler):
    """By its name: `except Exception` around the whole script expects something else."""
    nodes = ast.walk(handler.type) if handler.type is not None else []
    return any(isinstance(node, ast.Name) and node.id == "StopIteration" for node in nodes)

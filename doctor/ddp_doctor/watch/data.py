"""Watches DataLoaders: which samples does this rank get, and in which epoch?

It says when an epoch begins, what each batch has, and when StopIteration comes. Whether an epoch
was whole is concluded later (run/run.py): a framework may call next() a counted number of times.
"""

import functools
import random
import re
import sys
import weakref
import zlib
from collections import deque
from traceback import walk_stack

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Subset,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..run.events import Batch, Cut, Drew, EpochBegan, EpochEnded, Seeded
from .batch import note_batch_words
from .lines import HERE, TORCH, callers, here, is_made_by_library, is_script, maker_of, shown
from .note import EVERY_STATE, PROCESS, now, quietly, write, write_from_worker
from .patch import after, before, replace
from .short import SHORT
from .steps import thinned
from .tensors import fingerprint, is_plain, random_states

MOST_LOOKS = 10  # batches of a worker
MOST_INDICES = 2_000_000  # of a pass that --short has ended
FEW = 8  # numbers: counts and sums of an evaluation, and no predictions
SETTINGS = ("shuffle", "seed", "epoch")


class Reading:
    """The loaders of this process."""

    def reset(self):
        self.loaders = weakref.WeakKeyDictionary()  # their numbers
        self.made = weakref.WeakKeyDictionary()  # loader or sampler -> line of its constructor
        self.made_from = weakref.WeakKeyDictionary()  # loader -> the lines that led to that one
        self.loaders_of = {}  # id of a data set -> the same two of the script's last loader of it
        self.iterators = weakref.WeakKeyDictionary()  # iterator -> loader and its number
        self.positions = weakref.WeakKeyDictionary()  # iterator -> those of its subsets
        self.asked = weakref.WeakKeyDictionary()  # iterator -> indices of batches not yet given
        self.looked = False  # for what the script calls its batch
        self.evaluation = -1  # number of backward passes at the last eval(), -1 after train()


READING = Reading()
READING.reset()
EVERY_STATE.append(READING)


def install():
    replace(DataLoader, "__init__", before(note_loader))
    replace(DistributedSampler, "__init__", before(note_made))
    replace(Subset, "__init__", before(note_made))
    replace(DataLoader, "__iter__", after(note_epoch))
    replace(_BaseDataLoaderIter, "_reset", before(note_reset))
    replace(_BaseDataLoaderIter, "_next_index", after(note_index))
    replace(_BaseDataLoaderIter, "__next__", around_next)
    replace(torch.nn.Module, "train", before(note_mode))
    watch_workers()
    watch_seeds()


def evaluates():
    """Are gradients off, or was eval() called since the last backward pass?"""
    return not torch.is_grad_enabled() or READING.evaluation == PROCESS.passes


def note_made(thing, *args, **kwargs):
    """A sampler that a framework makes has no line that the reader could change."""
    READING.made[thing] = "" if is_made_by_library(thing) else maker_of(thing)


def note_loader(loader, dataset=None, *args, **kwargs):
    """A framework may make a loader like that of the script: the line is the script's."""
    if not is_made_by_library(loader):
        line = maker_of(loader)
        lines = [here(), *callers(most=8)]
        below = lines.index(line) + 1 if line in lines else len(lines)
        READING.loaders_of[id(dataset)] = (line, lines[below:])
    line, led_to_it = READING.loaders_of.get(id(dataset), ("", []))
    READING.made[loader] = line
    READING.made_from[loader] = led_to_it


def note_mode(module, mode=True):
    """eval() calls train(False)."""
    READING.evaluation = -1 if mode else PROCESS.passes


def note_reset(iterator, *args, **kwargs):
    """An iterator with persistent workers starts again: what it had asked for is void."""
    READING.asked.pop(iterator, None)


def note_index(index, iterator):
    """Workers are asked in advance, so the batch of these indices comes later."""
    READING.asked.setdefault(iterator, deque()).append(index)


def note_epoch(iterator, loader):
    number = READING.loaders.setdefault(loader, len(READING.loaders))
    READING.iterators[iterator] = (loader, number)
    samplers = samplers_of(loader)
    divider = deciding(samplers)
    settings = {}
    for name in SETTINGS:
        for sampler in samplers:
            if hasattr(sampler, name):
                settings.setdefault(name, str(getattr(sampler, name)))
    countable = not isinstance(loader.dataset, IterableDataset)
    dataset, positions = below_subsets(loader.dataset)
    READING.positions[iterator] = positions  # it would cost too much in each batch
    orders = [zlib.crc32(str(own).encode()) for own in reversed(positions)]
    event = EpochBegan(
        now(),
        at=here(),
        loader=number,
        batches=length_of(loader) if countable else None,
        sampler=type(divider).__name__,
        own_order=is_own(divider),
        settings=settings,
        data=digest(dataset),
        samples=len(loader.dataset) if countable else None,
        subset=zlib.crc32(str(orders).encode()),
        parts=parts_of(samplers),
        stock=type(loader.batch_sampler) is BatchSampler,
        called_from=callers(most=8),
        made=READING.made.get(loader, ""),
        made_from=READING.made_from.get(loader, []),
        sampler_made=READING.made.get(divider, "") if is_divider(divider) else "",
        subsets=[[line, order] for line, order in zip(lines_of_subsets(loader.dataset), orders)],
        streams="" if countable else first_line_of(type(loader.dataset).__iter__),
        order_by=first_line_of(type(divider).__iter__),
    )
    write(event)
    if not READING.looked and not evaluates():
        READING.looked = True
        note_batch_words()


def length_of(loader):
    """len(loader) asks the sampler, which may have no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def lines_of_subsets(dataset):
    """The inner one first. For random_split() it is the line that calls it."""
    lines = []
    while isinstance(dataset, Subset):
        lines.insert(0, READING.made.get(dataset, ""))
        dataset = dataset.dataset
    return lines


def first_line_of(function):
    code = getattr(function, "__code__", None)
    if code is None or not is_script(code.co_filename):
        return ""
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def samplers_of(loader):
    """The outer one first: Accelerate puts a batch sampler around the batch sampler."""
    samplers = [loader.batch_sampler if loader.batch_sampler is not None else loader.sampler]
    while len(samplers) < 6:
        inner = getattr(samplers[-1], "batch_sampler", None)
        if inner is None:
            inner = getattr(samplers[-1], "sampler", None)
        if inner is None:
            break
        samplers.append(inner)
    return samplers


def deciding(samplers):
    """The one that divides positions among ranks, or else the innermost."""
    for sampler in samplers:
        if is_divider(sampler):
            return sampler
    return samplers[-1]


def is_divider(sampler):
    """Does it divide positions among ranks? A sampler may also be a list."""
    return hasattr(sampler, "num_replicas")


def is_own(sampler):
    code = getattr(type(sampler).__iter__, "__code__", None)
    return code is not None and is_script(code.co_filename)


def parts_of(samplers):
    """PyTorch's DistributedSampler has num_replicas, Accelerate's BatchSamplerShard num_processes.

    If a script gives a loader with the first to Accelerate, the second divides each part again.
    """
    replicas = [getattr(sampler, "num_replicas", 1) for sampler in samplers]
    processes = [getattr(sampler, "num_processes", 1) for sampler in samplers]
    return max(replicas) * max(processes)


def around_next(original, iterator):
    loader, number = READING.iterators.get(iterator, (None, None))
    if loader is None:
        return original(iterator)
    try:
        batch = original(iterator)
    except StopIteration:
        quietly(note_epoch_ended, number)
        raise
    quietly(note_batch, iterator, loader, number)
    if iterator in SHORT.ended:
        quietly(note_cut, iterator, loader, number)
    return batch


def note_epoch_ended(number):
    write(EpochEnded(now(), number))


def note_batch(iterator, loader, number):
    asked = READING.asked.get(iterator)
    index = asked.popleft() if asked else None
    indices = [] if isinstance(loader.dataset, IterableDataset) else indices_of(index, iterator)
    event = Batch(now(), number, indices, evaluates())
    if indices and not event.evaluates:
        PROCESS.fed = PROCESS.step
    write(event)


def note_cut(iterator, loader, number):
    """Read the sampler's indices to the end of the pass. No sample is loaded."""
    asked = READING.asked.setdefault(iterator, deque())
    missing = 0
    if not isinstance(loader.dataset, IterableDataset):
        # A sampler that begins again and again would have no end.
        missing = (length_of(loader) or 0) - SHORT.given[iterator]
    batches = []
    count = 0
    while len(batches) < missing and count < MOST_INDICES:
        if not asked:
            try:
                iterator._next_index()  # note_index() puts it there
            except StopIteration:
                break
        batches.append(indices_of(asked.popleft(), iterator))
        count += len(batches[-1])
    asked.clear()
    write(Cut(now(), number, batches))


def indices_of(index, iterator):
    """In the data set below all subsets."""
    indices = whole_numbers(index)
    for inner in READING.positions.get(iterator, []):
        indices = [inner[i] for i in indices]
    return indices


def whole_numbers(index):
    """An index may be a number, a list of numbers, or a list of groups of them."""
    if isinstance(index, list) and all(type(number) is int for number in index):
        return index  # as of almost all samplers
    if isinstance(index, (list, tuple)):
        numbers = []
        for part in index:
            numbers += whole_numbers(part)
        return numbers
    return [int(index)] if index is not None else []


def below_subsets(dataset):
    """-> the data set below all subsets, and the positions of each subset, the outer one first."""
    positions = []
    while isinstance(dataset, Subset):
        positions.append([int(index) for index in dataset.indices])
        dataset = dataset.dataset
    return dataset, positions


def digest(dataset):
    """Of all attributes that can be shown, without the addresses of objects."""
    parts = [type(dataset).__name__]
    attributes = getattr(dataset, "__dict__", {"list": dataset})
    for name, value in sorted(attributes.items()):
        if is_plain(value) and value.dim() > 0:
            # To print a tensor takes milliseconds.
            first = fingerprint(thinned(value[:10]))
            last = fingerprint(thinned(value[-10:]))
            parts.append(f"{name} {len(value)} {first} {last}")
        elif isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0:
            parts.append(f"{name} {len(value)} {value[:10]} {value[-10:]}")
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value}")
    without_addresses = re.sub("0x[0-9a-f]+", "", " ".join(parts))
    return zlib.crc32(without_addresses.encode())


def values_of_result(tensors, given=None):
    """The numbers that a collective of an evaluation gets. On a GPU they are read later.

    What the rank gives may also be an object with a few numbers.
    """
    if not evaluates():
        return []
    if len(tensors) == 1 and tensors[0].numel() <= FEW:
        return tensors[0].detach().double().flatten()
    numbers = numbers_in(given)
    return numbers if len(numbers) <= FEW else []


def numbers_in(thing):
    """Those of `(right, total)`, `{"loss": 0.5}` and of a number. Other objects have none."""
    if isinstance(thing, (int, float)):
        return [float(thing)]
    if isinstance(thing, torch.Tensor) and thing.numel() == 1 and thing.device.type == "cpu":
        return [float(thing)]
    parts = thing.values() if isinstance(thing, dict) else thing
    numbers = []
    if isinstance(thing, (dict, tuple, list)) and len(thing) <= FEW:
        for part in parts:
            numbers += numbers_in(part)
    return numbers


# ------------------------------------------------------------------ random numbers


def watch_workers():
    """A worker is no rank, so replace() would not watch it."""
    module = torch.utils.data._utils.worker
    original = module._worker_loop
    names = original.__code__.co_varnames
    init_place = names.index("init_fn")
    collate_place = names.index("collate_fn")

    @functools.wraps(original)
    def worker_loop(*args):
        """Take the generators' states after the script's own seeding, and look after batches."""
        args = list(args)
        init = args[init_place]
        draws = Draws(args[init_place + 1], init is not None)
        collate = args[collate_place]

        def init_and_look(number):
            if init is not None:
                init(number)
            draws.states = quietly(random_states) or {}

        def collate_and_look(samples):
            quietly(draws.look)
            return collate(samples)

        args[init_place] = init_and_look
        args[collate_place] = collate_and_look
        original(*args)
        quietly(draws.tell)

    module._worker_loop = worker_loop


class Draws:
    """Which generators has a worker used, and from which states on?

    It is told after the first batches. Persistent workers are killed and have no end of their own.
    """

    def __init__(self, number, seeded):
        self.number = number
        self.seeded = seeded  # by a function of the script, perhaps
        self.states = {}
        self.looks = 0
        self.told = set()

    def look(self):
        self.looks += 1
        if self.looks <= MOST_LOOKS:
            self.tell()

    def tell(self):
        last = random_states()
        drew = {}
        for name, state in self.states.items():
            if last[name] != state and name not in self.told:
                drew[name] = state
        if drew:
            self.told.update(drew)
            write_from_worker(Drew(now(), here(), self.number, drew, self.seeded))


def watch_seeds():
    module = sys.modules["torch.random"]
    of_torch = functools.partial(note_seed, "torch")
    torch.manual_seed = replace(module, "manual_seed", before(of_torch))
    replace(random, "seed", before(functools.partial(note_seed, "random")))
    if "numpy" in sys.modules:  # PyTorch has imported it, if it is installed
        of_numpy = functools.partial(note_seed, "numpy")
        replace(sys.modules["numpy"].random, "seed", before(of_numpy))


def note_seed(generator, seed=None, *args, **kwargs):
    """Who wanted that: the script, by this function or by one like set_seed(), or a library?"""
    asked = True
    PROCESS.seeded = PROCESS.step
    for frame, _ in walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        # As soon as torch._dynamo is imported, a function of it calls torch.manual_seed().
        if name.startswith((HERE, TORCH)):
            continue
        if is_script(name):
            break
        asked = "seed" in frame.f_code.co_name
    write(Seeded(now(), here(), generator, asked, str(seed)[:40], callers()))

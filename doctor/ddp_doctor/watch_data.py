"""Data, in each rank: loaders, and evaluations with what became of their results.

The indices that a loader asks for are those that its workers get.
See watch.py for what all watchers promise.
"""

import re
import time
import traceback
import weakref
import zlib

from . import record
from .record import OUT, State, after, before, fingerprints, noted, quietly, site, write
from .watch_step import TRAIN, ddp_of, parameters_of

INDICES = 200_000  # of an epoch, at most, are compared one by one
SAMPLER = ("shuffle", "num_replicas", "rank", "epoch", "seed", "replacement")


class Reading(State):
    """The loaders and evaluations of this process."""

    def reset(self):
        self.loaders, self.epochs = weakref.WeakKeyDictionary(), []  # those that are being read
        self.read = None  # the phase in which an epoch without a backward pass has ended
        self.begun = None  # the phase in which an evaluation has begun, whatever its model is
        self.code = None  # that calls this model
        self.hook, self.known = None, set()  # on all modules; the parameters of those noted


READ = Reading()


def open_epoch(iterator, loader):
    from torch.utils.data import BatchSampler, IterableDataset, Subset

    number = READ.loaders.setdefault(loader, len(READ.loaders))
    close_epochs(number)
    dataset, chain, sampler = loader.dataset, [], getattr(loader.batch_sampler, "sampler", None)
    while isinstance(dataset, Subset):  # also of random_split
        chain, dataset = [*chain, dataset.indices], dataset.dataset
    sampler = loader.sampler if sampler is None else sampler
    iterator.doctor_epoch = {
        "loader": number,
        "at": site(),
        "chain": chain,
        "data": digest(dataset),
        "batches": len(loader) if hasattr(loader.dataset, "__len__") else None,
        "sampler": {name: getattr(sampler, name, None) for name in SAMPLER},
        "stock": type(loader.batch_sampler) is BatchSampler,
        "iterable": isinstance(dataset, IterableDataset),
        "lists": iterator.__dict__.setdefault("doctor_lists", []),
        "delivered": 0,
        "grad": None,
        "start": (TRAIN.backwards, TRAIN.synced),
        "opened": time.monotonic(),
    }
    iterator.doctor_epoch["sampler"]["type"] = type(sampler).__name__
    TRAIN.step["began"] += 1  # a loader draws a seed when it begins
    READ.epochs.append(iterator.doctor_epoch)


def rows_of(value):
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def digest(dataset):
    """A number that differs if the ranks' data sets do, as far as their attributes show it."""
    parts = [type(dataset).__name__]
    for name, value in sorted(getattr(dataset, "__dict__", {"list": dataset}).items()):
        if rows_of(value):
            parts.append(f"{name} {len(value)} {value[:10]} {value[-10:]}")
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value}")
    return zlib.crc32(re.sub("0x[0-9a-f]+", "", " ".join(parts)).encode())


def around_worker(original, *args):
    """In a worker of a loader: how are its generators seeded, and does it draw from them?"""
    place = quietly(original.__code__.co_varnames.index, "init_fn")
    if place is None:
        return original(*args)
    init, number, states = args[place], args[place + 1], [{}]

    def seeded(number):
        if init is not None:
            init(number)
        states.append(quietly(record.draws) or {})

    original(*args[:place], seeded, *args[place + 1 :])
    after = quietly(record.draws) or {}
    drew = {name: state for name, state in states[-1].items() if state != after.get(name)}
    quietly(record.write_from_worker, "worker", at=site(), number=number, drew=drew)


def note_index(index, iterator):
    batch = index if isinstance(index, (list, tuple)) else [index]
    iterator.__dict__.setdefault("doctor_lists", []).append(batch)


def around_next(original, self):
    epoch = getattr(self, "doctor_epoch", None)
    try:
        batch = original(self)
    except StopIteration:
        self.doctor_lists = []  # an iterator that is kept starts again
        if epoch:
            epoch["ended"] = True
            quietly(close_epochs, epoch["loader"])
        raise
    if epoch:
        quietly(note_batch, epoch, self.doctor_lists)
    return batch


def note_batch(epoch, lists):
    import torch

    epoch["grad"] = torch.is_grad_enabled() and READ.begun != OUT.phase
    epoch["delivered"] += 1
    if epoch["grad"] and len(lists) >= epoch["delivered"]:
        TRAIN.step["read"] += len(lists[epoch["delivered"] - 1])
    if epoch["delivered"] == 1 and not torch.is_grad_enabled():
        note_eval()


def close_epochs(loader=None):
    """An epoch of a loader is over: which samples of the whole data were asked for?"""
    for epoch in [e for e in READ.epochs if loader in (None, e["loader"])]:
        READ.epochs.remove(epoch)
        quietly(close_epoch, epoch)


def close_epoch(epoch):
    lists, chain, start = epoch.pop("lists"), epoch.pop("chain"), epoch.pop("start")
    indices = [int(i) for batch in lists[: epoch["delivered"]] for i in batch if i is not None]
    epoch["count"] = len(indices)
    epoch["chain"] = [hash(tuple(int(i) for i in positions)) for positions in chain]
    keep = len(indices) <= INDICES and OUT.written["epoch"] < 40 and not epoch["iterable"]
    for positions in chain if keep else ():
        indices = [int(positions[i]) for i in indices]
    epoch["indices"], epoch["order"] = indices if keep else [], hash(tuple(indices))
    known = epoch["batches"] is not None
    epoch["whole"] = epoch["delivered"] == epoch["batches"] if known else epoch.pop("ended", False)
    epoch["backwards"] = TRAIN.backwards - start[0]
    epoch["synced"] = TRAIN.synced - start[1]
    write("epoch", **epoch)
    if not epoch["backwards"]:
        READ.read = OUT.phase


# ---------------------------------------------------------------- evaluations


def note_eval(*args):
    """eval() was called, or data are read without gradients: an evaluation begins, maybe."""
    if READ.begun != OUT.phase:
        READ.begun, READ.code = OUT.phase, None
        if TRAIN.backwards:
            look_at_models()


def look_at_models():
    """Until the next backward pass: which models compute, but not to be trained?"""
    import torch

    def before_module(module, inputs):
        if not (torch.is_grad_enabled() and module.training):
            quietly(note_model, module)

    if READ.hook is None and not OUT.written["compiled"]:
        READ.hook = torch.nn.modules.module.register_module_forward_pre_hook(before_module)


def note_model(module):
    """The trained model or an average of it, to be evaluated; or a teacher, a target network."""
    parameters = list(module.parameters())
    ids = set(map(id, parameters))
    # A part of one that was noted, or DDP: it sends the buffers before its module computes.
    if not ids or ids & READ.known or module in TRAIN.ddps:
        return
    READ.known |= ids
    trained = {id(p) for optimizer in TRAIN.optimizers for p in parameters_of(optimizer)}
    own = bool(ids & trained) or any(ddp_of(p) for p in parameters)
    if READ.begun == OUT.phase and READ.code is None:
        READ.code = next(record.frames()).f_code
        state = dict(module.named_buffers()) if own else module.state_dict()
        what = {"names": list(state), "state": fingerprints(state.values())}
        write("evaluated", at=site(), own=own, **what)
    elif not own:
        write("other", at=site(), state=fingerprints(parameters))


def note_added(name, tensor):
    """Results of an evaluation come together."""
    if OUT.phase not in (READ.read, READ.begun):  # a part of training
        return
    callers = {frame.f_code for frame, _ in traceback.walk_stack(None)}
    record.write_once("gathered" if "gather" in name else "added", OUT.phase)
    if "gather_for_metrics" in {code.co_name for code in callers}:  # Accelerate's: none is double
        record.write_once("trimmed", OUT.phase)
    if tensor is not None and tensor.numel() == 1:
        OUT.on_device |= tensor.device.type != "cpu"
        write("reduced", value=tensor.detach().double().sum())
    if READ.begun == OUT.phase and READ.code and (READ.read == OUT.phase or READ.code in callers):
        record.write_once("evaluation", OUT.phase, reading=len(READ.epochs))


def note_pass(*args, **kwargs):
    """Training goes on. After the third pass: which models compute next to the trained one?"""
    if READ.hook is not None:
        READ.hook.remove()
    READ.hook, READ.known = None, set()
    if TRAIN.backwards == 2:
        look_at_models()


def finish():
    close_epochs()


WATCHED = {
    "torch.autograd backward": before(note_pass),
    "torch.utils.data:DataLoader __iter__": after(open_epoch),
    "torch.utils.data.dataloader:_BaseDataLoaderIter _next_index": after(note_index),
    "torch.utils.data.dataloader:_BaseDataLoaderIter __next__": around_next,
    "torch.nn:Module eval": before(note_eval),
    "torch compile": noted("compiled"),
}

"""Data, in each rank: loaders, evaluations, and where results go: files, prints, queues; ports."""

import os
import re
import sys
import traceback
import weakref
import zlib
from itertools import takewhile
from traceback import walk_stack

from . import record
from .record import OUT, State, after, before, fingerprints, is_script, noted, quietly, site, write
from .watch_step import TRAIN, ddp_of, parameters_of

INDICES = 200_000  # of an epoch, at most, are compared one by one
LIBRARIES = ("tempfile.py", "importlib", "inspect.py", "linecache.py", "traceback.py", "utils/data")
SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")  # files in which a port may stand
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
        "whole": False,
        "sampler": {name: getattr(sampler, name, None) for name in SAMPLER},
        "stock": type(loader.batch_sampler) is BatchSampler,
        "iterable": isinstance(dataset, IterableDataset),
        "lists": iterator.__dict__.setdefault("doctor_lists", []),
        "delivered": 0,
        "grad": None,
        "start": (TRAIN.backwards, TRAIN.synced),
    }
    iterator.doctor_epoch["sampler"]["type"] = type(sampler).__name__
    TRAIN.step["began"] += 1  # a loader draws a seed when it begins
    READ.epochs.append(iterator.doctor_epoch)


def digest(dataset):
    """A number that differs if the ranks' data sets do, as far as their attributes show it."""
    parts = [type(dataset).__name__]
    for name, value in sorted(getattr(dataset, "__dict__", {"list": dataset}).items()):
        if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0:
            parts.append(f"{name} {len(value)} {value[:10]} {value[-10:]}")
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value}")
    return zlib.crc32(re.sub("0x[0-9a-f]+", "", " ".join(parts)).encode())


def around_worker(original, *args):
    """In a worker of a loader: how are its generators seeded, and does it draw from them?"""
    place = quietly(original.__code__.co_varnames.index, "init_fn")
    if place is None:
        return original(*args)
    init, number, states = args[place], args[place + 1], {}

    def seeded(number):
        if init is not None:
            init(number)
        states.update(quietly(record.draws) or {})

    original(*args[:place], seeded, *args[place + 1 :])
    drew = states.items() - (quietly(record.draws) or {}).items()
    quietly(record.write_from_worker, "worker", at=site(), number=number, drew=dict(drew))


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
            epoch["whole"] = True
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
    epoch["backwards"] = TRAIN.backwards - start[0]
    epoch["synced"] = TRAIN.synced - start[1]
    write("epoch", **epoch)
    if not epoch["backwards"]:
        READ.read = OUT.phase


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


def note_save(obj, f, *args, **kwargs):
    import torch

    whole = obj if isinstance(obj, dict) else {}
    values = [v for d in (whole, *whole.values()) if isinstance(d, dict) for v in d.values()]
    weights = any(isinstance(value, torch.Tensor) for value in values)
    if isinstance(f, (str, os.PathLike)):  # it is opened without Python's open()
        note_open(f, "w", saved=weights)


def note_sent(*args, **kwargs):
    """Results may leave by a file, by a queue of the script (not a DataLoader's), by a store."""
    if not opened_by_library():
        record.write_once("sent", OUT.phase)


def note_printed(*args, **kwargs):
    if kwargs.get("file") in (None, sys.stdout) and args:
        note_print(args)


def note_logged(logger, line):
    if is_script(line.pathname):
        note_print([line.getMessage()])


def note_print(args):
    if OUT.written["print"] < 300:
        write("print", text=" ".join(map(str, args))[:120], at=site(), steps=OUT.steps)


def hear(event, args):
    """Audit hook: files that are opened or renamed, and the port that the script itself chooses."""
    if event not in ("open", "os.rename", "os.putenv") or OUT.ended:
        return
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            OUT.port = {"url": f"tcp://:{os.fsdecode(args[1])}", "at": site()}
            if not OUT.forked:  # otherwise it is written when the process joins a group
                write("port", **OUT.port)
        elif OUT.forked:
            return
        elif OUT.file is not None and event == "os.rename":
            note_open(args[1], "w")
        elif event == "open" and isinstance(args[0], (str, bytes)):
            settings = os.fsdecode(args[0]).endswith(SETTINGS)  # read by a parent of ranks, maybe
            if OUT.file is not None or settings:
                note_open(args[0], args[1] or "", args[2] or 0)
    except Exception:  # the interpreter is shutting down
        pass


def note_open(path, mode, flags=0, saved=False):
    path = os.path.abspath(os.fsdecode(path))
    writes = bool(set(mode) & set("wxa+")) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    ours = path.startswith((os.environ["DDP_DOCTOR_FOLDER"], record.HERE, "/dev", "/proc", "/sys"))
    known = (path, writes, OUT.passed) in OUT.said or len(OUT.said) > 3000
    if ours or known or not is_script(path) or opened_by_library():
        return
    OUT.said.add((path, writes, OUT.passed))
    appends = "a" in mode or bool(flags & os.O_APPEND)
    write("open", path=path, at=site(), writes=writes, appends=appends, saved=saved)
    if writes:
        note_sent()


def opened_by_library():
    names = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(2)))
    between = takewhile(lambda name: not is_script(name), names)
    return any(library in name for name in between for library in LIBRARIES)


WATCHED = {
    "torch.autograd backward": before(note_pass),
    "torch.utils.data:DataLoader __iter__": after(open_epoch),
    "torch.utils.data.dataloader:_BaseDataLoaderIter _next_index": after(note_index),
    "torch.utils.data.dataloader:_BaseDataLoaderIter __next__": around_next,
    "torch.nn:Module eval": before(note_eval),
    "torch compile": noted("compiled"),
    "torch save": before(note_save),
    "builtins print": before(note_printed),
    "logging:Logger handle": before(note_logged),
    "multiprocessing.queues:Queue put": before(note_sent),
    "multiprocessing.queues:SimpleQueue put": before(note_sent),
    "torch.distributed:Store set": before(note_sent),
}

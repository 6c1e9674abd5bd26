"""The second half of watch.py: loaders, checkpoints, files, prints, ports.

The indices that a loader asks for are those that its workers get: nothing is watched in a worker.
"""

import os
import re
import sys
import weakref
import zlib

from .record import HERE, S, is_script, noting, quietly, site, write

INDICES = 200_000  # of an epoch, at most, are compared one by one
SAMPLER = ("shuffle", "num_replicas", "epoch", "replacement")
LIBRARIES = ("tempfile.py", "importlib", "inspect.py", "linecache.py", "traceback.py", "utils/data")


def around_iter(original, self):
    iterator = original(self)
    quietly(open_epoch, self, iterator)
    return iterator


def open_epoch(loader, iterator):
    from torch.utils.data import BatchSampler, IterableDataset, Subset

    number = S.loaders.setdefault(loader, len(S.loaders))
    close_epochs(number)
    dataset, chain, sampler = loader.dataset, [], getattr(loader.batch_sampler, "sampler", None)
    while isinstance(dataset, Subset):  # also of random_split
        chain, dataset = [*chain, dataset.indices], dataset.dataset
    sampler = loader.sampler if sampler is None else sampler
    counted, workers = hasattr(loader.dataset, "__len__"), loader.num_workers > 0
    iterator.doctor_epoch = {
        "loader": number,
        "data": number_of(dataset),
        "at": site(),
        "chain": chain,
        "length": len(dataset) if hasattr(dataset, "__len__") else None,
        "digest": digest(dataset),
        "positions": len(loader.dataset) if counted else None,
        "batches": len(loader) if counted else None,
        "sampler": {name: getattr(sampler, name, None) for name in SAMPLER},
        "stock": type(loader.batch_sampler) is BatchSampler,
        "iterable": isinstance(dataset, IterableDataset),
        "seed": getattr(iterator, "_base_seed", None) if workers else None,
        "random": random_names(dataset) if workers else [],
        "alike": seeded_alike(loader.worker_init_fn),
        "lists": iterator.__dict__.setdefault("doctor_lists", []),
        "delivered": 0,
        "grad": None,
        "before": (S.backwards, S.synced),
        "prints": [],
        "files": 0,
        "added": [],
    }
    iterator.doctor_epoch["sampler"]["type"] = type(sampler).__name__
    S.epochs.append(iterator.doctor_epoch)


def number_of(dataset):
    """Loaders with the same number read the same data set."""
    number, reference = S.datasets.get(id(dataset), (None, None))
    if reference is None or reference() is not dataset:
        number = len(S.datasets)
        try:
            S.datasets[id(dataset)] = number, weakref.ref(dataset)
        except TypeError:  # a list
            return f"list of {len(dataset)}"
    return number


def digest(dataset):
    """A number that differs if the ranks' data sets do, as far as their attributes show it."""
    parts = [type(dataset).__name__]
    for name, value in sorted(getattr(dataset, "__dict__", {"list": dataset}).items()):
        rows = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
        if rows:
            parts.append(f"{name} {len(value)} {value[:10]} {value[-10:]}")
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value}")
    return zlib.crc32(re.sub("0x[0-9a-f]+", "", " ".join(parts)).encode())


def random_names(dataset):
    """Names by which the data set's own code seems to draw random numbers: a hint, no proof."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    names = [*getattr(code, "co_names", ())]
    names += repr(getattr(dataset, "transform", "")).replace("(", " ").split()
    return sorted({n for n in names if n.startswith(("rand", "Random", "normal", "uniform"))})


def seeded_alike(worker_init):
    """Does worker_init_fn seed by the worker number, and by nothing that differs by rank?"""
    code = getattr(worker_init, "__code__", None)
    names = [*code.co_names, *code.co_freevars, *code.co_varnames] if code else []
    own = any(word in name.lower() for name in names for word in ("rank", "initial_seed", "env"))
    return any("seed" in name for name in names) and not own


def around_next_index(original, self):
    index = original(self)
    batch = index if isinstance(index, (list, tuple)) else [index]
    self.__dict__.setdefault("doctor_lists", []).append(batch)
    return index


def around_next(original, self):
    import torch

    epoch = getattr(self, "doctor_epoch", None)
    try:
        batch = original(self)
    except StopIteration:
        self.doctor_lists = []  # an iterator that is kept starts anew
        if epoch:
            epoch["ended"] = True
            quietly(close_epochs, epoch["loader"])
        raise
    if epoch:
        epoch["grad"] = torch.is_grad_enabled() and not S.evaluating
        epoch["delivered"] += 1
        epoch["train_mode"] = not torch.is_grad_enabled() and in_train_mode()
        if epoch["grad"] and len(self.doctor_lists) >= epoch["delivered"]:
            S.step["read"] += len(self.doctor_lists[epoch["delivered"] - 1])
    return batch


def in_train_mode():
    return any(ddp.module.training for ddp in S.ddps)


def close_epochs(loader=None):
    """An epoch of a loader is over: which samples of the whole data were asked for?"""
    for epoch in [e for e in S.epochs if loader in (None, e["loader"])]:
        S.epochs.remove(epoch)
        quietly(close_epoch, epoch)


def close_epoch(epoch):
    lists, chain, before = epoch.pop("lists"), epoch.pop("chain"), epoch.pop("before")
    indices = [int(i) for batch in lists[: epoch["delivered"]] for i in batch if i is not None]
    epoch["count"] = len(indices)
    epoch["chain"] = [hash(tuple(int(i) for i in positions)) for positions in chain]
    keep = len(indices) <= INDICES and S.written["epoch"] < 40 and not epoch["iterable"]
    for positions in chain if keep else ():
        indices = [int(positions[i]) for i in indices]
    epoch["indices"], epoch["order"] = indices if keep else [], hash(tuple(indices))
    known = epoch["batches"] is not None
    epoch["whole"] = epoch["delivered"] == epoch["batches"] if known else epoch.pop("ended", False)
    epoch["backwards"], epoch["synced"] = S.backwards - before[0], S.synced - before[1]
    if epoch["backwards"]:
        write("epoch", **epoch)
    else:  # an evaluation, maybe: it is written when it is known what became of its results
        S.evaluations = [*S.evaluations[-20:], epoch]


# ---------------------------------------------------------------- files, prints, ports


def around_save(original, obj, f, *args, **kwargs):
    quietly(note_file, "save", obj, f)
    return original(obj, f, *args, **kwargs)


def around_load(original, f, *args, **kwargs):
    from .watch_step import flush_evaluations

    quietly(flush_evaluations)
    size = os.path.getsize(f) if isinstance(f, (str, os.PathLike)) and os.path.exists(f) else None
    obj = original(f, *args, **kwargs)
    quietly(note_file, "load", obj, f, size=size)
    return obj


def note_file(kind, obj, f, **what):
    """Of a checkpoint: its counters; are weights and an optimizer's state in it?"""
    import torch

    top = obj if isinstance(obj, dict) else {}
    nested = [v for v in [top, *top.values()] if isinstance(v, dict)]
    what["weights"] = any(isinstance(v, torch.Tensor) for d in nested for v in d.values())
    what["optimizer"] = any("param_groups" in d for d in nested)
    counters = [str(k) for k, v in top.items() if type(v) is int]
    path = os.path.abspath(f) if isinstance(f, (str, os.PathLike)) else None
    write(kind, path=path, at=site(), counters=counters, **what)
    if kind == "save":
        note_kept()


def note_sent(*args, **kwargs):
    """Results may leave by a queue of the script (not a DataLoader's), or by a store."""
    if not opened_by_library():
        note_kept()


def note_kept():
    for epoch in S.epochs + S.evaluations:
        epoch["files"] += 1


def around_threads(original, number):
    original(number)
    quietly(write, "threads", threads=number, at=site())


def around_print(original, *args, **kwargs):
    if kwargs.get("file") in (None, sys.stdout) and args:
        quietly(note_print, args)
    original(*args, **kwargs)


def note_print(args):
    text, at = " ".join(map(str, args))[:120], site()
    for epoch in S.epochs + S.evaluations:
        epoch["prints"] = [*epoch["prints"][:20], at]
    if S.written["print"] < 300:
        write("print", text=text, at=at, steps=S.steps, added=S.added)


def hear(event, args):
    """Audit hook: files that are opened or renamed, and the port that the script itself chooses."""
    if event not in ("open", "os.rename", "os.putenv") or S.forked or S.ended:
        return
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            write("port", port=os.fsdecode(args[1]), at=site())
        elif S.file is not None and event == "os.rename":
            note_open(os.fsdecode(args[1]), "w", 0)
        elif S.file is not None and event == "open" and isinstance(args[0], (str, bytes)):
            note_open(os.fsdecode(args[0]), args[1] or "", args[2] or 0)
    except Exception:  # the interpreter is shutting down
        pass


def note_open(path, mode, flags):
    path = os.path.abspath(path)
    writes = bool(set(mode) & set("wxa+")) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    ours = path.startswith((os.environ["DDP_DOCTOR_FOLDER"], HERE, "/dev", "/proc", "/sys"))
    known = (path, writes, S.passed) in S.opened or len(S.opened) > 3000
    if ours or known or not is_script(path) or opened_by_library():
        return
    S.opened.add((path, writes, S.passed))
    size = os.path.getsize(path) if not writes and os.path.isfile(path) else None
    appends = "a" in mode or bool(flags & os.O_APPEND)
    write("open", path=path, writes=writes, appends=appends, size=size, at=site())
    if writes:
        note_kept()


def opened_by_library():
    frame = sys._getframe(2)
    while frame and not is_script(frame.f_code.co_filename):
        if any(name in frame.f_code.co_filename for name in LIBRARIES):
            return True
        frame = frame.f_back
    return False


DATA = {
    "torch.utils.data:DataLoader __iter__": around_iter,
    "torch.utils.data.dataloader:_BaseDataLoaderIter _next_index": around_next_index,
    "torch.utils.data.dataloader:_BaseDataLoaderIter __next__": around_next,
    "torch save": around_save,
    "torch load": around_load,
    "torch compile": noting(lambda *a, **k: write("compiled")),
    "torch set_num_threads": around_threads,
    "builtins print": around_print,
    "multiprocessing.queues:Queue put": noting(note_sent),
    "multiprocessing.queues:SimpleQueue put": noting(note_sent),
    "torch.distributed:Store set": noting(note_sent),
}

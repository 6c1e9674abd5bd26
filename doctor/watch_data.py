"""Data and results, in each rank: loaders, evaluations, files, prints, ports.

The indices that a loader asks for are those that its workers get: nothing is watched in a worker.
See watch.py for what all watchers promise.
"""

import functools
import os
import re
import sys
import weakref
import zlib

from . import record
from .record import HERE, S, after, before, fingerprints, is_script, noted, quietly, site, write

NORMS = ("BatchNorm", "Dropout")  # modules that compute otherwise in eval mode
INDICES = 200_000  # of an epoch, at most, are compared one by one
SAMPLER = ("shuffle", "num_replicas", "rank", "epoch", "seed", "replacement")
LIBRARIES = ("tempfile.py", "importlib", "inspect.py", "linecache.py", "traceback.py", "utils/data")


def open_epoch(iterator, loader):
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
        "at": site(),
        "chain": chain,
        "data": digest(dataset),
        "positions": len(loader.dataset) if counted else 0,
        "batches": len(loader) if counted else None,
        "sampler": {name: getattr(sampler, name, None) for name in SAMPLER},
        "seed": getattr(iterator, "_base_seed", None) if workers else None,
        "random": random_names(dataset) if workers else [],
        "alike": seeded_alike(loader.worker_init_fn),
        "stock": type(loader.batch_sampler) is BatchSampler,
        "iterable": isinstance(dataset, IterableDataset),
        "lists": iterator.__dict__.setdefault("doctor_lists", []),
        "delivered": 0,
        "grad": None,
        "start": (S.backwards, S.synced),
        "results": S.results.copy(),
        "reduced": [],  # single numbers that ranks brought together after it
    }
    iterator.doctor_epoch["sampler"]["type"] = type(sampler).__name__
    count_prints()
    S.epochs.append(iterator.doctor_epoch)


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
    """What worker_init_fn binds, if it seeds by its number and nothing that differs by rank."""
    bound = f"{getattr(worker_init, 'args', ())} {getattr(worker_init, 'keywords', {})}"  # partial
    code = getattr(getattr(worker_init, "func", worker_init), "__code__", None)
    names = [*code.co_names, *code.co_freevars, *code.co_varnames] if code else []
    own = any(word in name.lower() for name in names for word in ("rank", "initial_seed", "env"))
    return bound if any("seed" in name for name in names) and not own else None


def note_index(index, iterator):
    batch = index if isinstance(index, (list, tuple)) else [index]
    iterator.__dict__.setdefault("doctor_lists", []).append(batch)


def around_next(original, self):
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
        quietly(note_batch, epoch, self.doctor_lists)
    return batch


def note_batch(epoch, lists):
    import torch

    epoch["grad"] = torch.is_grad_enabled() and not S.evaluating
    epoch["delivered"] += 1
    if epoch["grad"] and len(lists) >= epoch["delivered"]:
        S.step["read"] += len(lists[epoch["delivered"] - 1])
    if torch.is_grad_enabled() or S.hook is not None or not S.backwards:
        return
    trains = any(ddp.module.training for ddp in S.ddps)
    if trains or (epoch["delivered"] == 1 and not S.written["compiled"]):
        hook = functools.partial(note_module, site(), trains)
        S.hook = torch.nn.modules.module.register_module_forward_pre_hook(hook)


def note_module(at, trains, module, inputs):
    """Data were read to evaluate: which model computes, and in train mode?"""
    import torch

    if torch.is_grad_enabled():
        return
    quietly(note_evaluated, module)
    if module.training and any(name in type(module).__name__ for name in NORMS):
        quietly(note_train_mode, at)
    if not trains:
        unhook()  # the first call was the whole model's


def note_evaluated(module):
    """Another model than the one of which eval() was called may be the one that computes."""
    known = S.evaluating and S.evaluating[0]()
    held = {id(p) for p in known.parameters()} if known is not None else set()
    own = {id(p) for p in module.parameters()}
    if own and not own & held:
        S.evaluating = None
        note_eval(module)


def unhook():
    if S.hook is not None:
        S.hook.remove()
        S.hook = None


def close_epochs(loader=None):
    """An epoch of a loader is over: which samples of the whole data were asked for?"""
    for epoch in [e for e in S.epochs if loader in (None, e["loader"])]:
        S.epochs.remove(epoch)
        quietly(close_epoch, epoch)


def close_epoch(epoch):
    lists, chain, start = epoch.pop("lists"), epoch.pop("chain"), epoch.pop("start")
    indices = [int(i) for batch in lists[: epoch["delivered"]] for i in batch if i is not None]
    epoch["count"] = len(indices)
    epoch["chain"] = [hash(tuple(int(i) for i in positions)) for positions in chain]
    keep = len(indices) <= INDICES and S.written["epoch"] < 40 and not epoch["iterable"]
    for positions in chain if keep else ():
        indices = [int(positions[i]) for i in indices]
    epoch["indices"], epoch["order"] = indices if keep else [], hash(tuple(indices))
    known = epoch["batches"] is not None
    epoch["whole"] = epoch["delivered"] == epoch["batches"] if known else epoch.pop("ended", False)
    epoch["backwards"], epoch["synced"] = S.backwards - start[0], S.synced - start[1]
    if epoch["backwards"]:
        write("epoch", **epoch)
    else:  # an evaluation, maybe: it is written when it is known what became of its results
        S.evaluations = [*S.evaluations[-20:], epoch]


# ---------------------------------------------------------------- evaluations


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def note_eval(module):
    """An evaluation of the trained model begins."""
    models = [ddp.module for ddp in S.ddps]
    trained = {id(p) for optimizer in S.optimizers for p in parameters_of(optimizer)}
    module = module.module if module in S.ddps else module
    own = any(module is m for m in models)
    own |= not models and any(id(p) in trained for p in module.parameters())
    beside = S.evaluating is None and any(True for _ in module.parameters())  # an average, maybe
    if (own or beside) and S.backwards:
        S.evaluating = weakref.ref(module), own, site(), next(record.frames()).f_code


def note_added(name, frame, tensor):
    """Results come together: of which epochs, and of a model with which buffers?"""
    S.results["gathered" if "gather" in name else "added"] += 1
    S.results["trimmed"] += "gather" in name and called_in("gather_for_metrics")
    if S.evaluations and tensor is not None and tensor.numel() == 1:
        S.evaluations[-1]["reduced"].append(tensor.detach().double().sum())
        S.on_device |= tensor.device.type != "cpu"
    module, own, at, code = S.evaluating or (lambda: None, True, None, None)
    if module() is not None and (S.evaluations or code is getattr(frame, "f_code", None)):
        buffers = dict(module().named_buffers()) if own else module().state_dict()
        what = {"names": list(buffers), "buffers": fingerprints(list(buffers.values()))}
        what["own"] = own
        orders = [e["order"] for e in S.evaluations]
        write("evaluation", at=at, orders=orders, reading=len(S.epochs), **what)
        S.evaluating = None


def called_in(name):
    """Accelerate's gather_for_metrics() leaves out the samples that its sampler repeats."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None


def count_prints():
    """What is printed from now on is about a later evaluation."""
    for epoch in S.evaluations:
        epoch.setdefault("printed", S.printed)
    S.printed = []


def note_train_mode(at):
    """The model computes without gradients, and is in train mode."""
    if at not in S.said:
        S.said.add(at)
        write("train_mode", at=at)


def flush_evaluations():
    """Training goes on, or the script ends: what became of the results is known by now."""
    unhook()
    count_prints()
    epochs, S.evaluations, S.evaluating = S.evaluations, [], None
    for epoch in epochs:
        epoch["results"] = S.results - epoch["results"]
        write("epoch", **epoch)


# ---------------------------------------------------------------- files, prints, ports


def note_save(obj, f, *args, **kwargs):
    import torch

    dicts = (
        [d for d in [obj, *obj.values()] if isinstance(d, dict)] if isinstance(obj, dict) else []
    )
    weights = any(isinstance(value, torch.Tensor) for d in dicts for value in d.values())
    if isinstance(f, (str, os.PathLike)):  # it is opened without Python's open()
        note_open(f, "w", saved=weights)


def note_sent(*args, **kwargs):
    """Results may leave by a file, by a queue of the script (not a DataLoader's), by a store."""
    S.results["sent"] += not opened_by_library()


def note_threads(_, number):
    write("threads", threads=number, at=site())


def note_printed(*args, **kwargs):
    if kwargs.get("file") in (None, sys.stdout) and args:
        note_print(args)


def note_logged(logger, line):
    if is_script(line.pathname):
        note_print([line.getMessage()])


def note_print(args):
    text, at = " ".join(map(str, args))[:120], site()
    S.printed = [*S.printed[-9:], (at, text)]
    if S.written["print"] < 300:
        added = S.results["added"] + S.results["gathered"]
        write("print", text=text, at=at, steps=S.steps, added=added)


def hear(event, args):
    """Audit hook: files that are opened or renamed, and the port that the script itself chooses."""
    if event not in ("open", "os.rename", "os.putenv") or S.forked or S.ended:
        return
    try:
        if event == "os.putenv" and os.fsdecode(args[0]) == "MASTER_PORT":
            write("port", port=os.fsdecode(args[1]), at=site())
        elif S.file is not None and event == "os.rename":
            note_open(args[1], "w")
        elif S.file is not None and event == "open" and isinstance(args[0], (str, bytes)):
            note_open(args[0], args[1] or "", args[2] or 0)
    except Exception:  # the interpreter is shutting down
        pass


def note_open(path, mode, flags=0, saved=False):
    path = os.path.abspath(os.fsdecode(path))
    writes = bool(set(mode) & set("wxa+")) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    ours = path.startswith((os.environ["DDP_DOCTOR_FOLDER"], HERE, "/dev", "/proc", "/sys"))
    known = (path, writes, S.passed) in S.said or len(S.said) > 3000
    if ours or known or not is_script(path) or opened_by_library():
        return
    S.said.add((path, writes, S.passed))
    size = os.path.getsize(path) if not writes and os.path.isfile(path) else None
    appends = "a" in mode or bool(flags & os.O_APPEND)
    what = {"writes": writes, "appends": appends, "saved": saved}
    write("open", path=path, size=size, at=site(), **what)
    if writes:
        note_sent()


def opened_by_library():
    frame = sys._getframe(2)
    while frame and not is_script(frame.f_code.co_filename):
        if any(name in frame.f_code.co_filename for name in LIBRARIES):
            return True
        frame = frame.f_back
    return False


DATA = {
    "torch.utils.data:DataLoader __iter__": after(open_epoch),
    "torch.utils.data.dataloader:_BaseDataLoaderIter _next_index": after(note_index),
    "torch.utils.data.dataloader:_BaseDataLoaderIter __next__": around_next,
    "torch.nn:Module eval": before(note_eval),
    "torch save": before(note_save),
    "torch compile": noted("compiled"),
    "torch set_num_threads": after(note_threads),
    "builtins print": before(note_printed),
    "logging:Logger handle": before(note_logged),
    "multiprocessing.queues:Queue put": before(note_sent),
    "multiprocessing.queues:SimpleQueue put": before(note_sent),
    "torch.distributed:Store set": before(note_sent),
}

"""Where PyTorch can be watched from outside, in each rank: what is replaced, hooked or audited.

Each replaced function calls the original once, with the same arguments; what it notes is noted
under quietly(). In code that torch.compile traces nothing is noted. Nothing is read from a GPU in a
step: fingerprints stay there until flush(). No module of the script gets a hook, which would be
copied, saved and compiled with it.
"""

import atexit
import functools
import os
import pkgutil
import re
import sys
from traceback import walk_stack, walk_tb

from . import record, watch_data, watch_step
from .record import OUT, before, flush, frames, is_rank, place, quietly, site, write

COLLECTIVES = """all_reduce reduce broadcast all_gather all_gather_into_tensor gather scatter
 reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier
 all_gather_object broadcast_object_list gather_object scatter_object_list send recv isend irecv
 batch_isend_irecv""".split()
HOOKED = ("forward of DDP", "backward")  # in which the script's own code and hooks may run


def install():
    """Called once torch has been imported."""
    import torch

    if not torch.distributed.is_available() or started_by_rank():
        return
    also = "torch.distributed.distributed_c10d"
    for name in COLLECTIVES:
        around = functools.partial(around_collective, name)
        quietly(watch, f"torch.distributed {name}", around, also)
    quietly(watch, "torch.distributed init_process_group", around_init, also, every=True)
    quietly(watch, "torch.distributed new_group", around_new_group, also)
    quietly(watch, "torch.distributed destroy_process_group", before(note_destroy))
    quietly(watch, "torch.distributed:Work wait", around_wait)
    for module in (watch_step, watch_data):
        for target, around in module.WATCHED.items():
            quietly(watch, target, around)
    worker = "torch.utils.data._utils.worker _worker_loop"
    quietly(watch, worker, watch_data.around_worker, every=True)
    quietly(watch, "torch.multiprocessing.spawn _wrap", around_spawned, every=True)
    quietly(watch, "multiprocessing.process:BaseProcess run", around_run, every=True)
    quietly(watch_step.hook_optimizers)
    sys.excepthook = functools.partial(raised, sys.excepthook)
    sys.addaudithook(watch_data.hear)
    atexit.register(goodbye)
    os.register_at_fork(after_in_child=record.forked)


def started_by_rank():
    """A process that a rank has started, a compiler or a worker, inherits RANK and is no rank."""
    names = ("RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    key = " ".join(os.environ.get(name, "") for name in names)
    mine = os.environ.get("DDP_DOCTOR_RANK")
    if "RANK" in os.environ:
        os.environ["DDP_DOCTOR_RANK"] = key
    return "RANK" in os.environ and key == mine


def watch(target, around, also=None, every=False):
    """Replace "OWNER NAME" by around(original, ...), but not in code that is compiled."""
    from torch.compiler import is_compiling

    path, name = target.split()
    owner = pkgutil.resolve_name(path)
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args, **kwargs):
        if is_compiling() or not (every or is_rank()):
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(owner, name, watched)
    if also:
        setattr(pkgutil.resolve_name(also), name, watched)


def raised(original, kind, error, traceback):
    quietly(note_raised, error)
    original(kind, error, traceback)


def note_raised(error):
    """The script ends by an exception: which, and in which of its lines."""
    names = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    lines = [f"{record.shown(name)}:{line}" for name, line in names if record.is_script(name)]
    if is_rank():
        text = f"{type(error).__name__}: {error}"[:300]
        record.write_once("raised", text, error=text, at=["?", *lines][-1])


def around_spawned(original, function, *args, **kwargs):
    """mp.spawn catches what its function raises, and multiprocessing what a process does."""
    return original(functools.partial(around_run, function), *args, **kwargs)


def around_run(original, *args, **kwargs):
    try:
        return original(*args, **kwargs)
    except Exception as error:
        quietly(note_raised, error)
        raise


def around_init(original, *args, **kwargs):
    OUT.forked = False  # whoever joins a group is a rank
    with record.waiting("init_process_group"):
        result = original(*args, **kwargs)
    quietly(note_init, args, kwargs)
    return result


def note_init(args, kwargs):
    from multiprocessing import util

    from torch import distributed as dist

    OUT.ended = dist.get_backend() == "fake"
    url = kwargs.get("init_method") or next((a for a in args if str(a).startswith("tcp")), None)
    write("init", rank=dist.get_rank(), world=dist.get_world_size(), at=site(), url=url)
    if OUT.port:
        write("port", **OUT.port)
    util.Finalize(None, goodbye, exitpriority=0)  # a forked rank does not run atexit


def note_destroy(group=None):
    if group is None:
        finish()
        write("destroy")


def finish():
    """What was held back: weights after the last step, epochs, values on a GPU."""
    watch_data.close_epochs()
    watch_step.finish()
    flush()


def goodbye():
    if OUT.file is not None and not OUT.forked and not OUT.ended:
        quietly(finish)
        quietly(write, "exit", applied=watch_step.TRAIN.applied, synced=watch_step.TRAIN.synced)
        OUT.ended = True


def around_collective(name, original, *args, **kwargs):
    if OUT.waits and (OUT.waits not in HOOKED or called_by_torch()):  # a part of another call
        return original(*args, **kwargs)
    quietly(note_collective, name, [*args, *kwargs.values()])
    with record.waiting(name):
        result = original(*args, **kwargs)
    quietly(note_works, name, result)
    return result


def note_works(name, result):
    """What is Work.wait() of an asynchronous call to wait for?"""
    if len(OUT.works) > 1000:
        OUT.works.clear()
    works = result if isinstance(result, list) else [result]
    OUT.works.update({id(work): name for work in works})


def around_wait(original, work, *args, **kwargs):
    with record.waiting(f"{OUT.works.get(id(work), 'an asynchronous call')}.wait"):
        return original(work, *args, **kwargs)


def around_new_group(original, *args, **kwargs):
    """All ranks have to make a group, and wait in it for those of its ranks that do not."""
    with record.waiting("new_group"):
        return original(*args, **kwargs)


def called_by_torch():
    """Is it PyTorch that calls the watched function: Join, SyncBatchNorm?"""
    names = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(1)))
    name = next(name for name in names if not name.startswith(record.HERE))
    return name.startswith(record.TORCH) and not name.startswith(f"{record.TORCH}/distributed/nn")


def note_collective(name, values):
    import torch
    from torch import distributed as dist

    tensor = next((v for v in values if isinstance(v, torch.Tensor)), None)
    group = next((v for v in values if isinstance(v, dist.ProcessGroup)), None)
    frame = next(frames(), None)
    own = frame.f_locals if frame else {}
    call = {"op": name, "at": place(frame) if frame else "?"}
    call["numel"] = tensor.numel() if tensor is not None else 0
    call["group"] = dist.get_process_group_ranks(group) if group else None
    # Which of several things is it about?
    inside = frame and frame.f_code.co_name != "<module>"
    words = {k: v for k, v in own.items() if inside and type(v) is str and len(v) < 60}
    names = [k for k, v in own.items() if v is tensor and tensor is not None]
    call["words"] = words | ({"tensors": names[0]} if len(names) == 1 else {})
    call["passes"] = None if called_by_torch() else len(watch_step.TRAIN.step["passes"])
    write("collective", step=OUT.steps, **call)
    if re.search("reduce|gather|all_to_all|send|recv", name):  # results come together
        watch_data.note_added(name, tensor)

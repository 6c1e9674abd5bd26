"""Where the time of each step goes, in each rank of a run with --speed.

A step is a list of laps without gaps: the phase, when it ended, and for how long of it the process
waited for a processor. A step ends with the first optimizer's step. Nothing is read from a
GPU in a step: there a lap ends with an event, which is read after a hundred steps.
"""

import atexit
import os
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial

from . import record, twin
from .record import OUT, State, after, before, is_rank, is_script, place, quietly, site, write
from .watch import COLLECTIVES, started_by_rank, watch

NEW_STEP = {"passes": 0, "synced": 0, "moved": 0, "others": 0, "new": False}


class Speed(State):
    """What this rank is in, and the step that is being made."""

    def reset(self):
        self.stack = ["start-up"]  # the phases, from the outside in
        self.laps, self.steps, self.step, self.n = [], [], dict(NEW_STEP), 0
        self.last = self.looked = time.perf_counter()
        self.file, self.waited, self.cpu = None, 0.0, 0.0  # /proc's times of this thread
        self.thread, self.stream, self.optimizer = threading.get_ident(), None, None
        self.ddp, self.syncs = None, False  # will the next pass average?
        self.gradients, self.hot = 0, Counter()


SPEED = Speed()


def install():
    """Called once torch has been imported."""
    from torch.optim import optimizer

    if started_by_rank():
        return
    also = "torch.distributed.distributed_c10d"
    for name in COLLECTIVES:
        around = partial(around_collective, name)
        quietly(watch, f"torch.distributed {name}", around, also)
    quietly(watch, "torch.distributed init_process_group", around_init, also, every=True)
    for target, around in WATCHED.items():
        quietly(watch, target, around)
    optimizer.register_optimizer_step_pre_hook(lambda *_: quietly(begin_optimizer))
    optimizer.register_optimizer_step_post_hook(lambda own, *_: quietly(end_step, own))
    atexit.register(goodbye)
    os.register_at_fork(after_in_child=record.forked)


# ---------------------------------------------------------------- laps


def now():
    """The time in seconds; on a GPU an event, which is read later."""
    if SPEED.stream is None:
        return time.perf_counter()
    return SPEED.stream.record_event(SPEED.event(enable_timing=True))


def seconds(moment):
    if isinstance(moment, float):
        return moment
    moment.synchronize()
    return SPEED.origin[0] + SPEED.origin[1].elapsed_time(moment) / 1000


def lap(moment=None):
    """The time since the last lap belongs to what is on top of the stack."""
    moment, waited = moment or now(), SPEED.waited
    if SPEED.file and SPEED.stream is None and moment - SPEED.looked > 1e-3:  # it costs 17 us
        SPEED.waited = int(os.pread(SPEED.file, 64, 0).split()[1]) / 1e9
    SPEED.looked = moment
    SPEED.laps.append([SPEED.stack[-1], moment, SPEED.waited - waited])


@contextmanager
def phase(name):
    """What runs inside belongs to this phase, unless it is part of a collective."""
    if threading.get_ident() != SPEED.thread or SPEED.stack[-1].startswith("collective"):
        yield
        return
    below = SPEED.stack[0] == "evaluation" and name in ("data", "forward", "search")
    lap()
    SPEED.stack.append("evaluation" if below else name)
    try:
        yield
    finally:
        lap()
        SPEED.stack.pop()


def region(name):
    """What is below all phases: start-up, own (the script's loop), loss or evaluation."""
    if SPEED.stack[0] != name and (SPEED.n or name != "evaluation"):
        lap()
        SPEED.stack[0] = name


def look():
    """A thread: in which line of the script is this rank, every 20 ms?"""
    last = time.perf_counter()
    while not OUT.ended:
        time.sleep(0.02)
        last, since = time.perf_counter(), time.perf_counter() - last
        if SPEED.n > 2 and (at := current_line()):
            SPEED.hot[f"{SPEED.stack[-1]} {at}"] += since


def current_line():
    """No frame is kept: it would hold DDP, and gloo's threads then abort the process at its end."""
    frame = sys._current_frames().get(SPEED.thread)
    while frame and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and place(frame)


# ---------------------------------------------------------------- what is watched


def around_call(name, original, *args, **kwargs):
    """A call that is a phase by itself."""
    SPEED.step["new"] |= name == "data"  # iter(loader): an epoch begins
    with phase(name), suppress(*twin.REFUSED if name == "saving" else ()):
        return original(*args, **kwargs)


def around_init(original, *args, **kwargs):
    from multiprocessing import util

    from torch import distributed as dist

    OUT.forked, SPEED.thread = False, threading.get_ident()
    result = original(*args, **kwargs)
    with suppress(OSError):
        SPEED.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    quietly(write, "init", rank=dist.get_rank(), at=site())
    util.Finalize(None, goodbye, exitpriority=0)  # a forked rank does not run atexit
    threading.Thread(target=look, daemon=True).start()
    return result


def note_ddp(_, ddp, *args, **kwargs):
    import torch

    reduced = [p for p in ddp.module.parameters() if p.requires_grad]
    if reduced[0].is_cuda and SPEED.stream is None:
        SPEED.stream, SPEED.event = torch.cuda.current_stream(), torch.cuda.Event
        SPEED.origin = time.perf_counter(), now()
    SPEED.engine = torch.autograd.Variable._execution_engine
    SPEED.ddp, size = ddp, sum(p.numel() * p.element_size() for p in reduced)
    for parameter in reduced:
        parameter.register_post_accumulate_grad_hook(note_gradient)
    unused, gpu = ddp.find_unused_parameters, SPEED.stream is not None
    write("wrap", at=site(), bytes=size, find_unused=unused, count=len(reduced), gpu=gpu)


def note_gradient(_):
    """A pass ends with the engine's callbacks, in their order: ours comes before DDP's."""
    SPEED.gradients, SPEED.computed = SPEED.gradients + 1, time.perf_counter()
    if SPEED.syncs:
        SPEED.syncs = False
        SPEED.engine.queue_callback(note_ready)


def note_ready():
    """All gradients are there: from the last one on, backward() only averages."""
    lap(max(SPEED.computed, SPEED.looked) if SPEED.stream is None else None)  # no lap is negative
    SPEED.stack[-1] = "exposed"


def around_backward(original, *args, **kwargs):
    region("own")
    SPEED.step["passes"] += 1
    SPEED.step["synced"] += SPEED.syncs
    with phase("backward"):
        result = original(*args, **kwargs)
    SPEED.syncs = False
    return result


def around_forward(original, ddp, *args, **kwargs):
    import torch

    quietly(region, "own" if torch.is_grad_enabled() else "evaluation")
    if not torch.is_grad_enabled():
        return original(ddp, *args, **kwargs)
    with phase("forward"), twin.muted(ddp):
        SPEED.syncs = ddp.require_backward_grad_sync
        result = original(ddp, *args, **kwargs)
    quietly(region, "loss")  # until backward()
    return result


def around_next(original, *args):
    import torch

    with phase("data"):
        batch = original(*args)
    if SPEED.ddp is None and torch.is_grad_enabled():  # the model is not seen
        quietly(region, "loss")
    return batch


def around_collective(name, original, *args, **kwargs):
    import torch

    if SPEED.stack[-1].startswith(("collective", "pause")):  # a part of a call, or the twin's
        return original(*args, **kwargs)
    name, tensors = f"collective {name} {quietly(site)}", filter(torch.is_tensor, args)
    if SPEED.step["passes"]:
        SPEED.step["moved"] += sum(t.numel() * t.element_size() for t in tensors)
    in_loop = SPEED.stack[0] != "evaluation" and not kwargs.get("async_op")
    if twin.left_out(name, SPEED.n, in_loop):
        return None
    with phase(name):
        return original(*args, **kwargs)


def begin_optimizer():
    if is_rank():
        lap()
        SPEED.stack.append("optimizer")


def end_step(optimizer):
    if not is_rank():
        return
    lap()
    SPEED.stack.pop()
    if SPEED.optimizer is None and SPEED.step["passes"]:
        SPEED.optimizer = id(optimizer)
    if id(optimizer) != SPEED.optimizer or not SPEED.step["passes"]:
        SPEED.step["others"] += 1  # a GAN's second optimizer
        return
    close_step()
    if twin.TWIN.size:
        with phase("pause"):
            quietly(twin.between, SPEED.n, flush)
    if len(SPEED.steps) >= 100:
        flush()


def close_step():
    SPEED.n, cpu = SPEED.n + 1, time.process_time()
    step = {"n": SPEED.n, "laps": SPEED.laps, "kind": twin.TWIN.kind, "cpu": cpu - SPEED.cpu}
    SPEED.steps.append(step | SPEED.step)
    SPEED.laps, SPEED.step, SPEED.cpu = [], dict(NEW_STEP), cpu


def flush():
    """Write down the steps so far, in seconds. On a GPU, wait until it has come to their end."""
    for one in [one for step in SPEED.steps for one in step["laps"]]:
        end = seconds(one[1])
        one[1], SPEED.last = end - SPEED.last, end
    write("laps", steps=SPEED.steps)
    SPEED.steps = []


def goodbye(group=None):
    """When the group or the process ends: what follows the last step, and what was held back."""
    import torch

    if OUT.file is None or OUT.forked or OUT.ended or group is not None:
        return
    OUT.ended = True
    quietly(twin.end_turn)
    lap()
    SPEED.step["new"] = True
    quietly(close_step)
    quietly(flush)
    counts = {"threads": torch.get_num_threads(), "gradients": SPEED.gradients}
    quietly(write, "end", hot=SPEED.hot, **counts)
    SPEED.ddp = None  # gloo's threads end with it


DDP, LOADER = "torch.nn.parallel:DistributedDataParallel", "torch.utils.data:DataLoader"
WATCHED = {
    f"{DDP} _ddp_init_helper": after(note_ddp),
    f"{DDP} forward": around_forward,
    f"{DDP} _post_forward": partial(around_call, "search"),
    "torch.autograd backward": around_backward,
    "torch.utils.data.dataloader:_BaseDataLoaderIter __next__": around_next,
    f"{LOADER} __iter__": partial(around_call, "data"),
    "torch.nn:Module train": before(lambda _, mode=True: mode and SPEED.n and region("own")),
    "torch.nn:Module eval": before(lambda _: region("evaluation")),
    "torch.distributed:Work wait": partial(around_collective, "wait"),
    "torch.distributed destroy_process_group": before(goodbye),
    "torch save": partial(around_call, "saving"),
}

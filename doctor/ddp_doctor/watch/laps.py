"""Measures where the time of each training step goes, for the verb `speed`.

A step is a list of laps without gaps. Each lap belongs to one phase:

    start-up     until the first step begins
    data         the wait for the next batch
    first batch  the same, for the first batch of an epoch: workers start again, for example
    between      the script's own lines between two epochs
    forward      the forward pass of DDP
    search       DDP's search for unused parameters, at the end of its forward pass
    loss         from there until backward(): this is usually the loss
    backward     backward(), until the last gradient is computed
    exposed      the rest of backward(), in which DDP waits until all gradients are averaged
    optimizer    optimizer.step()
    collective   a function of torch.distributed that the script calls
    evaluation   since eval(), or since a forward pass without gradients
    saving       torch.save
    own          the script's other lines

A step ends with the optimizer's step. Nothing is read from a GPU in a step: there a lap ends with
an event of CUDA, which is read after a hundred steps.
"""

import functools
import os
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..run.events import FILMED, Filmed, Laps, Loaded, Looks, Moment, Reducer
from .collectives import COLLECTIVES
from .lines import here, is_script, shown
from .note import EVERY_STATE, PROCESS, now, quietly, write
from .patch import after, before, is_recorded, replace

try:
    import resource
except ImportError:  # Windows does not have it.
    resource = None

PAUSE_OF_LOOKS = 0.05  # seconds: the thread that looks takes the interpreter from the script
TOGETHER = 100  # steps that are written down together
IN_EVALUATION = ("data", "forward", "search")  # are a part of it while a model is evaluated


class Current:
    """The step that is being made."""

    def __init__(self):
        self.laps = []
        self.passes = 0
        self.models = set()  # ids of the DDP objects that averaged
        self.accumulates = True
        self.sent = 0
        self.loaded = 0  # samples in the batches of the loaders
        self.computed = 0  # samples in the forward passes of DDP
        self.others = 0


@dataclass(frozen=True)
class Lap:
    phase: str
    call: str  # the function and line of a collective, else ""
    moment: object  # when it ended: seconds, or on a GPU an event of CUDA
    no_core: float  # seconds in which the thread could have run


@dataclass(frozen=True)
class Made:
    """A step that is over and not yet written down."""

    when: Moment
    current: Current
    used: "Used"
    last: bool


class Used(NamedTuple):
    """What the process used of the system: since its start, or in a step."""

    processor: float  # seconds of all threads
    kernel: float  # the part of it in the kernel
    faults: int  # page faults that needed no disk

    def since(self, earlier):
        return Used(*(now - before for now, before in zip(self, earlier)))


NOTHING_USED = Used(0.0, 0.0, 0)


def used():
    """Windows counts neither the kernel's part nor page faults."""
    if resource is None:
        return Used(time.process_time(), 0.0, 0)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_stime, usage.ru_minflt)


class Watch:
    """What this rank does now, and the steps that are not yet written down."""

    def reset(self):
        self.phases = ["start-up"]  # the outer ones first; the first one is below all others
        self.call = ""
        self.current = Current()
        self.made = []
        self.filmed = deque(maxlen=FILMED)  # the last steps, lap by lap
        self.steps = 0
        self.ended = False
        self.thread = threading.get_ident()  # the one that trains
        # Time, and the time without a core.
        self.begun = time.perf_counter()  # the lap before was over
        self.last = self.begun  # the same of the laps that are written down
        self.schedstat = None  # the kernel's figures of this thread: an open file
        self.without_core = 0.0
        self.others_without_core = 0.0  # the same of other threads, until the third step
        self.own_threads = set()  # the one that trains, and the one that looks
        self.used = NOTHING_USED
        # A GPU.
        self.stream = None
        self.origin = None  # an event of CUDA, and the time of the host at that moment
        # What the script has made.
        self.models = weakref.WeakSet()  # DDP objects, and the models in them
        self.ddp = None  # a weak reference to the one whose forward pass came last
        self.optimizer = None  # the id of the one whose steps are counted
        self.loaders = weakref.WeakSet()  # that have begun an epoch
        self.pauses = False  # an epoch is over, or has begun, and its first batch has not come
        # The backward pass.
        self.averages = False  # will DDP average in the next one?
        self.computed = 0.0  # when the last gradient was there
        self.gradients = 0
        # What the thread sees that looks: phase -> line -> seconds
        self.looks = defaultdict(lambda: defaultdict(float))


WATCH = Watch()
WATCH.reset()
EVERY_STATE.append(WATCH)


def install():
    module = dist.distributed_c10d
    for name in COLLECTIVES:
        around = functools.partial(around_collective, name)
        setattr(module, name, replace(dist, name, around))
    replace(dist.Work, "wait", functools.partial(around_collective, "wait"))
    watch_group()
    replace(DDP, "_ddp_init_helper", after(note_ddp))
    replace(DDP, "forward", around_forward)
    replace(DDP, "_post_forward", functools.partial(around_call, "search"))
    replace(torch.autograd, "backward", around_backward)
    replace(DataLoader, "__iter__", around_iter)
    replace(_BaseDataLoaderIter, "__next__", around_next)
    replace(torch.nn.Module, "train", before(note_mode))
    replace(torch, "save", functools.partial(around_call, "saving"))
    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


# ------------------------------------------------------------------ laps


def moment():
    """The time in seconds. On a GPU it is an event, which is read later."""
    if WATCH.stream is None:
        return time.perf_counter()
    return WATCH.stream.record_event(torch.cuda.Event(enable_timing=True))


def lap(end=None):
    """The time since the last lap belongs to the innermost phase."""
    if end is None:
        end = moment()
    no_core = 0.0
    if WATCH.stream is None:
        # To ask the kernel takes up to 17 microseconds, so short laps do not ask.
        if WATCH.schedstat is not None and end - WATCH.begun > 1e-3:
            earlier = WATCH.without_core
            WATCH.without_core = seconds_without_core()
            no_core = WATCH.without_core - earlier
        WATCH.begun = end
    WATCH.current.laps.append(Lap(WATCH.phases[-1], WATCH.call, end, no_core))


def seconds_without_core():
    """In which the thread that trains could have run, since it began."""
    return int(os.pread(WATCH.schedstat, 64, 0).split()[1]) / 1e9


def others_without_core():
    """The same of the other threads of this process. Those of gloo average the gradients."""
    total = 0
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            if int(thread) in WATCH.own_threads:
                continue
            with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
    return total / 1e9


@contextmanager
def phase(name):
    """What runs inside belongs to this phase, unless it is a part of a collective."""
    if threading.get_ident() != WATCH.thread or WATCH.phases[-1] == "collective":
        yield
        return
    if WATCH.phases[0] == "evaluation" and name in IN_EVALUATION:
        name = "evaluation"
    elif WATCH.pauses and name == "data":
        name = "first batch"
    lap()
    WATCH.phases.append(name)
    try:
        yield
    finally:
        lap()
        WATCH.phases.pop()


def below(name):
    """What the rank does outside of all other phases: own, between, loss or evaluation."""
    if threading.get_ident() != WATCH.thread or WATCH.phases[0] == name:
        return
    if WATCH.steps == 0 and name in ("evaluation", "between"):
        return  # this is still start-up
    lap()
    WATCH.phases[0] = name


def around_call(name, original, *args, **kwargs):
    """A call that is a phase by itself."""
    with phase(name):
        return original(*args, **kwargs)


# ------------------------------------------------------------------ the group


def watch_group():
    module = dist.distributed_c10d
    join = dist.init_process_group
    destroy = dist.destroy_process_group

    @functools.wraps(join)
    def init_process_group(*args, **kwargs):
        join(*args, **kwargs)
        quietly(begin)

    @functools.wraps(destroy)
    def destroy_process_group(group=None):
        if group is None:
            quietly(note_end)
        destroy(group)

    dist.init_process_group = module.init_process_group = init_process_group
    dist.destroy_process_group = module.destroy_process_group = destroy_process_group


def begin():
    WATCH.thread = threading.get_ident()
    WATCH.own_threads.add(threading.get_native_id())
    with suppress(OSError):
        WATCH.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        WATCH.without_core = seconds_without_core()
    Finalize(None, functools.partial(quietly, note_end), exitpriority=0)  # of a forked rank
    threading.Thread(target=look, daemon=True).start()


def look():
    """A thread: in which line of the script is this rank?"""
    WATCH.own_threads.add(threading.get_native_id())
    last = time.perf_counter()
    while not WATCH.ended:
        time.sleep(PAUSE_OF_LOOKS)
        end = time.perf_counter()
        line = line_of_training()
        if WATCH.steps > 2 and line is not None:
            WATCH.looks[WATCH.phases[-1]][line] += end - last
        last = end


def line_of_training():
    """No frame is kept: it would hold DDP, and gloo's threads then abort the process at its end."""
    frame = sys._current_frames().get(WATCH.thread)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def around_collective(name, original, *args, **kwargs):
    if threading.get_ident() != WATCH.thread or WATCH.phases[-1] == "collective":
        return original(*args, **kwargs)  # a part of another call
    quietly(note_collective, name, args)
    with phase("collective"):
        try:
            return original(*args, **kwargs)
        finally:
            # The lap up to here has the call's name. What follows has none.
            lap()
            WATCH.call = ""


def note_collective(name, args):
    lap()
    WATCH.call = f"{name} {here()}"
    if WATCH.current.passes:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        WATCH.current.sent += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ------------------------------------------------------------------ data


def around_iter(original, loader):
    quietly(note_epoch, loader)
    with phase("data"):
        return original(loader)


def note_epoch(loader):
    again = loader in WATCH.loaders
    WATCH.loaders.add(loader)
    if WATCH.steps == 0 or WATCH.phases[0] == "evaluation":
        return
    WATCH.pauses = True
    persistent = getattr(loader, "persistent_workers", False)
    write(Loaded(now(), here(), loader.num_workers, persistent, again))


def around_next(original, iterator):
    try:
        with phase("data"):
            batch = original(iterator)
    except StopIteration:
        quietly(note_epoch_end)
        raise
    quietly(note_batch, batch)
    return batch


def note_epoch_end():
    if WATCH.phases[0] != "evaluation" and WATCH.steps:
        WATCH.pauses = True
        below("between")


def note_batch(batch):
    if WATCH.phases[0] == "evaluation":
        return
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            WATCH.current.loaded += len(leaf)
            break
    WATCH.pauses = False
    # Without DDP the forward pass is not seen. It is most of what comes until backward().
    hidden = not WATCH.models and torch.is_grad_enabled()
    below("loss" if hidden else "own")


def note_mode(module, mode=True):
    """eval() calls train(False). A part of a model may be in eval mode in each step."""
    if WATCH.models and module not in WATCH.models:
        return
    if not mode:
        below("evaluation")
    elif WATCH.steps:
        below("between" if WATCH.pauses else "own")


# ------------------------------------------------------------------ the step


def note_ddp(_, ddp, *args, **kwargs):
    parameters = [one for one in ddp.module.parameters() if one.requires_grad]
    on_gpu = parameters[0].is_cuda
    if on_gpu and WATCH.stream is None:
        WATCH.stream = torch.cuda.current_stream()
        WATCH.origin = (moment(), time.perf_counter())
    WATCH.models.add(ddp)
    WATCH.models.add(ddp.module)
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(note_gradient)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    searches = ddp.find_unused_parameters
    write(Reducer(now(), here(), size, len(parameters), searches, on_gpu))


def note_gradient(_):
    """A backward pass ends with the engine's callbacks, in their order. This comes before DDP's."""
    WATCH.gradients += 1
    WATCH.computed = time.perf_counter()
    if WATCH.averages:
        WATCH.averages = False
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(functools.partial(quietly, note_ready))


def note_ready():
    """All gradients are computed. From the last one on, backward() only averages."""
    if WATCH.phases[-1] != "backward":
        return
    # No lap may be negative.
    lap(max(WATCH.computed, WATCH.begun) if WATCH.stream is None else None)
    WATCH.phases[-1] = "exposed"


def around_forward(original, ddp, *args, **kwargs):
    if not torch.is_grad_enabled():
        quietly(below, "evaluation")
        return original(ddp, *args, **kwargs)
    quietly(note_forward, ddp, args, kwargs)
    with phase("forward"):
        result = original(ddp, *args, **kwargs)
    quietly(below, "loss")
    return result


def note_forward(ddp, args, kwargs):
    WATCH.pauses = False
    below("own")
    WATCH.ddp = weakref.ref(ddp)
    WATCH.averages = ddp.require_backward_grad_sync
    for leaf in tree_leaves([args, kwargs]):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            WATCH.current.computed += len(leaf)
            break


def around_backward(original, *args, **kwargs):
    quietly(note_backward)
    with phase("backward"):
        result = original(*args, **kwargs)
    WATCH.averages = False
    return result


def note_backward():
    below("own")
    ddp = WATCH.ddp() if WATCH.ddp is not None else None
    if ddp is not None and WATCH.averages:
        WATCH.current.models.add(id(ddp))
    if ddp is not None and WATCH.current.passes:
        first = next(one for one in ddp.module.parameters() if one.requires_grad)
        WATCH.current.accumulates &= first.grad is not None
    WATCH.current.passes += 1


def before_step(optimizer, args, kwargs):
    if PROCESS.is_rank() and not is_recorded():
        lap()
        WATCH.phases.append("optimizer")


def after_step(optimizer, args, kwargs):
    if not PROCESS.is_rank() or WATCH.phases[-1] != "optimizer":
        return
    lap()
    WATCH.phases.pop()
    quietly(note_step, id(optimizer))


def note_step(optimizer):
    if WATCH.optimizer is None and WATCH.current.passes:
        WATCH.optimizer = optimizer
    if optimizer != WATCH.optimizer or not WATCH.current.passes:
        WATCH.current.others += 1  # a GAN has two optimizers, for example
        return
    close_step(last=False)
    if len(WATCH.made) >= TOGETHER:
        write_down()


def close_step(last):
    so_far = used()
    WATCH.made.append(Made(now(), WATCH.current, so_far.since(WATCH.used), last))
    WATCH.used = so_far
    WATCH.current = Current()
    WATCH.steps += 1
    if WATCH.steps == 3:
        WATCH.others_without_core = others_without_core()


# ------------------------------------------------------------------ write it down


def write_down():
    """Compute the times of the steps so far. On a GPU this waits until it has come to their end."""
    made = WATCH.made
    WATCH.made = []
    first = WATCH.steps - len(made) + 1
    for number, step in enumerate(made, first):
        write(laps_of(number, step))
    # A run that is stopped has told where it was until then.
    while WATCH.filmed:
        write(WATCH.filmed.popleft())
    looks = {phase: dict(lines) for phase, lines in list(WATCH.looks.items())}
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # a Mac does not say which
    others = others_without_core() - WATCH.others_without_core
    write(Looks(now(), looks, WATCH.gradients, others, torch.get_num_threads(), cores))


def laps_of(number, step):
    seconds = defaultdict(float)
    calls = defaultdict(float)
    averages = []
    begun = WATCH.last
    filmed = []
    no_core = 0.0
    more = 0.0  # time without a core that was read too late: it belongs to the next lap
    for one in step.current.laps:
        end = host_time(one.moment)
        took = end - WATCH.last
        WATCH.last = end
        # A lap may end before it is noted, as backward() does, so less of it was without a core.
        without_core = min(one.no_core + more, took)
        more += one.no_core - without_core
        no_core += without_core
        filmed.append([one.phase, one.call, end, without_core])
        took -= without_core
        seconds[one.phase] += took
        if one.call:
            calls[one.call] += took
        if one.phase == "exposed":
            averages.append(took)
    if not step.last:
        WATCH.filmed.append(Filmed(step.when, number, begun, filmed))
    return Laps(
        step.when,
        n=number,
        seconds=dict(seconds),
        no_core=no_core,
        calls=dict(calls),
        averages=averages,
        processor=step.used.processor,
        kernel=step.used.kernel,
        faults=step.used.faults,
        passes=step.current.passes,
        models=len(step.current.models),
        accumulates=step.current.accumulates,
        sent=step.current.sent,
        samples=step.current.loaded or step.current.computed,
        others=step.current.others,
        last=step.last,
    )


def host_time(one):
    if isinstance(one, float):
        return one
    first, seconds = WATCH.origin
    one.synchronize()
    return seconds + first.elapsed_time(one) / 1000


def note_end():
    """When the group or the process ends: what follows the last step, and what was held back."""
    if PROCESS.file is None or PROCESS.forked or WATCH.ended or not is_installed():
        return
    WATCH.ended = True
    lap()
    close_step(last=True)
    write_down()


def is_installed():
    return "DDP_DOCTOR_SPEED" in os.environ

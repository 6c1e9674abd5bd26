"""Run a command as if this machine had GPUs, here two:

    python tests/simulated_gpu.py 2 python -m pytest tests/test_gpu.py
    python tests/simulated_gpu.py 2 torchrun --nproc-per-node 2 04_ddp_torchrun/train.py

Every tensor stays in CPU memory. A table says which storages are on "cuda:1"; tensor.device and the
factories follow it, and every operation, also in backward, is refused if its tensors are on two
devices. A group "nccl" is gloo beneath, with the rules of simulated_nccl.py.

This checks names, signatures, devices, control flow, and the arithmetic of the ranks. It cannot
show kernels and their numbers (fp16's range, autocast's list of operations, cuDNN, SyncBatchNorm),
anything asynchronous (overlap, streams, races, times), memory, the device in a checkpoint, random
numbers of GPUs, torch.compile, and what NCCL does: all it reports of NCCL is a rule in
simulated_nccl.py. What passes here has not run on a GPU.
"""

import functools
import os
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, T, local = torch.device("cpu"), torch.Tensor, threading.local()
DEVICE, TO, RUN = T.device, T.to, threading.Thread.run
places = {}  # address of a storage -> weak reference, and its GPU
ANY = -1  # made in C++, which believes in a CPU: it is where the first tensor is that it meets
MIXES = ("copy_", "_to_copy", "_foreach_copy_", "_local_scalar_dense", "_efficientzerotensor")
INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
MADE = """empty empty_strided empty_like zeros zeros_like ones ones_like full full_like arange eye
linspace rand rand_like randn randn_like randint randperm asarray tensor as_tensor scalar_tensor"""


def visible():
    """The numbers of the GPUs that this process may see."""
    every = [str(i) for i in range(int(os.environ.get("SIMULATED_GPUS", 0)))]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return every if chosen is None else [i for i in chosen.split(",") if i in every]


def index_of(device=None):
    """Of a device, a string, a number or None: the GPU's index, None for the CPU."""
    device = torch.device(device) if isinstance(device, str) else device
    if isinstance(device, torch.device):
        if device.type != "cuda":
            return None
        device = device.index
    index = getattr(local, "device", 0) if device in (None, -1) else device
    if not 0 <= index < len(visible()):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return index


# ---------------------------------------------------------------- tensors


def home(tensor):
    """The index of a tensor's GPU; None: the CPU; ANY."""
    try:
        return places.get(tensor.untyped_storage()._cdata, (None, None))[1]
    except (NotImplementedError, RuntimeError):  # no storage: sparse, meta
        return None


def place(tensor, index):
    storage = tensor.untyped_storage()
    if index is None:
        places.pop(storage._cdata, None)
    else:  # the weak reference keeps the address from being given to another storage
        places[storage._cdata] = StorageWeakRef(storage), index
    if len(places) % 5000 == 4999:
        for address, (alive, _) in list(places.items()):
            if alive.expired():
                places.pop(address, None)
    return tensor


class Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, index):
        ctx.back = home(tensor)
        return place(tensor.detach().clone(memory_format=torch.preserve_format), index)

    @staticmethod
    def backward(ctx, gradient):
        return Move.apply(gradient, ctx.back), None


def move(tensor, index):
    return tensor if home(tensor) == index else Move.apply(tensor, index)


class Operations(TorchDispatchMode):
    """Sees every operation, whoever calls it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name == "set_":  # it gives a tensor another storage, which knows where it is
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, T)]
        if name in INDEXES:  # a GPU's tensor takes indices from the CPU, not the other way round
            tensors = [t for t in tensors if t is args[0] or home(t) is not None]
        # The CPU's scalars may be read by a GPU's operation, not changed by it.
        changed = args[0] if func._schema.is_mutable and args else None
        homes = {home(t) for t in tensors if t.dim() or home(t) is not None or t is changed} - {ANY}
        if len(homes) > 1 and name not in MIXES and func.namespace != "c10d":
            found = ", ".join(sorted("cpu" if i is None else f"cuda:{i}" for i in homes))
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device: {found}")
        index = home(tensors[0]) if name in MIXES and tensors else next(iter(homes), None)
        for tensor in tensors:
            if home(tensor) == ANY and homes:  # DDP's buckets: they are where the gradients are
                place(tensor, next(iter(homes)))
        if not tensors and not getattr(local, "python", False):
            index = ANY
        before = {t.untyped_storage()._cdata for t in tensors if not t.is_sparse}
        out = func(*args, **kwargs)
        for t in tree_leaves(out):
            if isinstance(t, T) and t.untyped_storage()._cdata not in before:
                place(t, index)
        return out


def tensor_to(self, *args, device=None, dtype=None, copy=False, memory_format=None, **_):
    for value in args:  # to(tensor), to(device, dtype), to(dtype), to("cuda:1"), to(1)
        if isinstance(value, T):
            device, dtype = value.device, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device, int)) and not isinstance(value, bool):
            device = value
    options = {"dtype": dtype, "memory_format": memory_format, "copy": copy}
    options = {name: value for name, value in options.items() if value}
    if device is not None and index_of(device) != home(self):
        self, _ = Move.apply(self, index_of(device)), options.pop("copy", None)
    return TO(self, **options) if options else self


def factory(make):
    """torch.zeros and the like, which take a device."""

    @functools.wraps(make)
    def made(*args, device=None, pin_memory=False, **kwargs):
        meta = device is not None and not isinstance(device, int) and "meta" in str(device)
        outer, local.python = getattr(local, "python", False), True
        try:
            if device is None or meta:
                return make(*args, **kwargs, **({"device": device} if meta else {}))
            tensor = make(*args, device=CPU, **kwargs)
        finally:
            local.python = outer
        index, first = index_of(device), args[0] if args else None
        if isinstance(first, T) and first.data_ptr() == tensor.data_ptr():
            return move(tensor, index)  # as_tensor has copied nothing
        leaf, tensor.requires_grad = tensor.requires_grad, False
        return place(tensor, index).requires_grad_(leaf)

    return made


def device_of(tensor):
    index, device = home(tensor), DEVICE.__get__(tensor)
    on_gpu = index not in (None, ANY) and device.type == "cpu"  # not on meta
    return torch.device("cuda", index) if on_gpu else device


def patch_tensors():
    for name in MADE.split():
        setattr(torch, name, factory(getattr(torch, name)))
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
        setattr(T, name, factory(getattr(T, name)))
    T.device, T.is_cuda = property(device_of), property(lambda t: t.device.type == "cuda")
    T.to, T.cpu = tensor_to, lambda t, **_: move(t, None)
    T.cuda = lambda t, device=None, **_: move(t, index_of(device))
    T.get_device = lambda t: t.device.index if t.is_cuda else -1
    T.pin_memory, T.record_stream = lambda t, device=None: t, lambda t, stream: None


# ---------------------------------------------------------------- torch.cuda


class Stream:
    def __init__(self, device=None, **_):
        self.index = index_of(device)
        self.device = torch.device("cuda", self.index)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    wait_stream = wait_event = lambda self, other: None
    synchronize = is_capturing = lambda self: None
    __enter__, __exit__ = (lambda self: self), (lambda self, *_: None)


class Event:
    def __init__(self, enable_timing=False, **_):
        self.timed = enable_timing

    def record(self, stream=None):
        self.index, self.time = (stream or Stream()).index, time.perf_counter()

    def elapsed_time(self, end):
        if not (self.timed and end.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.index != end.index:
            raise torch.AcceleratorError("CUDA error: invalid resource handle")
        return 1000 * (end.time - self.time)

    synchronize, wait = (lambda self: None), (lambda self, stream=None: None)


class device_index:
    def __init__(self, device):
        self.index = index_of(device)

    def __enter__(self):
        self.before, local.device = getattr(local, "device", 0), self.index

    def __exit__(self, *_):
        local.device = self.before


def set_device(device):
    if not isinstance(device, int) and torch.device(device).index is None:
        raise ValueError(f"Expected a torch.device with a specified index, but got: {device}")
    local.device = index_of(device)


def patch_cuda():
    cuda, accelerator = torch.cuda, torch.accelerator
    about = {"name": "Simulated GPU", "total_memory": 2**34, "multi_processor_count": 1}
    for name, value in dict(
        device_count=lambda: len(visible()), is_available=lambda: bool(visible()),
        current_device=lambda: index_of(), set_device=set_device, device=device_index,
        current_stream=Stream, default_stream=Stream, Stream=Stream, Event=Event,
        synchronize=lambda device=None: index_of(device), stream=lambda stream: nullcontext(),
        get_device_name=lambda device=None: f"Simulated GPU {index_of(device)}",
        get_device_properties=lambda device=None: SimpleNamespace(**about, major=8, minor=0),
        get_device_capability=lambda device=None: (8, 0), is_bf16_supported=lambda *_, **__: True,
        manual_seed=lambda seed: None, manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        is_initialized=lambda: bool(visible()), _lazy_init=lambda: None, empty_cache=lambda: None,
        is_current_stream_capturing=lambda: False, reset_peak_memory_stats=lambda device=None: None,
        max_memory_allocated=lambda device=None: 0, memory_allocated=lambda device=None: 0,
    ).items():  # fmt: skip
        setattr(cuda, name, value)
    for name in ("is_available", "device_count", "synchronize", "current_stream"):
        setattr(accelerator, name, getattr(cuda, name))

    def there(*_, **__):
        return torch.device("cuda") if visible() else None

    accelerator.current_accelerator, accelerator.device_index = there, device_index
    accelerator.current_device_index, accelerator.set_device_index = cuda.current_device, set_device
    torch._C._get_accelerator = lambda check=None: there() or CPU
    torch.Stream, torch.cuda.nccl.is_available = Stream, lambda tensors: False
    autocast = torch.autocast.__init__

    def as_on_a_cpu(self, kind, dtype=None, **kwargs):
        dtype = dtype or (torch.float16 if kind == "cuda" else None)
        autocast(self, "cpu" if kind == "cuda" else kind, dtype=dtype, **kwargs)

    torch.autocast.__init__ = as_on_a_cpu


def patch_data_parallel():
    """What it calls in C++."""

    def scatter(tensor, gpus, sizes, dim, streams):
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(gpus), dim)
        return [move(part.contiguous(), gpu) for part, gpu in zip(parts, gpus)]

    def gather(tensors, dim, to):
        return torch.cat([move(t, None if to is None else index_of(to)) for t in tensors], dim)

    def broadcast(tensors, gpus, size):
        return [[move(t.detach(), gpu) for t in tensors] for gpu in gpus]

    torch._C._scatter, torch._C._gather, torch._C._broadcast_coalesced = scatter, gather, broadcast


def run_with_devices(thread):
    with Operations():
        RUN(thread)


def install():
    import simulated_nccl

    patch_tensors()
    patch_cuda()
    patch_data_parallel()
    simulated_nccl.patch()
    threading.Thread.run = run_with_devices
    Operations().__enter__()


def main():
    gpus, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/sitecustomize.py", "w") as file:  # every Python process starts with it
            file.write(
                f"import sys; sys.path.append({os.path.dirname(os.path.abspath(__file__))!r})\n"
            )
            file.write("import simulated_gpu; simulated_gpu.install()\n")
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "SIMULATED_GPUS": gpus, "PYTHONPATH": path}
        return os.spawnvpe(os.P_WAIT, command[0], command, env)


if __name__ == "__main__":
    sys.exit(main())

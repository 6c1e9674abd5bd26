"""The rules of NCCL that simulated_gpu.py keeps, over gloo; that file says what they cannot show.

- Each rank has a GPU of its own: the ranks meet in init_process_group if it gets a device_id, else
  in the first collective.
- A collective takes tensors of that GPU only.
- barrier() is an all_reduce of one element. Without a device_id it warns.
- No error of a connection reaches Python: a rank whose peer has gone, or sends something else,
  waits until the timeout of its group. Then the watchdog ends it by SIGABRT.
- destroy_process_group() waits until every rank has called it.
"""

import functools
import os
import sys
import time
import warnings
from contextlib import suppress
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from simulated_gpu import home, index_of, visible
from torch.utils._pytree import tree_leaves

COLLECTIVES = """all_reduce broadcast reduce all_gather gather scatter reduce_scatter send recv
isend irecv all_gather_single all_gather_into_tensor reduce_scatter_single reduce_scatter_tensor
all_to_all_single"""
BARRIER = """barrier(): using the device under current context. \
You can specify `device_id` in `init_process_group` to mute this warning."""
INIT, DESTROY, GET_BACKEND = c10d.init_process_group, c10d.destroy_process_group, c10d.get_backend
BARRIER_OF, COLL_DEVICE = c10d.barrier, c10d._get_object_coll_device
group = SimpleNamespace(nccl=False, device_id=None, store=None, seconds=600, met=False)


def init_process_group(backend=None, *args, device_id=None, **kwargs):
    group.nccl = backend == "nccl" or (backend is None and bool(visible()))
    if group.nccl and not visible():
        raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    if device_id is not None:
        device_id = torch.device("cuda", device_id) if isinstance(device_id, int) else device_id
        if device_id.index is None:
            raise ValueError("Please use a device_id with index.")
        index_of(device_id)
    INIT("gloo" if group.nccl else backend, *args, **kwargs)
    group.device_id, group.store, group.met = device_id, c10d._get_default_store(), False
    group.seconds = kwargs["timeout"].total_seconds() if kwargs.get("timeout") else 600
    if group.nccl and device_id is not None:
        meet()


def meet():
    """The ranks exchange which GPU they have."""
    if not group.met:
        group.met, rank = True, dist.get_rank()
        mine = visible()[index_of(group.device_id)]
        group.store.set(f"simulated/{rank}", mine)
        ranks = range(dist.get_world_size())
        every = [group.store.get(f"simulated/{rank}").decode() for rank in ranks]
        if every.count(mine) > 1:
            raise dist.DistBackendError(
                f"NCCL error: Duplicate GPU detected: rank {rank} on {mine}"
            )


def checked(collective):
    @functools.wraps(collective)
    def call(*args, **kwargs):
        if dist.is_initialized() and group.nccl:
            meet()
            for t in tree_leaves((args, kwargs)):
                if isinstance(t, torch.Tensor) and home(t) is None:
                    raise RuntimeError("No backend type associated with device type cpu")
                if isinstance(t, torch.Tensor) and home(t) != index_of(group.device_id):
                    found = f"cuda:{home(t)}, this rank has cuda:{index_of(group.device_id)}"
                    raise RuntimeError(f"{collective.__name__}: tensor on {found}")
        return collective(*args, **kwargs)

    return call


def barrier(which=None, async_op=False, device_ids=None, timeout=None):
    if not group.nccl:
        return BARRIER_OF(which, async_op, device_ids, timeout)
    meet()
    if group.device_id is None and dist.get_rank() == 0 and not device_ids:
        warnings.warn(BARRIER, stacklevel=2)
    one = torch.zeros(1, device=torch.device("cuda", index_of(group.device_id)))
    return c10d.all_reduce(one, group=which, async_op=async_op)


def destroy_process_group(which=None):
    if group.nccl and which is None and dist.is_initialized():
        with suppress(dist.DistError):  # the rank that has the store may have gone after that
            group.store.add("simulated/leaving", 1)
            while int(group.store.add("simulated/leaving", 0)) < dist.get_world_size():
                time.sleep(0.05)
    return DESTROY(which)


def watched(call):
    """What waits in C++ for other ranks."""

    @functools.wraps(call)
    def until_the_timeout(*args, **kwargs):
        start = time.monotonic()
        try:
            return call(*args, **kwargs)
        except RuntimeError as error:
            if not group.nccl or "gloo" not in str(error):
                raise
            time.sleep(max(0, start + group.seconds - time.monotonic()))
            said = str(error).splitlines()[0]
            print(
                f"rank {os.environ.get('RANK')}: NCCL's watchdog, simulated: {said}",
                file=sys.stderr,
            )
            os.abort()

    return until_the_timeout


def patch():
    new = {
        name: checked(getattr(c10d, name)) for name in COLLECTIVES.split() if hasattr(c10d, name)
    }
    new |= {f.__name__: f for f in (init_process_group, destroy_process_group, barrier)}
    new["get_backend"] = lambda which=None: "nccl" if group.nccl else GET_BACKEND(which)
    for name, value in new.items():
        setattr(c10d, name, value)
        setattr(dist, name, value)
    c10d._get_object_coll_device = lambda g=None: "cuda" if group.nccl else COLL_DEVICE(g)
    dist._broadcast_coalesced = watched(dist._broadcast_coalesced)
    dist.Work.wait, torch.Tensor.backward = watched(dist.Work.wait), watched(torch.Tensor.backward)

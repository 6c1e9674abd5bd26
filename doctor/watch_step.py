"""The step, in each rank: DDP, backward(), clipping, the scaler, the optimizer, eval().

See watch.py for what all watchers promise.
"""

import math
import os
import sys
import weakref

from . import record
from .record import S, after, before, fingerprints, noted, place, quietly, site, waiting, write
from .watch_data import NORMS, flush_evaluations, note_train_mode, parameters_of


def note_in_step(op, at, numel=0, by_torch=False, count=False):
    """A collective or clipping, and after how many passes of the step it comes."""
    if len(S.step["comms"]) < 40:
        begun = S.step["forwards"] + S.step["read"]  # a batch of this step was read, or computed on
        call = {"op": op, "at": at, "numel": numel, "by_torch": by_torch, "count": count}
        S.step["comms"].append(call | {"begun": begun > 0, "passes": len(S.step["passes"])})


def note_ddp(_, ddp, *args, **kwargs):
    """Not after __init__ itself: its warnings are to name the line of the script."""
    from torch import distributed as dist

    ranks = dist.get_process_group_ranks(ddp.process_group)
    S.groups[str(ranks)] += 1
    S.ddps[ddp] = name = f"{ranks} {S.groups[str(ranks)]}"
    module = ddp.module
    reduced = [p for p in module.parameters() if p.requires_grad]
    S.reduced.update({id(p): (weakref.ref(p), name) for p in reduced})
    size = sum(p.numel() * p.element_size() for p in reduced)
    norms = [k for k in NORMS if any(k in type(m).__name__ for m in module.modules())]
    unused = getattr(ddp, "find_unused_parameters", False)
    write("wrap", at=site(), name=name, bytes=size, norms=norms, find_unused=unused)


def ddp_of(parameter):
    """The name of the DDP object that averages the gradients of this parameter, or None."""
    reference, name = S.reduced.get(id(parameter), (None, None))
    return name if reference is not None and reference() is parameter else None


def around_forward(original, self, *args, **kwargs):
    quietly(note_forward, self, args, kwargs)
    syncs = getattr(self, "will_sync_module_buffers", None)
    if syncs is None or not quietly(syncs):
        return original(self, *args, **kwargs)
    with waiting("forward of DDP", training=self.module.training):
        return original(self, *args, **kwargs)


def note_forward(ddp, args, kwargs):
    import torch

    if not torch.is_grad_enabled():
        if ddp.module.training:
            note_train_mode(site())
        return
    S.pending = getattr(ddp, "require_backward_grad_sync", True)
    if ddp.module.training:
        tensor = first_tensor([*args, *kwargs.values()])
        S.step["forwards"] += 1
        samples = tensor.shape[0] if tensor is not None and tensor.dim() else 0
        S.step["samples"][S.ddps.get(ddp)] += samples
        first = S.step["forwards"] == 1 and S.steps < (20 if S.step["read"] else 300)
        if first and samples <= 1024 and tensor is not None and record.comparable(tensor):
            S.step["inputs"], S.step["forward"] = record.fingerprint(tensor, samples or 1), site()


def first_tensor(values):
    import torch

    for value in values:
        if isinstance(value, (dict, list, tuple)):
            value = first_tensor(value.values() if isinstance(value, dict) else value)
        if isinstance(value, torch.Tensor):
            return value
    return None


def around_backward(original, *args, **kwargs):
    quietly(note_backward, *args, **kwargs)
    quietly(note_gradients, True)
    with waiting("backward", sync=S.pending):
        S.pending = None
        result = original(*args, **kwargs)
    quietly(note_gradients, False)
    return result


def note_gradients(before):
    """In the first steps: was .grad empty before a pass, and what did this rank alone compute?"""
    for optimizer, own in S.optimizers.items():
        numbers = record.projections(parameters_of(optimizer)) if own["n"] < 8 else []
        if len(numbers) and before:
            own["starts"] = [*own["starts"], numbers][:20]
        elif len(numbers):
            own |= {"local": numbers, "applied": None}


def note_backward(tensors, *args, **kwargs):
    """Does this pass communicate, what multiplies the loss, over how many targets?"""
    import torch

    note_gathered()
    root = tensors if hasattr(tensors, "grad_fn") else tensors[0]
    scaled = S.scaled is not None and S.scaled[0]() is root
    factor, node = factor_of(S.scaled[1] if scaled else root.grad_fn)
    mean = node is not None and ("Mean" in node.name() or getattr(node, "_saved_reduction", 0) == 1)
    tokens = targets_of(node, factor) if node is not None else None
    value = (S.scaled[2] if scaled else root.detach()).sum() if root.numel() == 1 else None
    S.on_device |= any(torch.is_tensor(t) and t.device.type != "cpu" for t in (tokens, value))
    sync = bool(S.pending)
    one = {"sync": sync, "factor": factor, "mean": mean, "tokens": tokens, "loss": value}
    if len(S.step["passes"]) < 200:
        S.step["passes"].append({**one, "at": site(), "scaled": scaled})
    S.scaled, S.backwards, S.synced = None, S.backwards + 1, S.synced + sync
    flush_evaluations()


def note_gathered():
    """What all_gather returns has no history; was this rank's own tensor put back in its place?"""
    for result, own, at in S.gathered:
        back = isinstance(result, list) and any(tensor is own for tensor in result)
        if not back and ("gathered", at) not in S.said:
            S.said.add(("gathered", at))
            write("gathered", at=at, shape=list(own.shape))
    S.gathered = []


def note_loaded(keys, module, state, *args, **kwargs):
    """load_state_dict(strict=False) leaves out what it does not find, without a word."""
    missing = len(keys.missing_keys)
    if missing and missing >= len(module.state_dict()):
        write("not_loaded", at=site(), count=missing, names=list(keys.unexpected_keys)[:1])


def factor_of(node):
    """loss / 4 or loss * 0.25 -> 0.25, and the node of the loss. Nothing is read from a GPU."""
    factor = 1.0
    while node is not None and node.name().startswith(("MulBackward", "DivBackward")):
        other = getattr(node, "_saved_other", None)
        if other is None or other.dim() or other.requires_grad or other.device.type != "cpu":
            return None, None
        factor = factor * other.item() if node.name().startswith("Mul") else factor / other.item()
        node = node.next_functions[0][0]
    return factor, node


def targets_of(node, factor):
    """The number of targets that a mean is over, as far as the graph shows it."""
    summed = node.name().startswith("SumBackward") or getattr(node, "_saved_reduction", 1) == 2
    if summed:  # and divided by the count
        return 1 / factor if factor != 1 else None
    sizes = getattr(node, "_saved_self_sym_sizes", ()) if node.name() == "MeanBackward0" else ()
    return math.prod(sizes) if sizes else getattr(node, "_saved_total_weight", None)


def hook_optimizers():
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before_step(optimizer, args, kwargs):
        if not is_compiling() and record.is_rank():
            closure = any(map(callable, [*args[1:], *kwargs.values()]))
            quietly(note_step, optimizer, closure)

    register_optimizer_step_pre_hook(before_step)


def note_step(optimizer, closure=False):
    parameters = parameters_of(optimizer)
    if optimizer not in S.optimizers:
        introduce(optimizer, parameters)
    own = S.optimizers[optimizer]
    own["n"] += 1
    S.steps, S.applied = S.steps + 1, S.applied + bool(own["ddps"])
    rates, n = [g["lr"] for g in optimizer.param_groups], own["n"]
    what = {"optimizer": own["key"], "n": n, "at": site(), "fresh": not optimizer.state, **S.step}
    served = sum(S.step["samples"][name] for name in own["ddps"])
    # No DDP was seen, or its model computed on a batch twice: what the loaders gave.
    what["samples"] = min((n for n in (served, S.step["read"]) if n), default=0)
    what["closure"] = closure  # LBFGS: the backward passes come within the step
    what["rates"] = [rate if isinstance(rate, float) else str(rate) for rate in rates]
    if own["local"] is not None:
        if own["applied"] is None:
            own["applied"] = record.projections(parameters)
        what |= {name: own[name] for name in ("starts", "local", "applied")}
        own |= {"starts": [], "local": None, "applied": None}
    if n <= 12 or n % 10 == 0:
        what["gradients"] = fingerprints([p.grad for p in parameters])
        what["weights"] = fingerprints(parameters)
    if S.steps <= 20:
        what["draws"] = record.draws()
        S.held |= {id(p) for p in parameters}
        reduced = [p for p in (reference() for reference, _ in S.reduced.values()) if p is not None]
        lost = [p for p in reduced if p.grad is not None and id(p) not in S.held]
        write("orphans", at=what["at"], count=len(lost), of=len(reduced))
    S.step = record.new_step()
    if sys.getprofile() is look_for_devices:
        sys.setprofile(None)
    write("step", **what)
    if S.steps % record.EVERY == 0:
        record.flush()
    record.show_now()


def introduce(optimizer, parameters):
    """Steps of two ranks are compared if their optimizers have the same parameters."""
    import torch

    ddps = [ddp_of(p) for p in parameters]
    shapes = [list(p.shape) for p in parameters]
    signature = str([sorted({d for d in ddps if d}), shapes])
    S.signatures[signature] += 1
    key = f"{signature} {S.signatures[signature]}"
    own = {"key": key, "n": 0, "ddps": {d for d in ddps if d}}
    S.optimizers[optimizer] = own | {"starts": [], "local": None, "applied": None}
    plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters)
    numels = [p.numel() for p in parameters]
    rank = os.environ.get("RANK")
    write("optimizer", key=key, plain=plain, ddps=ddps, numels=numels, rank=rank)


def note_applied():
    """The gradients that come out of the ranks' average: before they are clipped."""
    for optimizer, own in S.optimizers.items():
        if own["local"] is not None and own["applied"] is None:
            own["applied"] = record.projections(parameters_of(optimizer))


def note_clip(parameters, limit=None, *args, **kwargs):
    if S.unscaled is False and any(p["scaled"] for p in S.step["passes"]):
        limit = kwargs.get("max_norm", kwargs.get("clip_value", limit))
        write("clip", at=site(), factor=S.scale(), limit=float(limit))
    note_in_step("clip", site())
    note_applied()


def note_scale(result, scaler, outputs):
    if scaler.is_enabled() and hasattr(outputs, "grad_fn"):
        S.scaled = weakref.ref(result), outputs.grad_fn, outputs.detach()
        S.scale, S.unscaled = scaler.get_scale, False


def note_unscale(*args, **kwargs):
    S.unscaled = True


def look_for_devices(frame, event, value):
    """sys.setprofile, until the first step: which GPU do the script's own functions choose?"""
    if event == "return" and record.is_script(frame.f_code.co_filename):
        quietly(note_devices, frame, value)


def note_devices(frame, value):
    import torch

    for device in [value, *frame.f_locals.values()]:
        if type(device) is torch.device and device.index is not None and device not in S.said:
            S.said.add(device)
            write("device", index=device.index, at=place(frame))


def note_schedule(_, schedule, *args, **kwargs):
    """Of how many steps is the schedule made, and how many has it gone?"""
    if id(schedule) not in S.schedules:
        length = getattr(schedule, "total_steps", getattr(schedule, "T_max", None))
        name = type(schedule).__name__
        S.schedules[id(schedule)] = {"at": site(), "length": length, "name": name}
    S.schedules[id(schedule)]["gone"] = schedule.last_epoch


STEP = {
    "torch.nn.parallel:DistributedDataParallel _ddp_init_helper": after(note_ddp),
    "torch.nn.parallel:DistributedDataParallel forward": around_forward,
    "torch.nn.parallel:DistributedDataParallel register_comm_hook": noted("loose"),
    "torch.distributed.algorithms.join:Join __enter__": noted("loose"),
    "torch.autograd backward": around_backward,
    "torch.nn.utils clip_grad_norm_": before(note_clip),
    "torch.nn.utils clip_grad_value_": before(note_clip),
    "torch.amp:GradScaler scale": after(note_scale),
    "torch.amp:GradScaler unscale_": before(note_unscale),
    "torch.nn:Module load_state_dict": after(note_loaded),
    "torch.optim:Optimizer load_state_dict": noted("restore"),
    "torch.optim.lr_scheduler:LRScheduler step": after(note_schedule),
}

"""The step, in each rank: DDP, backward(), clipping, the scaler, the optimizer, schedules."""

import math
import weakref
from collections import Counter

from . import record
from .record import OUT, State, after, before, fingerprints, noted, quietly, site, write


def new_step():
    """What happened since the last step; samples by the DDP object, and read from loaders."""
    return {"passes": [], "forwards": 0, "samples": Counter(), "read": 0, "began": 0}


class Training(State):
    """The models and optimizers of this process, and the step that is being made."""

    def reset(self):
        self.step = new_step()
        self.backwards = self.synced = 0  # passes from the start, and those that averaged
        self.applied = 0  # steps of gradients that DDP has averaged
        self.pending = None  # does the next backward() average?
        self.scaled, self.scale, self.unscaled = None, None, True  # GradScaler
        self.groups, self.ddps = Counter(), weakref.WeakKeyDictionary()
        self.reduced = {}  # the DDP object of a parameter, by its id
        self.optimizers, self.made = weakref.WeakKeyDictionary(), Counter()  # steps, by key
        self.schedules = {}
        self.loaded = -1  # the step before which weights were loaded


TRAIN = Training()


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def note_ddp(_, ddp, *args, **kwargs):
    """Not after __init__ itself: its warnings are to name the line of the script."""
    from torch import distributed as dist

    ranks = dist.get_process_group_ranks(ddp.process_group)
    TRAIN.groups[str(ranks)] += 1
    TRAIN.ddps[ddp] = name = f"{ranks} {TRAIN.groups[str(ranks)]}"
    reduced = [p for p in ddp.module.parameters() if p.requires_grad]
    TRAIN.reduced.update({id(p): (weakref.ref(p), name) for p in reduced})
    write("wrap", at=site(), name=name)


def ddp_of(parameter):
    """The name of the DDP object that averages the gradients of this parameter, or None."""
    reference, name = TRAIN.reduced.get(id(parameter), (None, None))
    return name if reference is not None and reference() is parameter else None


def around_forward(original, self, *args, **kwargs):
    quietly(note_forward, self, args, kwargs)
    syncs = getattr(self, "will_sync_module_buffers", lambda: False)
    # After its first backward pass DDP makes new buckets: rank 0 sends theirs in the next forward.
    if getattr(self, "_has_rebuilt_buckets", True) and not quietly(syncs):
        return original(self, *args, **kwargs)
    with record.waiting("forward of DDP", training=self.module.training):
        return original(self, *args, **kwargs)


def note_forward(ddp, args, kwargs):
    import torch

    if not torch.is_grad_enabled():
        return
    TRAIN.pending = getattr(ddp, "require_backward_grad_sync", True)
    step = TRAIN.step
    if ddp.module.training:
        OUT.phase += 1
        values = torch.utils._pytree.tree_leaves([args, kwargs])
        tensor = next((value for value in values if isinstance(value, torch.Tensor)), None)
        step["forwards"] += 1
        samples = tensor.shape[0] if tensor is not None and tensor.dim() else 0
        step["samples"][TRAIN.ddps.get(ddp)] += samples
        first = step["forwards"] == 1 and OUT.steps < (20 if step["read"] else 300)
        if first and samples <= 1024 and tensor is not None and record.comparable(tensor):
            step["inputs"], step["forward"] = record.fingerprint(tensor, samples or 1), site()


def around_backward(original, *args, **kwargs):
    quietly(note_backward, *args, **kwargs)
    with record.waiting("backward", sync=TRAIN.pending):
        TRAIN.pending = None
        result = original(*args, **kwargs)
    quietly(note_gradients)
    return result


def note_gradients():
    """In the first steps: which gradients does this rank have before ranks are averaged?"""
    for optimizer, own in TRAIN.optimizers.items():
        if TRAIN.made[own["key"]] < 8:
            own |= {"local": record.projections(parameters_of(optimizer)), "applied": None}


def note_backward(tensors, *args, **kwargs):
    """Does this pass communicate, what multiplies the loss, over how many targets?"""
    import torch

    root = tensors if hasattr(tensors, "grad_fn") else tensors[0]
    scaled = TRAIN.scaled is not None and TRAIN.scaled[0]() is root
    factor, node = factor_of(TRAIN.scaled[1] if scaled else root.grad_fn)
    mean = node is not None and ("Mean" in node.name() or getattr(node, "_saved_reduction", 0) == 1)
    tokens = targets_of(node, factor) if node is not None else None
    value = (TRAIN.scaled[2] if scaled else root.detach()).sum() if root.numel() == 1 else None
    OUT.on_device |= any(torch.is_tensor(t) and t.device.type != "cpu" for t in (tokens, value))
    sync = bool(TRAIN.pending)
    one = {"sync": sync, "factor": factor, "mean": mean, "tokens": tokens, "loss": value}
    if len(TRAIN.step["passes"]) < 200:
        TRAIN.step["passes"].append({**one, "at": site(), "scaled": scaled})
    TRAIN.scaled = None
    TRAIN.backwards, TRAIN.synced = TRAIN.backwards + 1, TRAIN.synced + sync
    OUT.phase += 1


def factor_of(node):
    """loss / 4 or loss * 0.25 -> 0.25, and the node of the loss. Nothing is read from a GPU."""
    factor = 1.0
    while node is not None and node.name().startswith(("MulBackward", "DivBackward")):
        other = getattr(node, "_saved_other", None)
        if other is None or other.dim() or other.requires_grad or other.device.type != "cpu":
            return None, None
        divides, number = node.name().startswith("Div"), other.item()
        if divides and number == 0:
            return None, None
        factor = factor / number if divides else factor * number
        node = node.next_functions[0][0]
    return factor, node


def targets_of(node, factor):
    """The number of targets that a mean is over, as far as the graph shows it."""
    summed = node.name().startswith("SumBackward") or getattr(node, "_saved_reduction", 1) == 2
    if summed:  # and divided by the count; a factor of 0 is that of a rank without a sample
        return 1 / factor if factor not in (0, 1) else None
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
    parameters, at = parameters_of(optimizer), site()
    if len(parameters) != TRAIN.optimizers.get(optimizer, {}).get("count"):  # new, or added to
        introduce(optimizer, parameters)
    own = TRAIN.optimizers[optimizer]
    TRAIN.made[own["key"]] += 1
    OUT.steps, TRAIN.applied = OUT.steps + 1, TRAIN.applied + bool(own["ddps"])
    rates, n = [g["lr"] for g in optimizer.param_groups], TRAIN.made[own["key"]]
    what = {"optimizer": own["key"], "n": n, "at": at, "total": OUT.steps, **TRAIN.step}
    served = sum(TRAIN.step["samples"][name] for name in own["ddps"])
    # No DDP was seen, or its model computed on a batch twice: what the loaders gave.
    what["samples"] = min((n for n in (served, TRAIN.step["read"]) if n), default=0)
    what["closure"] = closure  # LBFGS: the backward passes come within the step
    what["rates"] = [rate if isinstance(rate, float) else str(rate) for rate in rates]
    if own["local"] is not None:
        applied = record.projections(parameters) if own["applied"] is None else own["applied"]
        what |= {"local": own["local"], "applied": applied}
        own["local"] = None
    if n <= 12 or n % 10 == 0 or OUT.steps % 10 == 0:
        what["gradients"] = fingerprints([p.grad for p in parameters])
        own["trained"] |= {id(p) for p in parameters if p.grad is not None}
        what["weights"] = weights_of(optimizer)
    if OUT.steps <= 20:
        what["draws"] = record.draws()
    TRAIN.step = new_step()
    write("step", **what)
    if OUT.steps % record.EVERY == 0:
        record.flush()
    record.show_now(since=at)


def weights_of(optimizer):
    """Of what never had a gradient each rank may have its own: it is in no model, maybe."""
    trained = TRAIN.optimizers[optimizer]["trained"]
    return fingerprints([p if id(p) in trained else None for p in parameters_of(optimizer)])


def introduce(optimizer, parameters):
    """The n-th steps of two ranks are compared if their optimizers have the same parameters."""
    import torch

    ddps = [ddp_of(p) for p in parameters]
    shapes = [list(p.shape) for p in parameters]
    served = {d for d in ddps if d}
    key = str([sorted(served), shapes])
    own = {"key": key, "ddps": served, "count": len(parameters), "trained": set()}
    TRAIN.optimizers[optimizer] = own | {"local": None, "applied": None}
    plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters)
    placed = {str(getattr(p, "placements", "")) for p in parameters}
    what = {"plain": plain, "by_rows": placed == {"(Shard(dim=0),)"}}  # as FSDP2 has them
    what |= {"ddps": ddps, "numels": [p.numel() for p in parameters]}
    write("optimizer", key=key, **what)


def note_applied():
    """The gradients that come out of the ranks' average: before they are clipped."""
    for optimizer, own in TRAIN.optimizers.items():
        if own["local"] is not None and own["applied"] is None:
            own["applied"] = record.projections(parameters_of(optimizer))


def note_clip(parameters, limit=None, *args, **kwargs):
    if TRAIN.unscaled is False and any(p["scaled"] for p in TRAIN.step["passes"]):
        limit = kwargs.get("max_norm", kwargs.get("clip_value", limit))
        write("clip", at=site(), factor=TRAIN.scale(), limit=float(limit))
    note_applied()


def note_scale(result, scaler, outputs):
    if scaler.is_enabled() and hasattr(outputs, "grad_fn"):
        TRAIN.scaled = weakref.ref(result), outputs.grad_fn, outputs.detach()
        TRAIN.scale, TRAIN.unscaled = scaler.get_scale, False


def note_unscale(*args, **kwargs):
    TRAIN.unscaled = True


def note_schedule(_, schedule, *args, **kwargs):
    """Of how many steps is the schedule made, and how many has it gone?"""
    if id(schedule) not in TRAIN.schedules:
        length = getattr(schedule, "total_steps", getattr(schedule, "T_max", None))
        name = type(schedule).__name__
        TRAIN.schedules[id(schedule)] = {"at": site(), "length": length, "name": name}
    TRAIN.schedules[id(schedule)]["gone"] = schedule.last_epoch


def note_loaded(*args, **kwargs):
    TRAIN.loaded = OUT.steps


def finish():
    """The weights after the last step, and how far the schedules have gone."""
    kept = TRAIN.loaded < OUT.steps  # else a rank may have loaded others, to evaluate or save them
    for optimizer, own in list(TRAIN.optimizers.items()) if kept else ():
        count, weights = TRAIN.made[own["key"]], weights_of(optimizer)
        write("last", optimizer=own["key"], n=count, weights=weights)
    for schedule in TRAIN.schedules.values():
        write("schedule", **schedule)
    TRAIN.schedules = {}


WATCHED = {
    "torch.nn.parallel:DistributedDataParallel _ddp_init_helper": after(note_ddp),
    "torch.nn.parallel:DistributedDataParallel forward": around_forward,
    "torch.nn.parallel:DistributedDataParallel register_comm_hook": noted("loose"),
    "torch.distributed.algorithms.join:Join __enter__": noted("loose"),
    "torch.autograd backward": around_backward,
    "torch.nn.utils clip_grad_norm_": before(note_clip),
    "torch.nn.utils clip_grad_value_": before(note_clip),
    "torch.amp:GradScaler scale": after(note_scale),
    "torch.amp:GradScaler unscale_": before(note_unscale),
    # A step that it skips, because a gradient is infinite, is no step: the next one begins here.
    "torch.amp:GradScaler step": after(lambda *_, **__: TRAIN.step["passes"].clear()),
    "torch.nn:Module load_state_dict": before(note_loaded),
    "torch.optim.lr_scheduler:LRScheduler step": after(note_schedule),
}

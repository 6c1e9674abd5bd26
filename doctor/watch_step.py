"""The step, in each rank: DDP, backward(), clipping, the scaler, the optimizer, eval().

See watch.py for what all watchers promise.
"""

import math
import sys
import weakref

from .record import (
    EVERY,
    S,
    caller,
    draws,
    fingerprints,
    flush,
    is_rank,
    is_script,
    new_step,
    noting,
    quietly,
    show_now,
    site,
    waiting,
    write,
)

NORMS = ("BatchNorm", "Dropout")  # modules that compute otherwise in eval mode


def note_in_step(call):
    """A collective or clipping, and how far the step had got."""
    passes = S.step["passes"]
    when = "after backward" if passes else "in step" if S.step["forwards"] else "before"
    synced = bool(passes) and passes[-1]["sync"]
    if len(S.step["comms"]) < 40:
        S.step["comms"].append({**call, "when": when, "passes": len(passes), "synced": synced})


def around_ddp_init(original, self, *args, **kwargs):
    """Not __init__ itself: its warnings are to name the line of the script."""
    original(self, *args, **kwargs)
    quietly(note_ddp, self, self.module)


def note_ddp(ddp, module):
    from torch import distributed as dist

    ranks = dist.get_process_group_ranks(ddp.process_group)
    S.groups[str(ranks)] += 1
    name = f"{ranks} {S.groups[str(ranks)]}"
    reduced = [p for p in module.parameters() if p.requires_grad]
    S.reduced.update({id(p): (weakref.ref(p), name) for p in reduced})
    S.ddps[ddp] = name
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
        S.evaluating = S.evaluating or {"at": site()}
        S.evaluating["training"] = ddp.module.training
        return
    S.pending = getattr(ddp, "require_backward_grad_sync", True)
    if ddp.module.training:
        tensor = first_tensor([*args, *kwargs.values()])
        S.step["forwards"] += 1
        samples = tensor.shape[0] if tensor is not None and tensor.dim() else 0
        S.step["samples"][S.ddps.get(ddp)] += samples
        if S.step["forwards"] == 1 and S.steps < 20:
            S.step["inputs"], S.step["forward"] = fingerprints([tensor]), site()


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
    with waiting("backward", sync=S.pending):
        S.pending = None
        return original(*args, **kwargs)


def note_backward(tensors, *args, **kwargs):
    """Does this pass communicate, what multiplies the loss, over how many targets?"""
    import torch

    root = tensors if hasattr(tensors, "grad_fn") else tensors[0]
    scaled = S.scaled is not None and S.scaled[0]() is root
    factor, node = factor_of(S.scaled[1] if scaled else root.grad_fn)
    mean = node is not None and ("Mean" in node.name() or getattr(node, "_saved_reduction", 0) == 1)
    tokens = targets_of(node, factor) if node is not None else None
    value = root.detach().clone() if root.numel() == 1 and S.steps < 3 else None
    S.on_device |= any(torch.is_tensor(t) and t.device.type != "cpu" for t in (tokens, value))
    sync = bool(S.pending)
    one = {"sync": sync, "factor": factor if mean else None, "tokens": tokens, "loss": value}
    if len(S.step["passes"]) < 200:
        S.step["passes"].append({**one, "at": site(), "scaled": scaled})
    S.scaled, S.backwards, S.synced = None, S.backwards + 1, S.synced + sync
    flush_evaluations()


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


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def hook_optimizers():
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before_step(optimizer, args, kwargs):
        if not is_compiling() and is_rank():
            closure = any(map(callable, [*args[1:], *kwargs.values()]))
            quietly(note_step, optimizer, closure)

    register_optimizer_step_pre_hook(before_step)


def note_step(optimizer, closure=False):
    parameters = parameters_of(optimizer)
    if optimizer not in S.optimizers:
        introduce(optimizer, parameters)
    own = S.optimizers[optimizer]
    own["n"] += 1
    S.steps += 1
    groups, n = optimizer.param_groups, own["n"]
    what = {"optimizer": own["key"], "n": n, "at": site(), "fresh": not optimizer.state, **S.step}
    served = sum(S.step["samples"][name] for name in own["ddps"])
    what["samples"] = served or S.step["read"]  # no DDP was seen: what the loaders gave
    what["closure"] = closure  # LBFGS: the backward passes come within the step
    what["rates"] = [g["lr"] if isinstance(g["lr"], float) else str(g["lr"]) for g in groups]
    what["momentum"] = any(g.get("momentum") or "betas" in g for g in groups)
    if n <= 12 or n % 10 == 0:
        what["gradients"] = fingerprints([p.grad for p in parameters])
        what["weights"] = fingerprints(parameters)
    if S.steps <= 20:
        what["draws"] = draws()
    S.step = new_step()
    if sys.getprofile() is look_for_devices:
        sys.setprofile(None)
    write("step", **what)
    if S.steps % EVERY == 0:
        flush()
    show_now()


def introduce(optimizer, parameters):
    """Steps of two ranks are compared if their optimizers have the same parameters."""
    import torch

    ddps = [ddp_of(p) for p in parameters]
    shapes = [list(p.shape) for p in parameters]
    signature = str([sorted({d for d in ddps if d}), shapes])
    S.signatures[signature] += 1
    key = f"{signature} {S.signatures[signature]}"
    S.optimizers[optimizer] = {"key": key, "n": 0, "ddps": {d for d in ddps if d}}
    plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters)
    numels = [p.numel() for p in parameters]
    write("optimizer", key=key, at=site(), plain=plain, ddps=ddps, numels=numels)


def note_train(module, mode=True):
    """eval() calls train(False): an evaluation begins. Its buffers are read when it is over."""
    if any(module is ddp.module for ddp in S.ddps) and (mode or S.backwards):
        flush_evaluations()
        if not mode:
            frame = caller()
            S.evaluating = {"at": site(frame), "code": code_of(frame)}
            S.evaluating["module"] = weakref.ref(module)


def code_of(frame):
    """The function of the script that is running."""
    return f"{frame.f_code.co_filename} {frame.f_code.co_name}" if frame else None


def flush_evaluations():
    """Training goes on, or the script ends: what was evaluated is known by now."""
    evaluation, S.evaluating = S.evaluating, None
    if evaluation:
        module = evaluation.pop("module", lambda: None)()
        buffers = dict(module.named_buffers()) if module is not None else {}
        added = evaluation.pop("added", False) or any(e["added"] for e in S.evaluations)
        values = fingerprints(list(buffers.values()))
        write("evaluation", **evaluation, added=added, names=list(buffers), buffers=values)
    epochs, S.evaluations = S.evaluations, []
    for epoch in epochs:
        write("epoch", **epoch)


def around_clip(original, parameters, *args, **kwargs):
    listed = [parameters] if hasattr(parameters, "grad") else list(parameters)
    result = original(listed, *args, **kwargs)
    quietly(note_clip, result, listed)
    return result


def note_clip(norm, parameters):
    scaled = any(p["scaled"] for p in S.step["passes"])
    if scaled and not any(id(p) in S.unscaled for p in parameters) and S.written["clip"] == 0:
        write("clip", at=site(), norm=float(norm) if norm is not None else None, factor=S.scale())
    note_in_step({"op": "clip", "at": site(), "numel": 0, "by_torch": False})


def around_scale(original, self, outputs):
    result = original(self, outputs)
    quietly(note_scale, self, outputs, result)
    return result


def note_scale(scaler, outputs, result):
    if scaler.is_enabled() and hasattr(outputs, "grad_fn"):
        S.scaled, S.scale = (weakref.ref(result), outputs.grad_fn), scaler.get_scale
        S.unscaled = set()


def note_unscale(scaler, optimizer):
    S.unscaled |= {id(p) for p in parameters_of(optimizer)}


def look_for_devices(frame, event, value):
    """sys.setprofile, until the first step: which GPU do the script's own functions choose?"""
    if event == "return" and is_script(frame.f_code.co_filename):
        quietly(note_devices, frame, value)


def note_devices(frame, value):
    import torch

    for device in [value, *frame.f_locals.values()]:
        if type(device) is torch.device and device.index is not None and device not in S.said:
            S.said.add(device)
            write("device", index=device.index, at=site(frame))


STEP = {
    "torch.nn.parallel:DistributedDataParallel _ddp_init_helper": around_ddp_init,
    "torch.nn.parallel:DistributedDataParallel forward": around_forward,
    "torch.nn.parallel:DistributedDataParallel register_comm_hook": noting(
        lambda *a, **k: write("hook")
    ),
    "torch.distributed.algorithms.join:Join __enter__": noting(lambda *a: write("join")),
    "torch.autograd backward": around_backward,
    "torch.nn.utils clip_grad_norm_": around_clip,
    "torch.nn.utils clip_grad_value_": around_clip,
    "torch.nn:Module train": noting(note_train),
    "torch.nn:Module load_state_dict": noting(lambda *a, **k: flush_evaluations()),
    "torch.amp:GradScaler scale": around_scale,
    "torch.amp:GradScaler unscale_": noting(note_unscale),
    "torch.optim:Optimizer load_state_dict": noting(lambda *a, **k: write("restore", at=site())),
}

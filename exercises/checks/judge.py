"""The judge: it compares what the ranks saw of the reader's file with what they saw of ours.

Both files run on the same ranks, cases and secret seeds. `observe` of a check returns facts,
{name: value}, or its `facts` makes them of what all ranks returned. They are compared in their
order. If the name of a fact ends with "at most", the reader's value may be smaller. A check whose
right answers differ has a `judge` of its own, and our solution does not run.
"""

import math
import secrets
from pathlib import Path
from types import ModuleType

import torch

from exercises.checks import ranks

MOST = ", at most"
RTOL, ATOL = 1e-5, 1e-9  # of float64: a count in the answer may be float32


def judged(file: Path, ours: Path, check: Path) -> tuple[str | None, str]:
    """Compare a file with our solution -> what differs first, or None; figures, if any."""
    module, figures = ranks.load(check), ""
    sizes = getattr(module, "WORLD_SIZES", (2, 3))
    for world_size in sizes:
        seed = secrets.randbelow(2**32)
        seen = ranks.run(file, check, world_size, seed)
        wrong = ranks.failure(seen)
        if wrong is None:
            figures = module.figures(*seen[0].values) if hasattr(module, "figures") else ""
            wanted = None
            if not hasattr(module, "judge"):
                wanted = ranks.run(ours, check, world_size, seed)
                if failed := ranks.failure(wanted):
                    return f"our solution fails on this machine, so nothing is said: {failed}", ""
            wrong = of_cases(module, seen, wanted)
        if wrong:
            return wrong if world_size == sizes[0] else f"On {world_size} ranks: {wrong}", figures
    return None, figures


def of_cases(module: ModuleType, seen: list, wanted: list | None) -> str | None:
    """The first case that is wrong, in words."""
    for number, case in enumerate(getattr(module, "CASES", [()])):
        yours = [rank.values[number] for rank in seen]
        if wanted is None:
            wrong = module.judge(yours, *case)
        else:
            ours = [rank.values[number] for rank in wanted]
            if hasattr(module, "facts"):
                yours, ours = [module.facts(yours, *case)], [module.facts(ours, *case)]
            wrong = differs(yours, ours)
        if wrong:
            return getattr(module, "CASE", "").format(*case) + wrong
    return None


def differs(yours: list[dict], ours: list[dict], whose: str = "our solution") -> str | None:
    """The first fact that is not as in our solution, in words; one dict per rank, or for all."""
    for fact in {name: None for rank in ours for name in rank}:
        pairs = [(one.get(fact), other[fact]) for one, other in zip(yours, ours) if fact in other]
        found, wanted = zip(*pairs)
        if fact.endswith(MOST):
            if max(found) > max(wanted):
                each = ", ".join(map(shown, found))
                return f"{fact.removesuffix(MOST)}: {each}; {shown(max(wanted))} with {whose}"
        elif not all(map(alike, found, wanted)):
            return f"different from {whose}: {fact}{in_words(found, wanted, whose)}"
    return None


def in_words(found: tuple, wanted: tuple, whose: str) -> str:
    """A line for each rank. Of tensors only the elements that differ on some rank are shown."""
    values = [*found, *wanted]
    if all(map(torch.is_tensor, values)) and len({value.shape for value in values}) == 1:
        rtol = RTOL if wanted[0].is_floating_point() else 0
        pairs = [torch.stack(same).double().flatten(1) for same in (found, wanted)]
        at = ~torch.isclose(*pairs, rtol=rtol, atol=ATOL).all(0)
        found, wanted = (list(values[:, at]) for values in pairs)
    count = 10 if shown(found) == shown(wanted) else 4
    texts, right = ([shown(value, count) for value in values] for values in (found, wanted))
    names = [f"rank {number}" for number in range(len(texts))] if len(texts) > 1 else ["yours"]
    lines = [f"\n  {name}: {text}" for name, text in zip(names, texts)]
    return "".join(lines) + f"\n  {whose}: {', '.join(dict.fromkeys(right))}"


def alike(one, other) -> bool:
    """Equal, up to the rounding of their dtype; integers are exactly equal."""
    if isinstance(other, (list, tuple)):
        same = isinstance(one, (list, tuple)) and len(one) == len(other)
        return same and all(map(alike, one, other))
    if isinstance(other, dict):
        same = isinstance(one, dict) and one.keys() == other.keys()
        return same and all(alike(one[key], other[key]) for key in other)
    if isinstance(other, torch.Tensor) or isinstance(one, torch.Tensor):
        return alike_tensors(one, other)
    if isinstance(other, float) and isinstance(one, (int, float)):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)
    return one == other


def alike_tensors(one, other) -> bool:
    """A number is as good as a tensor with one element."""
    if not all(isinstance(value, (int, float, torch.Tensor)) for value in (one, other)):
        return False
    one, other = map(torch.as_tensor, (one, other))
    rtol, atol = (RTOL, ATOL) if other.dtype == torch.float64 else (1e-4, 1e-6)
    if not other.is_floating_point():
        rtol = atol = 0
    one, other = one.double(), other.double()
    if one.numel() == other.numel() == 1:
        one, other = one.reshape(1), other.reshape(1)
    return one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol)


def shown(value, count: int = 4) -> str:
    """A value as text: of a tensor or a list the first elements, of a float `count` digits."""
    if torch.is_tensor(value):
        value = value.flatten().tolist()
    if isinstance(value, (list, tuple)) and value:
        texts = [shown(one, count) for one in value[:8]] + ["..."] * (len(value) > 8)
        mark = "; " if isinstance(value[0], str) else ", "
        return f"[{mark.join(texts)}]"
    if isinstance(value, (bool, list, tuple)):
        return str(value) if isinstance(value, bool) else "none"
    return f"{value:.{count}g}" if isinstance(value, float) else str(value)[:200]

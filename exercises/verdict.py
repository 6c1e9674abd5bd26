"""The verdict on a file: it runs on real ranks, and what they did is compared with our solution.

Both files run on the same ranks, cases and secret seeds. `observe` of a check returns facts,
{name: value}, or its `facts` makes them of what all ranks returned. They are compared in their
order. If the name of a fact ends with "at most", the reader's value may be smaller; if it begins
with "note: ", it is for `figures` only. A check whose right answers differ has a `judge` of its
own, and our solution does not run.
"""

import math
import secrets
from pathlib import Path
from types import ModuleType

import torch

from exercises import ranks

MOST = ", at most"
NOTE = "note: "
# Of float64. A count in the answer may be float32.
RTOL = 1e-5
ATOL = 1e-9


def judged(exercise, file: Path) -> tuple[str | None, str]:
    """-> what still differs, or None; and the figures that the ranks have reached, if any."""
    unreadable = cannot_be_read(file)
    if unreadable:
        return unreadable, ""
    module = ranks.load_check(exercise.folder)
    sizes = getattr(module, "WORLD_SIZES", (2, 3))
    figures = ""
    for world_size in sizes:
        wrong, reached = compared(module, exercise.folder, file, world_size)
        figures = reached or figures
        if wrong:
            where = "" if world_size == sizes[0] else f"On {world_size} ranks: "
            return where + wrong, figures
    return None, figures


def cannot_be_read(file: Path) -> str | None:
    """Why Python cannot compile the file, if it cannot."""
    try:
        compile(file.read_text(), str(file), "exec")
    except SyntaxError as error:
        place = f"line {error.lineno}" if error.lineno else file.name
        return f"Python cannot read {place}: {error.msg}"
    except (OSError, ValueError) as error:  # gone, not UTF-8, or a null byte
        return f"Python cannot read {file.name}: {error}"
    return None


def compared(
    module: ModuleType, folder: Path, file: Path, world_size: int
) -> tuple[str | None, str]:
    """Run the file and our solution on so many ranks -> what differs first; figures."""
    seed = secrets.randbelow(2**32)
    seen = ranks.run(file, folder, world_size, seed)
    failed = ranks.failure(seen)
    if failed:
        return failed, ""
    wanted = None
    if not hasattr(module, "judge"):
        wanted = ranks.run(folder / "solution.py", folder, world_size, seed)
        failed = ranks.failure(wanted)
        if failed:
            why = "our solution fails on this machine, so your file is not judged"
            return f"{why}: {failed}", ""
    figures = ""
    try:
        if hasattr(module, "figures"):
            figures = module.figures(*seen[0].values)
        return of_cases(module, seen, wanted), figures
    except Exception as error:  # any, because a file can return whatever it wants
        kind = type(error).__name__
        return f"what your file has returned cannot be compared. {kind}: {error}", figures


def of_cases(module: ModuleType, seen: list, wanted: list | None) -> str | None:
    """The first case that is wrong, in words."""
    for number, case in enumerate(getattr(module, "CASES", [()])):
        yours = [rank.values[number] for rank in seen]
        if wanted is None:
            wrong = module.judge(yours, *case)
        else:
            ours = [rank.values[number] for rank in wanted]
            if hasattr(module, "facts"):
                yours = [module.facts(yours, *case)]
                ours = [module.facts(ours, *case)]
            wrong = differs(yours, ours)
        if wrong:
            return getattr(module, "CASE", "").format(*case) + wrong
    return None


def differs(yours: list[dict], ours: list[dict], whose: str = "our solution") -> str | None:
    """The first fact that is not as in our solution, in words; one dict per rank, or for all."""
    names = {}
    for rank in ours:
        names |= rank
    for fact in names:
        if fact.startswith(NOTE):
            continue
        found = []
        wanted = []
        for one, other in zip(yours, ours):
            if fact in other:  # some facts are those of one rank only
                found.append(one.get(fact))
                wanted.append(other[fact])
        if fact.endswith(MOST):
            if max(found) > max(wanted):
                each = ", ".join(on_each_rank(found))
                return f"{fact.removesuffix(MOST)}: {each}; {shown(max(wanted))} with {whose}"
        elif not all(map(alike, found, wanted)):
            return f"different from {whose}: {fact}{in_words(found, wanted, whose)}"
    return None


# ---------------------------------------------------------------- a difference in words


def in_words(found: list, wanted: list, whose: str) -> str:
    """A line for each rank. Of tensors only the elements that differ on some rank are shown."""
    apart = ""
    if same_shape([*found, *wanted]):
        apart = how_far(found, wanted, whose)
        found, wanted = where_they_differ(found, wanted)
    count = 10 if shown(found) == shown(wanted) else 4
    text = ""
    for number, value in enumerate(found):
        name = f"rank {number}" if len(found) > 1 else "yours"
        text += f"\n  {name}: {shown(value, count)}"
    right = dict.fromkeys(shown(value, count) for value in wanted)  # each text once
    return f"{text}\n  {whose}: {', '.join(right)}{apart}"


def on_each_rank(found: list) -> list[str]:
    """A count of each rank with the number of the rank; a count of all ranks stands alone."""
    if len(found) == 1:
        return [shown(found[0])]
    return [f"{shown(value)} on rank {number}" for number, value in enumerate(found)]


def same_shape(values: list) -> bool:
    if not all(map(torch.is_tensor, values)):
        return False
    return len({value.shape for value in values}) == 1


def where_they_differ(found: list, wanted: list) -> tuple[list, list]:
    """The elements of tensors that differ on some rank."""
    rtol = RTOL if wanted[0].is_floating_point() else 0
    yours = torch.stack(found).double().flatten(1)
    ours = torch.stack(wanted).double().flatten(1)
    at = ~torch.isclose(yours, ours, rtol=rtol, atol=ATOL).all(0)
    return list(yours[:, at]), list(ours[:, at])


def how_far(found: list, wanted: list, whose: str) -> str:
    """Of floating-point tensors that are close or that differ by a factor, in a line."""
    if not wanted[0].is_floating_point():
        return ""
    yours = torch.stack(found).double()
    ours = torch.stack(wanted).double()
    size = ours.norm().item()
    factor = (yours * ours).sum().item() / max(size**2, 1e-300)
    rest = (yours - factor * ours).norm().item()
    if rest < 1e-3 * size and abs(factor - 1) > 0.01:
        return f"\n  yours is {factor:.3g} times that of {whose}"
    most = (yours - ours).abs().max().item()
    if most < 0.1 * ours.abs().max().item():
        return f"\n  the largest difference is {most:.2g}"
    return ""


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
    for value in (one, other):
        if not isinstance(value, (int, float, torch.Tensor)):
            return False
    one = torch.as_tensor(one)
    other = torch.as_tensor(other)
    if not other.is_floating_point():
        rtol = 0
        atol = 0
    elif other.dtype == torch.float64:
        rtol = RTOL
        atol = ATOL
    else:
        rtol = 1e-4
        atol = 1e-6
    one = one.double()
    other = other.double()
    if one.numel() == other.numel() == 1:
        one = one.reshape(1)
        other = other.reshape(1)
    return one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol)


def shown(value, count: int = 4) -> str:
    """A value as text: of a tensor or a list the first elements, of a float `count` digits."""
    if torch.is_tensor(value):
        value = value.flatten().tolist()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (list, tuple)):
        return shown_list(value, count)
    if isinstance(value, float):
        return f"{value:.{count}g}"
    return str(value)[:200]


def shown_list(values, count: int) -> str:
    if not values:
        return "none"
    texts = [shown(value, count) for value in values[:8]]
    if len(values) > 8:
        texts.append("...")
    mark = "; " if isinstance(values[0], str) else ", "
    return f"[{mark.join(texts)}]"

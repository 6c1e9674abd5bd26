"""The training step: do the ranks train one model, as the method promises?"""

from collections import Counter

from .case import differing, finds, one_of, short
from .judge_data import divided, together


def cause(optimizer, step, numbers):
    """Why gradients of a step differ, as far as that was seen."""
    causes = {
        "not-through-ddp": not step["forwards"] and not any(p["sync"] for p in step["passes"]),
        "last-pass-not-synced": step["passes"] and not step["passes"][-1]["sync"],
        "not-in-ddp": any(optimizer["ddps"][i] is None for i in numbers),
    }
    served = any(optimizer["ddps"])
    return next((name for name, true in causes.items() if served and true), "weights-differ")


def differences(case, wanted):
    """The first step of each optimizer in which gradients differ -> (severity, its step, seen)."""
    for key, steps in case.steps.items():
        optimizer = case.optimizers[key]
        looks = [(n, ranks, differing(ranks, "gradients")) for n, ranks in steps]
        n, ranks, numbers = next((look for look in looks if look[2]), (0, {}, []))
        served, count, drifts = any(optimizer["ddps"]), len(optimizer["numels"]), case.drifts(key)
        some = len(numbers) < count or averaged_in(one_of(ranks or {0: {}}), optimizer)
        some = some and case.averages(key) and drifts  # by the script itself
        known = numbers and (served or some) and not case.loose
        if known and cause(optimizer, one_of(ranks), numbers) == wanted:
            of = f"{len(numbers)} of {count} parameters"
            seen = f"in step {n} the ranks had different gradients of {of}"
            later = (served and case.averages(key, until=1e9)) or case.own_models()
            if drifts and not later:
                yield "wrong", one_of(ranks), f"{seen}, and their weights differ to the end"
            else:
                fine = "fine if the ranks average their weights later, or train models of their own"
                yield "check", one_of(ranks), f"{seen}; {fine}"


def averaged_in(step, optimizer):
    """The place where a script itself all-reduces the gradients after a backward pass, or None."""
    calls = [c for c in step.get("comms", ()) if c["op"] == "all_reduce" and c["passes"]]
    numels, sizes = optimizer["numels"], Counter(c["numel"] for c in calls)
    most = (Counter(numels) & sizes).total() >= max(2, min(20, len(numels) / 2))
    return calls[0]["at"] if most or max(sizes, default=0) >= sum(numels) else None


@finds("not-through-ddp", "docs/adapt.md#step-by-step", "through_the_module")
def judge_forward(case):
    """Only the forward pass of the DDP object prepares backward() to average gradients."""
    for severity, step, seen in differences(case, "not-through-ddp"):
        at = step["passes"][-1]["at"] if step["passes"] else step["at"]
        yield severity, at, f"{seen}; before this backward() the DDP that holds them was not called"


@finds("last-pass-not-synced", "docs/gradient_accumulation.md", "no_sync_off_by_one")
def judge_no_sync(case):
    """What is added to .grad after the average stays on its rank: the last pass must sync."""
    for severity, step, seen in differences(case, "last-pass-not-synced"):
        sync = [number for number, p in enumerate(step["passes"], 1) if p["sync"]]
        which = f"{short(sync) or 'none'} of its {len(step['passes'])} backward passes"
        yield severity, step["at"], f"{seen}; {which} communicated, the last one not"


@finds("not-in-ddp", "docs/unused_parameters.md", "unfrozen_after_wrapping")
def judge_lacking(case):
    """DDP averages the parameters that needed gradients when it wrapped the model."""
    for severity, step, seen in differences(case, "not-in-ddp"):
        yield severity, step["at"], f"{seen}; DDP ({case.wraps[0]['at']}) does not have these"


@finds("weights-differ", "docs/corrections.md#gradients-and-weights")
def judge_weights(case):
    """The ranks train different models, and one of them is saved."""
    for severity, step, seen in differences(case, "weights-differ"):
        yield severity, step["at"], seen
    severity = "check" if case.loose else "wrong"
    text = "the ranks have different weights in"
    for key, _, steps in case.joint():
        gradients = any(differing(ranks, "gradients") for _, ranks in steps)
        rates = any(differing_rates(ranks) for _, ranks in steps)
        if case.drifts(key) and not gradients and not rates:
            n, numbers = next(look for look in case.weights(key) if look[1])
            place = f"before step {n}" if n else "after the last step"
            since = "nothing made them equal" if n == 1 else "although the gradients agreed"
            seen = f"{place} {text} {len(numbers)} parameters: {since}"
            yield severity, one_of(steps[-1][1])["at"], seen


@finds("steps-differ", "docs/corrections.md#gradients-and-weights")
def judge_step_counts(case):
    """step() does not communicate: a rank that leaves it out keeps its weights."""
    ends = [next(iter(r.all("exit")), {"applied": 0, "synced": 0}) for r in case.ranks]
    steps, synced = [e["applied"] for e in ends], {e["synced"] for e in ends}
    at = next((s["at"] for r in case.ranks for s in r.all("step")), "?")
    whole = all(w["name"].startswith(str([r.number for r in case.ranks])) for w in case.wraps)
    own = [one["numels"] for one in case.optimizers.values()]
    numels = {n for one in own for n in (*one, sum(one))}
    sent = any(e["step"] and e["numel"] in numels for e in case.ranks[0].all("collective"))
    if len(set(steps)) > 1 and len(synced) == 1 and min(synced) > 2 and whole and not case.loose:
        text = f"of {min(synced)} averaged gradients the ranks applied: {case.per_rank(steps)}"
        fine = "; fine if the weights are sent afterwards" if sent else ""
        yield "check" if fine else "wrong", at, text + fine


@finds("rates-differ", "docs/questions.md#metrics-and-losses", "reduced_on_one_rank")
def judge_rates(case):
    """Equal gradients times unequal learning rates make unequal weights."""
    for key, _, steps in case.joint():
        for n, ranks in [step for step in steps if differing_rates(step[1])]:
            rates = ", ".join(f"rank {r} {s['rates'][0]:.4}" for r, s in ranks.items())
            reduces = {e["at"] for e in case.ranks[0].all("collective") if e["op"] == "reduce"}
            hint = f"; dist.reduce ({short(reduces)}) gives its result to one rank"
            text = f"from step {n} on the learning rates differ: {rates}{hint if reduces else ''}"
            yield "wrong" if case.drifts(key) else "check", one_of(ranks)["at"], text


def differing_rates(ranks):
    return len({str(step["rates"]) for step in ranks.values()}) > 1


@finds("not-wrapped", "docs/adapt.md#the-difference")
def judge_alone(case):
    """Nothing averages the gradients of this model: each rank trains a model of its own."""
    for key, steps in case.steps.items():
        optimizer, at = case.optimizers[key], one_of(steps[0][1])["at"]
        served = any(optimizer["ddps"]) or not optimizer["plain"]
        if served or len(steps) < 2 or exchanges(case, key):
            continue
        differ = any(differing(ranks, "gradients") for _, ranks in steps)
        seen = f"no DDP wraps this model, and in {len(steps)} steps nothing averages"
        added = any(s["comms"] for _, ranks in steps for s in ranks.values())
        alike = all(len({str(losses(s)) for s in r.values()}) == 1 for _, r in steps)
        if not differ and alike and not added and not case.wraps:
            yield "check", at, f"in {len(steps)} steps all ranks computed the same gradients"
        elif differ and case.drifts(key):
            sure = any(map(divided, together(case, True, False))) and not (case.wraps or case.loose)
            meant = "" if sure else "; right if each rank is to have its own model"
            yield "check" if meant else "wrong", at, f"{seen} its gradients, which differ{meant}"


def losses(step):
    return [p["loss"] and p["loss"] / (p["factor"] or 1) for p in step["passes"]]


def exchanges(case, key):
    """Do the ranks send each other gradients, weights or activations?"""
    calls = [e for e in case.ranks[0].all("collective") if e["step"] or e["numel"] > 16]
    large = [e for e in calls if e["numel"] > 16 and e["op"] != "broadcast"]
    point = any("send" in e["op"] or "recv" in e["op"] for e in calls)
    return point or case.averages(key, until=1e9) or len(large) > len(case.steps[key]) / 2


@finds("never-joined", "docs/adapt.md#the-difference", ranks=0)
def judge_joined(case):
    """Without init_process_group and DDP each process trains by itself, as if there were one."""
    trained = [p.all("step") for p in case.processes if p.all("step") and lonely(p)]
    if len(trained) > 1 and len(case.ranks) < 2:
        numbers = {e["rank"] for p in case.processes for e in p.all("optimizer")[:1] if lonely(p)}
        alike = len({str([(s["optimizer"], s["rates"]) for s in own]) for own in trained}) == 1
        sure = alike and None not in numbers and len(numbers) == len(trained)  # torchrun's RANK
        epochs = [p.epochs(True) for p in case.processes if p.epochs(True)]
        sets = {str([(e["data"], sorted(e["indices"])) for e in own]) for own in epochs}
        sure &= len(sets) == 1 and not case.own_models()  # not a fold for each
        text = f"{len(trained)} processes trained a model, and none has others in its group"
        fine = "" if sure else "; right only if each is to train a model of its own"
        yield "wrong" if sure else "check", trained[0][0]["at"], text + fine


def lonely(process):
    return not process.init or process.init["world"] == 1

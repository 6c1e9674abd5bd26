"""The training step: do the ranks train one model, by the gradient that is meant?"""

from statistics import mode

from .case import differing, finds, one_of, short
from .judge_data import divided, together


def differences(case, wanted):
    """The first step of each optimizer in which gradients differ, if this is the cause."""
    for key, steps in case.steps.items():
        optimizer, drifts = case.optimizers[key], case.drifts(key)
        looks = [(n, one_of(ranks), differing(ranks, "gradients")) for n, ranks in steps]
        n, step, numbers = next((look for look in looks if look[2]), (0, {"comms": []}, []))
        served, numels = any(optimizer["ddps"]), optimizer["numels"]
        averaged = any(c["passes"] for c in step["comms"]) and case.averages(key)
        if not numbers or case.loose or not (served or (drifts and averaged)):
            continue
        lacks = any(optimizer["ddps"][i] is None for i in numbers)
        name, at, text = cause(case, step, lacks) if served else ("weights-differ", step["at"], "")
        if name == wanted:
            of = f"{len(numbers)} of {len(numels)} parameters"
            later = (served and case.averages(key, until=1e9)) or case.own_models()
            fine = "the ranks average their weights later, or train models of their own"
            seen = f"in step {n} the ranks had different gradients of {of}{text}"
            yield at, seen, "" if drifts and not later else fine


def cause(case, step, lacks):
    """Why gradients of a step differ, as far as that was seen -> (finding, line, words)."""
    passes, sync = step["passes"], [n for n, p in enumerate(step["passes"], 1) if p["sync"]]
    if not step["forwards"] and not sync:
        text = "; before this backward() the DDP that holds them was not called"
        return "not-through-ddp", (passes or [step])[-1]["at"], text
    if passes and not passes[-1]["sync"]:
        text = f"; {short(sync) or 'none'} of its {len(passes)} backward passes communicated"
        return "last-pass-not-synced", step["at"], f"{text}, the last one not"
    if lacks:
        return "not-in-ddp", step["at"], f"; DDP ({case.wraps[0]['at']}) does not have these"
    return "weights-differ", step["at"], ""


@finds("not-through-ddp", "adapt.md#step-by-step", "04_through_the_module")
def judge_forward(case):
    """Only the forward pass of the DDP object prepares backward() to average gradients."""
    yield from differences(case, "not-through-ddp")


@finds("last-pass-not-synced", "gradient_accumulation.md", "15_no_sync_off_by_one")
def judge_no_sync(case):
    """What is added to .grad after the average stays on its rank: the last pass must sync."""
    yield from differences(case, "last-pass-not-synced")


@finds("not-in-ddp", "unused_parameters.md", "17_unfrozen_after_wrapping")
def judge_lacking(case):
    """DDP averages the parameters that needed gradients when it wrapped the model."""
    yield from differences(case, "not-in-ddp")


@finds("weights-differ", "corrections.md#gradients-and-weights")
def judge_weights(case):
    """The ranks train different models, and one of them is saved."""
    yield from differences(case, "weights-differ")
    for key, _, steps in case.joint():
        gradients = any(differing(ranks, "gradients") for _, ranks in steps)
        rates = any(differing_rates(ranks) for _, ranks in steps)
        if case.drifts(key) and not gradients and not rates:
            n, numbers = next(look for look in case.weights(key) if look[1])
            place = f"before step {n}" if n else "after the last step"
            since = "nothing made them equal" if n == 1 else "although the gradients agreed"
            seen = f"{place} {len(numbers)} parameters have different weights: {since}"
            yield one_of(steps[-1][1])["at"], seen, "Join or a hook makes them" * case.loose


@finds("steps-differ", "corrections.md#gradients-and-weights")
def judge_step_counts(case):
    """step() does not communicate: a rank that leaves it out keeps its weights."""
    ends = [next(iter(r.all("exit")), {"applied": 0, "synced": 0}) for r in case.ranks]
    steps, synced = [e["applied"] for e in ends], {e["synced"] for e in ends}
    if len(set(steps)) > 1 and len(synced) == 1 and min(synced) > 2 and not case.loose:
        at = next(s["at"] for r in case.ranks for s in r.all("step"))
        text = f"of {min(synced)} averaged gradients the ranks applied: {case.per_rank(steps)}"
        yield at, text, "the weights are sent afterwards"


@finds("rates-differ", "questions.md#metrics-and-losses", "06_reduced_on_one_rank")
def judge_rates(case):
    """Equal gradients times unequal learning rates make unequal weights."""
    for key, _, steps in case.joint():
        for n, ranks in [step for step in steps if differing_rates(step[1])]:
            rates = ", ".join(f"rank {r} {s['rates'][0]:.4}" for r, s in ranks.items())
            text = f"from step {n} on the learning rates differ: {rates}"
            yield one_of(ranks)["at"], text, "" if case.drifts(key) else "the weights agree"


def differing_rates(ranks):
    return len({str(step["rates"]) for step in ranks.values()}) > 1


@finds("not-wrapped", "adapt.md#the-difference")
def judge_alone(case):
    """Nothing averages the gradients of this model: each rank trains a model of its own."""
    for key, steps in case.steps.items():
        optimizer, at = case.optimizers[key], one_of(steps[0][1])["at"]
        served = any(optimizer["ddps"]) or not optimizer["plain"] or exchanges(case, key)
        differ = any(differing(ranks, "gradients") for _, ranks in steps) and case.drifts(key)
        if differ and not served and len(steps) > 1:
            sure = any(map(divided, together(case, True, False))) and not (case.wraps or case.loose)
            seen = f"no DDP wraps this model: in {len(steps)} steps nothing averages gradients"
            yield at, seen, "" if sure else "each rank is to have its own model"


def exchanges(case, key):
    """Do the ranks send each other gradients, weights or activations?"""
    calls = [e for e in case.ranks[0].all("collective") if e["op"] != "broadcast"]
    large = [e for e in calls if e["numel"] > 16]
    return case.averages(key, until=1e9) or len(large) > len(case.steps[key]) / 2


@finds("never-joined", "adapt.md#the-difference", ranks=0)
def judge_joined(case):
    """Without init_process_group and DDP each process trains by itself, as if there were one."""
    lonely = [p for p in case.processes if not p.init or p.init["world"] == 1]
    trained = [p.all("step") for p in lonely if p.all("step")]
    if len(trained) > 1 and len(case.ranks) < 2:
        text = f"{len(trained)} processes trained a model, and none has others in its group"
        yield trained[0][0]["at"], text, "each is to have its own model"


@finds(
    "unequal-counts",
    "gradient_accumulation.md#loss-normalization-when-token-counts-differ",
    "14_loss_of_unequal_counts",
)
def judge_counts(case):
    """DDP averages the ranks' means: a target of the smaller count weighs more."""
    for _, _, steps in case.joint():
        rows = [
            (n, [p["tokens"] for p in passes], passes[0]["at"])
            for n, ranks in steps
            for passes in zip(*(s["passes"] for s in ranks.values()))
            if all(p["tokens"] for p in passes)
        ]
        uneven = [row for row in rows if max(row[1]) / min(row[1]) > 1.001]
        if uneven and len(uneven) >= len(rows) / 2:  # not the last batch of an epoch
            n, counts, at = max(uneven, key=lambda row: max(row[1]) / min(row[1]))
            text = case.per_rank(f"{count:g}" for count in counts)
            means = f"in step {n} the ranks' mean losses are over different numbers ({text})"
            often = f"and so they are in {len(uneven)} of {len(rows)} passes"
            yield at, f"{means}, {often}", "they differ by little"


@finds("accumulation-weight", "gradient_accumulation.md#what-to-watch")
def judge_accumulation(case):
    """DDP averages over ranks; the loss is divided by the micro-batches that the step has."""
    for _, _, steps in case.joint():
        own = [s for s in (one_of(ranks) for _, ranks in steps) if s["passes"] and not s["closure"]]
        passes = [p for s in own for p in s["passes"]]
        factors = {round(p["factor"], 6) if p["factor"] and p["mean"] else 0 for p in passes}
        if len(factors) != 1 or 0 in factors or len({p["at"] for p in passes}) != 1:  # one loop
            continue
        factor, usual = factors.pop(), mode(len(s["passes"]) for s in own)
        odd = [s for s in own if len(s["passes"]) != usual]  # also: a rest that is carried over
        if usual > 1 and abs(factor * usual - 1) > 0.01:
            text = f"a step adds up {usual} losses, each times {factor:.4g}: {factor * usual:.3g}"
            yield own[0]["at"], f"{text} times the mean", "the rate fits that"
        elif odd:
            text = f"step {odd[0]['n']} adds up {len(odd[0]['passes'])} losses, the others {usual}"
            text += f", and each is multiplied by {factor:.4g}"
            yield odd[0]["at"], text, "that step may count otherwise"


@finds("not-the-mean", "messages.md#gradients-are-too-small-or-too-large-by-the-number-of-gpus")
def judge_scale(case):
    """Of mean losses the mean gradient is meant: all_reduce adds, DDP also divides by the ranks."""
    world = len(case.ranks)
    for steps in [] if case.loose else case.steps.values():
        looks = [ranks for _, ranks in steps if all("local" in s for s in ranks.values())]
        times = [factor_of_mean(ranks) for ranks in looks]
        for wrong in (world, 1 / world):
            odd = [one_of(r) for r, f in zip(looks, times) if f and abs(f / wrong - 1) < 0.01]
            if len(odd) > max(1, len(looks) / 2):
                at = [*(call["at"] for call in odd[0]["comms"] if call["passes"]), odd[0]["at"]][0]
                text = f"in {len(odd)} of {len(looks)} steps looked at the gradient is {wrong:g}"
                yield at, f"{text} times the mean of the ranks', of mean losses", "the rate fits"


def factor_of_mean(ranks):
    """What the gradient that all ranks apply is, in units of the mean of theirs, or None."""
    passes, ratios = one_of(ranks)["passes"], []
    factor = (passes[0]["factor"] or 0) * len(passes) if passes else 0
    alike = all(p["mean"] and p["factor"] == passes[0]["factor"] for p in passes)
    for pairs in zip(*(zip(s["local"], s["applied"]) for s in ranks.values())):
        own, applied = zip(*pairs)
        total, largest = sum(own), max(map(abs, own))
        if min(map(abs, own)) > 0.01 * largest and abs(total) > 0.05 * largest:
            ratios += [one * len(ranks) / total for one in applied]
    one_ratio = ratios and all(abs(r - ratios[0]) < 1e-3 * abs(ratios[0]) for r in ratios)
    known = alike and one_ratio and (len(passes) == 1 or abs(factor - 1) < 0.01)
    return ratios[0] * factor if known else None


@finds("clip-scaled", "amp.md#autocast-gradscaler-and-ddp", "18_clip_before_unscale")
def judge_clip(case):
    """The norm is that of the gradients times the scale: call scaler.unscale_(optimizer) before."""
    for clip in [c for c in case.ranks[0].all("clip") if c["factor"] > 1]:
        text = f"gradients are clipped while multiplied by {clip['factor']:g}"
        yield clip["at"], text, "the limit is, too" * (clip["limit"] >= clip["factor"])


@finds("zero-gradients", "unused_parameters.md", "21_sharded_too_late")
def judge_zeros(case):
    """Such a step changes nothing: a detached loss, zero_grad() too early, dead units."""
    for key, steps in case.steps.items():
        looks = [s["gradients"] for s in (one_of(r) for _, r in steps) if "gradients" in s]
        some = any(g > 0 or g < -1 for look in looks for g in look)
        if len(looks) > 2 and case.optimizers[key]["plain"] and not some:
            text = f"in all {len(looks)} steps looked at every gradient was 0 or missing"
            yield one_of(steps[0][1])["at"], text, "there is nothing to train yet"


@finds("same-random-numbers", "corrections.md#data-and-random-numbers", "07_same_augmentation")
def judge_random_numbers(case):
    """Ranks that draw the same numbers augment and drop out as one: seed with seed + rank."""
    for _, _, steps in case.joint():
        rows = [list(ranks.values()) for _, ranks in steps if "draws" in one_of(ranks)]
        # A loader draws a seed when it begins: such a step tells nothing.
        pairs = [pair for pair in zip(rows, rows[1:]) if not any(s["began"] for s in pair[1])]
        for name in ("torch", "cuda", "numpy", "random"):
            states = [[{s["draws"].get(name) for s in row} for row in pair] for pair in pairs]
            drew = [a for a, b in states if len(a) == len(b) == 1 and a != b]
            if len(drew) > min(4, len(pairs) / 2):  # until evaluations of other lengths draw, too
                first, of = one_of(steps[0][1]), f"{len(drew)} of {len(pairs)} steps"
                text = f"in {of} all ranks drew the same numbers ({name}), as for dropout or noise"
                yield first.get("forward", first["at"]), text, "that is meant"

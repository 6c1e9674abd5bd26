"""The training step: do the ranks train one model, as the method promises?"""

from .case import common, differing, finds, one_of, short


def cause(optimizer, ranks, numbers):
    """Why gradients of a step differ, as far as that was seen."""
    step = one_of(ranks)
    if not step["forwards"] and not any(p["sync"] for p in step["passes"]):
        return "not-through-ddp"
    if step["passes"] and not step["passes"][-1]["sync"]:
        return "last-pass-not-synced"
    if any(optimizer["ddps"][i] is None for i in numbers):
        return "not-in-ddp"
    return "gradients-differ"


def differences(case, wanted):
    """The first step of each optimizer in which gradients differ -> (severity, its step, seen)."""
    for key, steps in case.steps.items():
        optimizer = case.optimizers[key]
        looks = [(n, ranks, differing(ranks, "gradients")) for n, ranks in steps]
        looks = [look for look in looks if look[2]] if any(optimizer["ddps"]) else []
        if looks and cause(optimizer, *looks[0][1:]) == wanted:
            n, ranks, numbers = looks[0]
            of = f"{len(numbers)} of {len(optimizer['numels'])} parameters"
            seen = f"in step {n} the ranks had different gradients of {of}"
            if case.apart(key):
                yield "wrong", one_of(ranks), f"{seen}, and their weights differ to the end"
            elif not case.loose:
                yield (
                    "check",
                    one_of(ranks),
                    f"{seen}; fine if the ranks average their weights later",
                )


@finds("not-through-ddp", "docs/adapt.md#step-by-step", "10")
def judge_forward(case):
    """Only the forward pass of the DDP object prepares backward() to average gradients."""
    for severity, step, seen in differences(case, "not-through-ddp"):
        at = step["passes"][-1]["at"] if step["passes"] else step["at"]
        yield severity, at, f"{seen}; before this backward() the DDP that holds them was not called"


@finds("last-pass-not-synced", "docs/gradient_accumulation.md", "09")
def judge_no_sync(case):
    """What is added to .grad after the average stays on its rank: the last pass must sync."""
    for severity, step, seen in differences(case, "last-pass-not-synced"):
        sync = [number for number, p in enumerate(step["passes"], 1) if p["sync"]]
        which = f"{short(sync) or 'none'} of its {len(step['passes'])} backward passes"
        yield severity, step["at"], f"{seen}; {which} communicated, the last one not"


@finds("not-in-ddp", "docs/unused_parameters.md", "11")
def judge_lacking(case):
    """DDP averages the parameters that needed gradients when it wrapped the model."""
    for severity, step, seen in differences(case, "not-in-ddp"):
        yield severity, step["at"], f"{seen}; DDP ({case.wraps[0]['at']}) does not have these"


@finds("gradients-differ", "docs/corrections.md#gradients-and-weights")
def judge_gradients(case):
    """With DDP every rank makes the same step; after this one the ranks have different models."""
    for severity, step, seen in differences(case, "gradients-differ"):
        yield severity, step["at"], seen


@finds("rates-differ", "docs/corrections.md#testing-and-collectives", "04")
def judge_rates(case):
    """Equal gradients times unequal learning rates make unequal weights."""
    for key, _, steps in case.joint():
        uneven = [step for step in steps if differing_rates(step[1])]
        for n, ranks in uneven[:1]:
            rates = ", ".join(f"rank {r} {s['rates'][0]:.4g}" for r, s in ranks.items())
            reduces = {e["at"] for e in case.ranks[0].all("collective") if e["op"] == "reduce"}
            hint = f"; dist.reduce ({short(reduces)}) gives its result to one rank"
            text = f"from step {n} on the learning rates differ: {rates}{hint if reduces else ''}"
            yield "wrong" if case.drifts(key) else "check", one_of(ranks)["at"], text


def differing_rates(ranks):
    return len({str(step["rates"]) for step in ranks.values()}) > 1


@finds("weights-differ", "docs/corrections.md#gradients-and-weights")
def judge_weights(case):
    """The ranks train different models, and one of them is saved."""
    for key, _, steps in case.joint():
        gradients = any(differing(ranks, "gradients") for _, ranks in steps)
        rates = any(differing_rates(ranks) for _, ranks in steps)
        if case.drifts(key) and not gradients and not rates:
            n, numbers = next(look for look in case.weights(key) if look[1])
            place = f"before step {n}" if n else "after the last step"
            text = f"{place} the ranks have different weights in {len(numbers)} parameters"
            severity = "check" if case.loose else "wrong"
            yield severity, one_of(steps[-1][1])["at"], f"{text}, although the gradients agreed"


@finds("not-wrapped", "docs/adapt.md#the-difference")
def judge_alone(case):
    """Nothing averages the gradients of this model: each rank trains a model of its own."""
    for key, steps in case.steps.items():
        optimizer, at = case.optimizers[key], one_of(steps[0][1])["at"]
        sharded = any(optimizer["ddps"]) or not optimizer["plain"]
        if sharded or len(steps) < 2 or exchanges(case, key):
            continue
        if not any(differing(ranks, "gradients") for _, ranks in steps):
            if not case.wraps:
                yield "check", at, f"in {len(steps)} steps all ranks computed the same gradients"
        elif case.drifts(key):
            meant = "; right only if each rank is to have a model of its own"
            seen = f"the ranks' gradients differ, and in {len(steps)} steps nothing averages them"
            purpose = alone_on_purpose(case, key)
            text = f"{seen}: no DDP wraps this model{meant if purpose else ''}"
            yield "check" if purpose else "wrong", at, text


def alone_on_purpose(case, key):
    """Other rates, files of its own, a model beside DDP's, other weights and no divided data."""
    rates = any(differing_rates(ranks) for _, ranks in case.steps[key])
    files = [{e["path"] for e in r.all("save") if e["path"]} for r in case.ranks]
    own_files = all(files) and not set.intersection(*files)
    samplers = [e["sampler"]["type"] for e in case.ranks[0].all("epoch")]
    other_start = case.weights(key)[0][1] and "DistributedSampler" not in samplers
    return bool(case.wraps or rates or own_files or case.loose or other_start)


def exchanges(case, key):
    """Do the ranks send each other gradients, weights or activations?"""
    calls = [e for e in case.ranks[0].all("collective") if e["step"] or e["numel"] > 16]
    large = [e for e in calls if e["numel"] > 16 and e["op"] != "broadcast"]
    point = any("send" in e["op"] or "recv" in e["op"] for e in calls)
    return point or case.averages(key, until=1e9) or len(large) > len(case.steps[key]) / 2


@finds("never-joined", "docs/adapt.md#the-difference")
def judge_joined(case):
    """Without init_process_group and DDP each process trains by itself, as if there were one."""
    trained = [p.all("step") for p in case.others if p.all("step")]
    if len(trained) > 1 and not case.ranks:
        alike = len({str([(s["optimizer"], s["rates"]) for s in own]) for own in trained}) == 1
        text = f"{len(trained)} processes trained a model and none joined a process group"
        fine = "" if alike else "; right only if each is to train a model of its own"
        yield "wrong" if alike else "check", trained[0][0]["at"], text + fine


@finds(
    "unequal-counts",
    "docs/gradient_accumulation.md#loss-normalization-when-token-counts-differ",
    "07",
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
            fine = f"in {len(uneven)} of {len(rows)} passes they differ; fine if it is by little"
            yield "check", at, f"{means}; {fine}"
            return


@finds("accumulation-weight", "docs/gradient_accumulation.md#what-to-watch")
def judge_accumulation(case):
    """The loss has to be divided by the number of micro-batches that the step really has."""
    for _, _, steps in case.joint():
        own = [s for s in (one_of(ranks) for _, ranks in steps) if s["passes"] and not s["closure"]]
        own = own if len({p["at"] for s in own for p in s["passes"]}) == 1 else []  # one loop
        factors = {round(p["factor"], 6) if p["factor"] else None for s in own for p in s["passes"]}
        usual = common(len(s["passes"]) for s in own) if own else 0
        if usual < 2 or len(factors) > 1 or None in factors:
            continue
        factor = factors.pop()
        odd = [s for s in own if len(s["passes"]) < usual]
        if abs(factor * usual - 1) > 0.01:
            text = f"a step adds up {usual} losses, each times {factor:.4g}: {factor * usual:.3g}"
            yield (
                "check",
                own[0]["at"],
                f"{text} times the mean; fine if the rate fits that",
            )
        elif odd:
            text = f"step {odd[0]['n']} adds up {len(odd[0]['passes'])} losses, the others {usual}"
            yield "wrong", odd[0]["at"], f"{text}, but each loss is multiplied by {factor:.4g}"


@finds("clip-scaled", "docs/amp.md#autocast-gradscaler-and-ddp", "12")
def judge_clip(case):
    """The norm is that of the gradients times the scale: call scaler.unscale_(optimizer) before."""
    for clip in [c for c in case.ranks[0].all("clip") if c["factor"] > 1]:
        norm = f"; their norm was {clip['norm']:.4g}" if clip["norm"] is not None else ""
        yield (
            "wrong",
            clip["at"],
            f"gradients are clipped while multiplied by {clip['factor']:g}{norm}",
        )


@finds("clip-before-sum", "docs/gradient_accumulation.md#what-to-watch")
def judge_early_clip(case):
    """The norm to clip by is that of the whole step's gradient, averaged over the ranks."""
    for _, optimizer, steps in case.joint():
        sizes = {sum(optimizer["numels"]), max(optimizer["numels"])}  # of what is averaged
        for step in [one_of(ranks) for _, ranks in steps[:12]]:
            one_loop = len({p["at"] for p in step["passes"]}) == 1
            for i, call in enumerate(step["comms"]):
                first = next((k for k, c in enumerate(step["comms"]) if c["numel"] in sizes), -1)
                later = one_loop and not any(optimizer["ddps"]) and first > i
                early = one_loop and 0 < call["passes"] < len(step["passes"])
                if call["op"] == "clip" and (later or early):
                    then = "averaged over the ranks" if later else "added over all micro-batches"
                    yield "wrong", call["at"], f"gradients are clipped before they are {then}"
                    return


@finds("zero-gradients", "docs/unused_parameters.md")
def judge_zeros(case):
    """Such a step changes nothing: a detached loss, zero_grad() too early, dead units."""
    for key, steps in case.steps.items():
        looks = [s["gradients"] for s in (one_of(r) for _, r in steps) if "gradients" in s]
        if (
            len(looks) > 2
            and case.optimizers[key]["plain"]
            and not any(g > 0 or g < -1 for look in looks for g in look)
        ):
            text = f"in all {len(looks)} steps looked at every gradient was 0 or missing"
            yield (
                "check",
                one_of(steps[0][1])["at"],
                f"{text}; fine if there is nothing to train yet",
            )


@finds("unused-search", "docs/unused_parameters.md#what-find_unused_parameters-costs")
def judge_unused(case):
    """find_unused_parameters=True walks the graph in every step: leave it out if all are used."""
    for wrap in [w for w in case.wraps[:1] if w["find_unused"]]:
        steps = [
            r
            for key, _, own in case.joint()
            if wrap["name"] in case.optimizers[key]["ddps"]
            for _, r in own
        ]
        seen = [g for ranks in steps for s in ranks.values() for g in s.get("gradients", [])]
        if len(steps) > 4 and seen and -1 not in seen and 0 not in seen:
            text = f"it is on, and in {len(steps)} steps every parameter had a gradient"
            yield "wasteful", wrap["at"], text


@finds("same-random-numbers", "docs/corrections.md#data-and-random-numbers", "05")
def judge_random_numbers(case):
    """Ranks that draw the same numbers augment and drop out as one: seed with seed + rank."""
    for _, _, steps in case.joint():
        drawn = [[s["draws"] for s in r.values()] for _, r in steps if "draws" in one_of(r)]
        for name in ("torch", "cuda", "numpy", "random"):
            states = [{rank.get(name) for rank in row} for row in drawn]
            pairs = list(zip(states, states[1:]))
            drew = [a for a, b in pairs if len(a) == len(b) == 1 and a != b]
            if len(drew) > min(4, len(pairs) / 2):  # until evaluations of other lengths draw, too
                first = one_of(steps[0][1])
                text = (
                    f"between {len(drew) + 1} of {len(drawn)} steps all ranks drew the same numbers"
                )
                fine = "for dropout, augmentation or noise; fine if that is meant"
                yield "check", first.get("forward", first["at"]), f"{text} ({name}) {fine}"
                return


@finds("talks-per-step", "docs/checklist.md#review-your-script")
def judge_talk(case):
    """Each collective makes all ranks wait; a number that is only printed can come later."""
    for _, _, all_steps in case.joint():
        steps = [s for s in (one_of(ranks) for _, ranks in all_steps) if not s["closure"]]
        calls = [
            c for s in steps for c in s["comms"] if c["op"] in ("barrier", "all_reduce", "reduce")
        ]
        calls = [c for c in calls if not c["by_torch"]]  # Join, SyncBatchNorm
        for at, op in sorted({(c["at"], c["op"]) for c in calls if c["numel"] <= 4}):
            hits = [c for c in calls if (c["at"], c["op"]) == (at, op)]
            late = op == "barrier" or all(c["when"] != "in step" for c in hits)
            small = all(c["numel"] <= 4 for c in hits)
            if small and late and len(hits) >= max(6, 0.8 * (len(steps) - 1)):
                text = (
                    f"{op} is called {len(hits)} times in {len(steps)} steps, for at most 4 numbers"
                )
                yield "wasteful", at, f"{text}; needed only if each step depends on it"


@finds("batch-grows", "docs/batch_size_and_learning_rate.md", "06")
def judge_batch(case):
    """More ranks then mean fewer, larger steps: divide the batch, or adapt the rate."""
    many, one = facts(case), facts(case.alone) if case.alone else {}
    if one and many and many["samples"] > one["samples"] and many["rate"] == one["rate"]:
        text = f"a step takes {many['samples']} samples, on one rank {one['samples']}"
        yield (
            "check",
            many["at"],
            f"{text}, and the rate is {many['rate']} in both; fine if that is meant",
        )


def facts(case):
    """Of one optimizer, the first that DDP serves: samples per step of all ranks, rate, loss."""
    served = [key for key, one in case.optimizers.items() if any(one["ddps"])]
    joint = [key for key, _, _ in case.joint()] if case.ranks else []
    first = next(iter(joint or served or case.steps or case.optimizers), None)
    groups = [list(ranks.values()) for _, ranks in case.steps.get(first, [])]
    if len(case.ranks) == 1:
        groups = [[s] for s in case.ranks[0].all("step") if s["optimizer"] == first]
    if not groups:
        return {}
    samples, first = common(sum(s["samples"] for s in group) for group in groups), groups[0][0]
    losses = [s["passes"][0]["loss"] for s in groups[0] if s["passes"]]
    loss = sum(losses) / len(losses) if losses and None not in losses else None
    rates = [group[0]["rates"][0] for group in groups]
    rate = max(rates) if all(type(one) is float for one in rates) else rates[0]
    same = len(set(rates)) == 1
    where = {"steps": len(groups), "rate": rate, "same_rate": same, "at": first["at"]}
    return {"samples": samples, "first_loss": loss, **where}

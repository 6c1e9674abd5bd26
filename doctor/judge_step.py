"""The step: are losses and gradients added, averaged and applied as they are meant to be?"""

from statistics import mode

from .case import differing, finds, one_of
from .judge import averaged_in

CONTRASTIVE = "docs/questions.md#contrastive-losses-gradients-through-all_gather"
COUNTS = "docs/gradient_accumulation.md#loss-normalization-when-token-counts-differ"


@finds("unequal-counts", COUNTS, "07")
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


@finds("accumulation-weight", "docs/gradient_accumulation.md#what-to-watch")
def judge_accumulation(case):
    """DDP averages over ranks; the loss is divided by the micro-batches that the step has."""
    for _, _, steps in case.joint():
        own = [s for s in (one_of(ranks) for _, ranks in steps) if s["passes"] and not s["closure"]]
        passes = [p for s in own for p in s["passes"]]
        factors = {round(p["factor"], 6) if p["factor"] and p["mean"] else 0 for p in passes}
        if len(factors) != 1 or 0 in factors or len({p["at"] for p in passes}) != 1:  # one loop
            continue
        factor, usual = factors.pop(), mode(len(s["passes"]) for s in own)
        odd = [s for s in own if len(s["passes"]) < usual]
        if usual > 1 and abs(factor * usual - 1) > 0.01:
            text = f"a step adds up {usual} losses, each times {factor:.4g}: {factor * usual:.3g}"
            yield "check", own[0]["at"], f"{text} times the mean; fine if the rate fits that"
        elif odd:
            text = f"step {odd[0]['n']} adds up {len(odd[0]['passes'])} losses, the others {usual}"
            fine = "fine if that step may count less"
            yield "check", odd[0]["at"], f"{text}, and each is multiplied by {factor:.4g}; {fine}"


SCALED = "docs/messages.md#gradients-are-too-small-or-too-large-by-the-number-of-gpus"


@finds("not-the-mean", SCALED)
def judge_scale(case):
    """Of mean losses the mean gradient is meant: all_reduce adds, DDP also divides by the ranks."""
    world = len(case.ranks)
    for steps in [] if case.loose else case.steps.values():
        looks = [ranks for _, ranks in steps if all("local" in s for s in ranks.values())]
        times = [factor_of_mean(ranks) for ranks in looks]
        for wrong in (world, 1 / world):
            odd = [one_of(r) for r, f in zip(looks, times) if f and abs(f / wrong - 1) < 0.01]
            if len(odd) > max(1, len(looks) / 2):
                calls = [c["at"] for c in odd[0]["comms"] if c["passes"] and c["op"] != "clip"]
                text = (
                    f"in {len(odd)} of {len(looks)} steps looked at the gradient is {wrong:g} times"
                )
                seen = f"{text} the mean of the ranks', each of a mean loss; fine if the rate fits"
                yield "check", [*calls, odd[0]["at"]][0], seen


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


@finds("never-zeroed", "docs/gradient_accumulation.md#what-to-watch")
def judge_zeroing(case):
    """backward() adds to .grad: without zero_grad() each step takes all earlier gradients again."""
    for steps in case.steps.values():
        looks = [s for s in (one_of(ranks) for _, ranks in steps) if s.get("starts")]
        if len(looks) > 2 and all(map(adds_up, looks)):
            text = f"in {len(looks)} steps looked at this optimizer's gradients were never zeroed"
            yield "check", looks[0]["at"], f"{text} before backward(); fine if they are to add up"


def adds_up(step):
    """Had parameters that get new gradients old ones before each backward pass of the step?"""
    pairs = enumerate(zip(step["starts"][0], step["applied"]))
    new = [i for i, (start, applied) in pairs if start != applied]
    return all(any(numbers[i] for i in new) for numbers in step["starts"])


@finds("clip-scaled", "docs/amp.md#autocast-gradscaler-and-ddp", "12")
def judge_clip(case):
    """The norm is that of the gradients times the scale: call scaler.unscale_(optimizer) before."""
    for clip in [c for c in case.ranks[0].all("clip") if c["factor"] > 1]:
        meant = "; fine if the limit is, too" if clip["limit"] >= clip["factor"] else ""
        text = f"gradients are clipped while multiplied by {clip['factor']:g}{meant}"
        yield "check" if meant else "wrong", clip["at"], text


@finds("clip-before-sum", "docs/gradient_accumulation.md#what-to-watch")
def judge_early_clip(case):
    """The norm to clip by is that of the whole step's gradient, averaged over the ranks."""
    for _, optimizer, steps in case.joint():
        sizes = {sum(optimizer["numels"]), max(optimizer["numels"])}  # of what is averaged
        for step in [one_of(ranks) for _, ranks in steps[:12]]:
            one_loop = len({p["at"] for p in step["passes"]}) == 1
            for i, call in enumerate(step["comms"] if one_loop else ()):
                first = next((k for k, c in enumerate(step["comms"]) if c["numel"] in sizes), -1)
                later = not any(optimizer["ddps"]) and first > i
                if call["op"] == "clip" and (later or 0 < call["passes"] < len(step["passes"])):
                    then = "averaged over the ranks" if later else "added over all micro-batches"
                    text = f"gradients are clipped before they are {then}"
                    yield "check", call["at"], f"{text}; fine if each part is to be clipped alone"


@finds("averaged-twice", "docs/corrections.md#gradients-and-weights")
def judge_twice(case):
    """backward() returns when DDP has averaged: a second average costs time and changes nothing."""
    for _, optimizer, steps in case.joint():
        looks = [ranks for _, ranks in steps if all("local" in s for s in ranks.values())]
        agree = [ranks for ranks in looks if not differing(ranks, "local")]
        places = list(filter(None, (averaged_in(one_of(r), optimizer) for r in agree)))
        if any(optimizer["ddps"]) and len(places) > 2 and not case.has("not-the-mean"):
            seen = f"in {len(places)} of {len(looks)} steps looked at"
            yield "wasteful", places[0], f"{seen} gradients that DDP had averaged are reduced again"


@finds("zero-gradients", "docs/unused_parameters.md")
def judge_zeros(case):
    """Such a step changes nothing: a detached loss, zero_grad() too early, dead units."""
    for key, steps in case.steps.items():
        looks = [s["gradients"] for s in (one_of(r) for _, r in steps) if "gradients" in s]
        some = any(g > 0 or g < -1 for look in looks for g in look)
        if len(looks) > 2 and case.optimizers[key]["plain"] and not some:
            text = f"in all {len(looks)} steps looked at every gradient was 0 or missing"
            fine = "fine if there is nothing to train yet"
            yield "check", one_of(steps[0][1])["at"], f"{text}; {fine}"


@finds("not-optimized", "docs/adapt.md#step-by-step")
def judge_orphans(case):
    """An optimizer steps the parameters that it was made with, not those that replace them."""
    for event in case.ranks[0].all("orphans")[-1:]:
        if event["count"] and not case.has("zero-gradients"):
            text = (
                f"{event['count']} of the {event['of']} parameters that DDP averages got gradients"
            )
            fine = "and no optimizer that made a step has them; fine if they are not to be trained"
            yield "check", event["at"], f"{text}, {fine}"


@finds("unused-search", "docs/unused_parameters.md#what-find_unused_parameters-costs")
def judge_unused(case):
    """find_unused_parameters=True walks the graph in every step: leave it out if all are used."""
    for wrap in [w for w in case.wraps[:1] if w["find_unused"]]:
        own = [(steps, case.optimizers[key]["ddps"]) for key, _, steps in case.joint()]
        steps = [ranks for steps, ddps in own if wrap["name"] in ddps for _, ranks in steps]
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
                text = f"in {len(drew)} of {len(pairs)} steps all ranks drew the same numbers"
                fine = "for dropout, augmentation or noise; fine if that is meant"
                yield "check", first.get("forward", first["at"]), f"{text} ({name}) {fine}"


@finds("each-pass-synced", "docs/gradient_accumulation.md")
def judge_syncs(case):
    """Of the passes of a step only the last has to average: no_sync() around the others."""
    for _, optimizer, steps in case.joint():
        rows = [one_of(ranks) for _, ranks in steps if any(optimizer["ddps"])]
        rows = [s for s in rows if 1 < len(s["passes"]) <= s["forwards"] and not s["closure"]]
        if len(rows) > max(2, len(steps) / 2) and all(p["sync"] for s in rows for p in s["passes"]):
            text = f"in each of {len(rows)} steps DDP averages {len(rows[0]['passes'])} times"
            yield "wasteful", rows[0]["passes"][0]["at"], text


@finds("gathered-without-history", CONTRASTIVE)
def judge_gathered(case):
    """No gradient flows through all_gather: put this rank's own tensor back in its place."""
    for event in case.ranks[0].all("gathered"):
        text = f"all_gather got a tensor {event['shape']} of the forward pass; what it returns has"
        yield "check", event["at"], f"{text} no history; fine if only a number is made of it"


@finds("collectives-per-step", "docs/checklist.md#review-your-script")
def judge_talk(case):
    """Each collective makes all ranks wait; a number that is only printed can come later."""
    for _, _, all_steps in case.joint():
        steps = [s for s in (one_of(ranks) for _, ranks in all_steps) if not s["closure"]]
        calls = [c for s in steps for c in s["comms"] if not c["by_torch"]]  # Join, SyncBatchNorm
        calls = [c for c in calls if c["op"] in ("barrier", "all_reduce", "reduce")]
        for at, op in sorted({(c["at"], c["op"]) for c in calls}):
            hits = [c for c in calls if (c["at"], c["op"]) == (at, op)]
            begun = [c["begun"] or c["count"] for c in hits if not c["passes"]]
            within = op != "barrier" and any(begun)  # it may be part of the loss
            sizes = {c["numel"] for c in hits}
            small = max(sizes) <= 4 and len(sizes) == 1  # not a loop over all parameters
            if small and not within and len(hits) >= max(6, 0.8 * (len(steps) - 1)):
                text = f"{op} is called {len(hits)} times in {len(steps)} steps, for few numbers"
                yield "wasteful", at, f"{text}; needed only if each step depends on it"

"""The step: are losses and gradients added, averaged and applied as they are meant to be?"""

from statistics import mode

from .case import finds, one_of

COUNTS = "docs/gradient_accumulation.md#loss-normalization-when-token-counts-differ"


@finds("unequal-counts", COUNTS, "loss_of_unequal_counts")
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
        odd = [s for s in own if len(s["passes"]) != usual]  # also: a rest that is carried over
        if usual > 1 and abs(factor * usual - 1) > 0.01:
            text = f"a step adds up {usual} losses, each times {factor:.4g}: {factor * usual:.3g}"
            yield "check", own[0]["at"], f"{text} times the mean; fine if the rate fits that"
        elif odd:
            text = f"step {odd[0]['n']} adds up {len(odd[0]['passes'])} losses, the others {usual}"
            fine = "fine if that step may count otherwise"
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
                at = [*(call["at"] for call in odd[0]["comms"] if call["passes"]), odd[0]["at"]][0]
                text = f"in {len(odd)} of {len(looks)} steps looked at the gradient is {wrong:g}"
                fine = "the mean of the ranks', each of a mean loss; fine if the rate fits"
                yield "check", at, f"{text} times {fine}"


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


@finds("clip-scaled", "docs/amp.md#autocast-gradscaler-and-ddp", "clip_before_unscale")
def judge_clip(case):
    """The norm is that of the gradients times the scale: call scaler.unscale_(optimizer) before."""
    for clip in [c for c in case.ranks[0].all("clip") if c["factor"] > 1]:
        meant = "; fine if the limit is, too" if clip["limit"] >= clip["factor"] else ""
        text = f"gradients are clipped while multiplied by {clip['factor']:g}{meant}"
        yield "check" if meant else "wrong", clip["at"], text


@finds("zero-gradients", "docs/unused_parameters.md", "sharded_too_late")
def judge_zeros(case):
    """Such a step changes nothing: a detached loss, zero_grad() too early, dead units."""
    for key, steps in case.steps.items():
        looks = [s["gradients"] for s in (one_of(r) for _, r in steps) if "gradients" in s]
        some = any(g > 0 or g < -1 for look in looks for g in look)
        if len(looks) > 2 and case.optimizers[key]["plain"] and not some:
            text = f"in all {len(looks)} steps looked at every gradient was 0 or missing"
            fine = "fine if there is nothing to train yet"
            yield "check", one_of(steps[0][1])["at"], f"{text}; {fine}"


@finds("same-random-numbers", "docs/corrections.md#data-and-random-numbers", "same_augmentation")
def judge_random_numbers(case):
    """Ranks that draw the same numbers augment and drop out as one: seed with seed + rank."""
    for _, _, steps in case.joint():
        known = [list(ranks.values()) for _, ranks in steps if "draws" in one_of(ranks)]
        drawn = [[s["draws"] for s in row] for row in known]
        began = [any(s["began"] for s in row) for row in known]
        for name in ("torch", "cuda", "numpy", "random"):
            states = [{rank.get(name) for rank in row} for row in drawn]
            # A loader draws a seed when it begins: such a step tells nothing.
            pairs = [pair for pair, own in zip(zip(states, states[1:]), began[1:]) if not own]
            drew = [a for a, b in pairs if len(a) == len(b) == 1 and a != b]
            if len(drew) > min(4, len(pairs) / 2):  # until evaluations of other lengths draw, too
                first = one_of(steps[0][1])
                text = f"in {len(drew)} of {len(pairs)} steps all ranks drew the same numbers"
                fine = "for dropout, augmentation or noise; fine if that is meant"
                yield "check", first.get("forward", first["at"]), f"{text} ({name}) {fine}"

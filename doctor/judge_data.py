"""Data and evaluation: which samples did which rank see, and were results brought together?"""

from collections import Counter

from .case import finds, one_of, short


def together(case, trained):
    """[(rank 0's epoch, rank 1's, ...), ...]: the n-th whole epoch of a loader on every rank."""
    epochs = [[e for e in r.epochs(trained) if e["indices"]] for r in case.ranks]
    for at in dict.fromkeys(e["at"] for e in epochs[0]) if len(epochs) > 1 else ():
        for group in zip(*([e for e in own if e["at"] == at] for own in epochs)):
            if len({e["digest"] for e in group}) == 1:  # otherwise each rank has its own data set
                yield group


def divided(epochs):
    return all(e["sampler"]["type"] == "DistributedSampler" for e in epochs)


@finds("same-order", "docs/corrections.md#data-and-random-numbers", "01")
def judge_order(case):
    """Without sampler.set_epoch(epoch) every epoch repeats the batches of the first."""
    own = [e for e in case.ranks[0].epochs(True) if divided([e]) and e["sampler"]["shuffle"]]
    for loader in {e["loader"] for e in own}:
        epochs = [e for e in own if e["loader"] == loader]
        numbers = {e["sampler"]["epoch"] for e in epochs}
        if len(epochs) > 1 and len(numbers) == 1 and len({e["order"] for e in epochs}) == 1:
            text = f"rank 0 took the samples of {len(epochs)} epochs in the same order"
            number = epochs[0]["sampler"]["epoch"]
            seen = f"{text} ({short(epochs[0]['indices'])}): the sampler's epoch stayed {number}"
            yield "wrong", epochs[0]["at"], seen


@finds("same-data", "docs/adapt.md#step-by-step")
def judge_same_data(case):
    """Each rank should train on its own part of an epoch: otherwise more ranks save no time."""
    for epochs in together(case, True):
        sets = [set(e["indices"]) for e in epochs]
        union = set.union(*sets)
        compared = case.wraps and not any(e["synced"] for e in epochs)  # a model beside DDP's
        if compared or min(map(len, sets)) < 0.9 * len(union) or len(union) < 2 * len(sets):
            continue
        drawn = any(
            e["sampler"]["replacement"] or "Weighted" in e["sampler"]["type"] for e in epochs
        )
        sure = all(e["stock"] and e["synced"] for e in epochs) and not drawn
        order = "in the same order" if len({e["order"] for e in epochs}) == 1 else "in other orders"
        seen = f"in an epoch every rank trained on the same {len(union)} samples, {order}"
        sampler = epochs[0]["sampler"]["type"]
        yield "wrong" if sure else "check", epochs[0]["at"], f"{seen} (the sampler is a {sampler})"
        return
    for _, _, steps in case.joint():
        rows = [
            [s["inputs"] for s in ranks.values()] for _, ranks in steps if "inputs" in one_of(ranks)
        ]
        if len(rows) > 2 and all(row[0] != [-1] and row == [row[0]] * len(row) for row in rows):
            seen = f"in all {len(rows)} steps looked at every rank gave DDP the same inputs"
            yield "check", one_of(steps[0][1])["forward"], f"{seen}; fine if the data are made up"
            return


@finds("split-differs", "docs/checklist.md#review-your-script")
def judge_split(case):
    """DistributedSampler divides positions: all ranks have to divide the same data set."""
    for epochs in [*together(case, True), *together(case, False)]:
        whole = all(e["sampler"]["num_replicas"] == len(case.ranks) for e in epochs)
        if divided(epochs) and whole and len({str(e["chain"]) for e in epochs}) > 1:
            union, total = (
                set().union(*(e["indices"] for e in epochs)),
                sum(e["count"] for e in epochs),
            )
            text = (
                "each rank has another subset of the data (a random split?), and DistributedSampler"
            )
            seen = f"{text} divides that again: {total} samples are {len(union)} different ones"
            yield "wrong", epochs[0]["at"], seen
            return


@finds("samples-missing", "docs/uneven_inputs.md")
def judge_missing(case):
    """Together the ranks should see each sample of an epoch once."""
    for epochs in [] if case.has("same-data", "split-differs") else together(case, True):
        first, counts = epochs[0], Counter(i for e in epochs for i in e["indices"])
        others = [e for e in case.ranks[0].all("epoch") if e["loader"] != first["loader"]]
        elsewhere = {i for e in others if e["data"] == first["data"] for i in e["indices"]}
        one_set = len({str(e["chain"]) for e in epochs}) == 1
        sizes = [e["positions"] or 0 for e in epochs]
        slack = len(epochs) * (max(e["count"] / e["delivered"] for e in epochs) + 1)  # drop_last
        twice = sum(number > 1 for number in counts.values())
        missing = (sizes[0] if one_set else sum(sizes)) - len(elsewhere | set(counts))
        if not first["synced"] or any(e["sampler"]["replacement"] for e in epochs):
            continue
        if twice > slack:
            text = f"in an epoch {twice} of {len(counts)} samples were seen more than once"
            yield "check", first["at"], f"{text}; fine if each rank draws its samples by itself"
            return
        if missing > slack:
            text = f"in an epoch {missing} samples were seen by no rank, {len(counts)} by one"
            yield "check", first["at"], f"{text}; fine if only a part is meant to be used"
            return


@finds("unequal-epochs", "docs/uneven_inputs.md")
def judge_lengths(case):
    """A rank with one more batch waits in it, or pairs it with the next epoch of the others."""
    for epochs in [] if case.loose else together(case, True):
        batches = [e["delivered"] for e in epochs]
        if len(set(batches)) > 1 and all(e["synced"] for e in epochs):
            text = f"an epoch has unequal numbers of batches ({case.per_rank(batches)})"
            yield "check", epochs[0]["at"], f"{text}; fine if the numbers of steps are made equal"
            return


@finds("same-worker-seeds", "docs/messages.md#the-same-random-numbers-in-every-dataloader-worker")
def judge_workers(case):
    """A rank's generator seeds its workers: with one seed on all ranks, they draw alike."""
    for epochs in together(case, True):
        seeds, names = {e["seed"] for e in epochs}, epochs[0]["random"]
        same = "have the same seeds" if len(seeds) == 1 and epochs[0]["seed"] and names else None
        same = "are seeded by worker_init_fn with their number" if epochs[0]["alike"] else same
        if same:
            text = f"workers of different ranks {same}, and the data set uses {short(names)}"
            yield "check", epochs[0]["at"], f"{text}; fine if nothing is drawn there"
            return


def evaluations(case):
    return [epochs for epochs in together(case, False) if not any(e["grad"] for e in epochs)]


def each_once(case):
    """Were the samples of every evaluation counted on all ranks, and each of them once?"""
    groups = evaluations(case)
    counts = [Counter(i for e in epochs for i in e["indices"]) for epochs in groups]
    whole = len(groups) == max(
        len([e for e in r.epochs(False) if not e["grad"]]) for r in case.ranks
    )
    alike = [len({e["order"] for e in epochs}) == 1 for epochs in groups]
    once = all(c.total() == len(c) or same for c, same in zip(counts, alike))
    return bool(groups) and whole and once


@finds("padded-evaluation", "docs/uneven_inputs.md", "02")
def judge_padding(case):
    """Samplers repeat samples until all ranks have equally many (Accelerate's: whole batches)."""
    for epochs in evaluations(case):
        counts = Counter(i for e in epochs for i in e["indices"])
        extra = counts.total() - len(counts)
        same_split = len({str(e["chain"]) for e in epochs}) == 1
        parts = all(len(set(e["indices"])) < len(counts) for e in epochs)
        batch = max(-(-e["count"] // e["delivered"]) for e in epochs) if parts else 1
        padded = 0 < extra < len(epochs) * (1 if divided(epochs) else batch)
        if padded and same_split and any(e["added"] for e in epochs):
            gathered = any("gather" in op for e in epochs for op in e["added"])
            fine = "; fine if what is double is cut off after gathering" if gathered else ""
            twice = short(sorted(i for i, n in counts.items() if n > 1))
            text = f"{counts.total()} samples were evaluated, but there are {len(counts)}"
            yield (
                "check" if gathered else "wrong",
                epochs[0]["at"],
                f"{text}: numbers counted twice: {twice}{fine}",
            )
            return


@finds("part-of-evaluation", "docs/corrections.md#testing-and-collectives")
def judge_parts(case):
    """Each rank's figure is that of its part: add up the counts with all_reduce."""
    for epochs in evaluations(case):
        union = set().union(*(e["indices"] for e in epochs))
        parts = max(len(set(e["indices"])) for e in epochs) < 0.9 * len(union)
        kept = all(e["files"] for e in epochs)  # each rank's results are kept apart
        if parts and not kept and not any(e["added"] for e in epochs):
            printed = [at for e in epochs for at in e["prints"]]
            then = f"printed something ({printed[0]})" if printed else "went on"
            text = (
                f"the ranks evaluated parts ({case.per_rank(e['count'] for e in epochs)} samples)"
            )
            seen = f"{text} and {then}; no collective added the results"
            fine = "" if printed else "; fine if they are used one by one"
            yield "wrong" if printed else "check", epochs[0]["at"], seen + fine
            return


@finds("everyone-evaluates", "docs/corrections.md#testing-and-collectives")
def judge_same_evaluation(case):
    """Each rank could evaluate a part, and the counts be added."""
    for epochs in evaluations(case):
        if len({e["order"] for e in epochs}) == 1 and epochs[0]["delivered"] > 1:
            text = f"all {len(epochs)} ranks evaluated the same {epochs[0]['count']} samples"
            yield "wasteful", epochs[0]["at"], text
            return


@finds("evaluated-in-train-mode", "docs/glossary.md")
def judge_mode(case):
    """In train mode BatchNorm uses the batch and dropout drops: call model.eval() before."""
    norms = sorted({norm for wrap in case.wraps for norm in wrap["norms"]})
    for event in case.ranks[0].all("evaluation", "epoch") if norms else ():
        if event.get("training") or event.get("train_mode"):
            text = f"data are evaluated in train mode, and the model has {short(norms)}"
            yield "check", event["at"], f"{text}; fine if that is wanted (MC dropout, statistics)"
            return


@finds("buffers-differ", "docs/corrections.md#gradients-and-weights", "13")
def judge_buffers(case):
    """Each rank evaluates a model of its own, not the one that is saved: broadcast before."""
    events = [[e for e in r.all("evaluation") if e["names"]] for r in case.ranks]
    for group in zip(*events) if len(events) > 1 else ():
        columns = zip(group[0]["names"], zip(*(e["buffers"] for e in group)))
        differ = [name for name, column in columns if len(set(column)) > 1]
        if differ and len({str(e["names"]) for e in group}) == 1:
            adds = all(e.get("added") for e in group)
            text = "their results came together" if adds else "fine if one rank's result is used"
            seen = f"the ranks evaluated with different buffers ({short(differ, 2)}); {text}"
            yield "wrong" if adds else "check", group[0]["at"], seen
            return

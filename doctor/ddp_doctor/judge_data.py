"""Data and evaluation: which samples did which rank see, and were results brought together?"""

from collections import Counter

from .case import differing, finds, one_of, short


def together(case, trained, one_set=True):
    """[(rank 0's epoch, rank 1's, ...), ...]: the n-th whole epoch of a loader on every rank."""
    epochs = [[e for e in r.epochs(trained) if e["indices"]] for r in case.ranks]
    if trained and sliced(case):
        return
    for at in dict.fromkeys(e["at"] for e in epochs[0]):
        for group in case.paired([[e for e in own if e["at"] == at] for own in epochs]):
            if len({e["data"] for e in group}) == 1 or not one_set:
                yield group


def sliced(case):
    """Do ranks read the same batches, and does each compute on a part of its own?"""
    steps = [list(ranks.values()) for _, _, own in case.joint() for _, ranks in own]
    steps = [own for own in steps if all(0 < s["samples"] < s["read"] for s in own)]
    return any(len({str(s.get("inputs")) for s in own}) == len(own) > 1 for own in steps)


def divided(epochs):
    return all(e["sampler"]["type"] == "DistributedSampler" for e in epochs)


def counted(epochs):
    """{number of a sample: how many ranks took it}"""
    return Counter(i for e in epochs for i in e["indices"])


def fed(case):
    """Where no loader tells: per step, each rank's samples as DDP got them, or its losses."""
    known = any(e["indices"] for rank in case.ranks for e in rank.epochs(True))
    sharded = [own for key, own in case.steps.items() if case.optimizers[key]["by_rows"]]
    for steps in [] if known else [*(own for _, _, own in case.joint()), *sharded]:
        ranks = [list(own.values()) for _, own in steps]
        for what in ("inputs", "loss"):
            rows = [[s.get(what) or [p.get(what) for p in s["passes"]] for s in r] for r in ranks]
            rows = [row for row in rows if all(own and all(own) for own in row)]
            if len(rows) > 2:
                return one_of(steps[0][1])["at"], rows
    return "?", []


@finds("same-order", "corrections.md#data-and-random-numbers", "01_same_order")
def judge_order(case):
    """Without sampler.set_epoch(epoch) every epoch repeats the batches of the first."""
    own = [e for e in case.ranks[0].epochs(True) if divided([e]) and e["sampler"]["shuffle"]]
    for loader in {e["loader"] for e in own}:
        epochs = [e for e in own if e["loader"] == loader]
        numbers = {e["sampler"]["epoch"] for e in epochs}
        if len(epochs) > 1 and len(numbers) == 1 and len({e["order"] for e in epochs}) == 1:
            text = f"rank 0 took the samples of {len(epochs)} epochs in the same order"
            yield epochs[0]["at"], f"{text}: the sampler's epoch stayed {numbers.pop()}", ""
    at, rows = fed(case)
    first = [row[0] for row in rows]  # of rank 0
    period = next((n for n in range(3, len(first) // 2 + 1) if first[n] == first[0]), 0)
    whole = first and first[0] == first[-1] == first[1]  # all the data in each step
    if period and not whole and all(a == b for a, b in zip(first, first[period:])):
        text = f"rank 0 gave DDP the same batches again, in the same order, after {period} steps"
        yield at, text, "the order of the data is meant to be fixed"


@finds("same-data", "adapt.md#step-by-step")
def judge_same_data(case):
    """Each rank should train on its own part of an epoch: otherwise more ranks save no time."""
    for epochs in together(case, True):
        sets = [set(e["indices"]) for e in epochs]
        union = set.union(*sets)
        if min(map(len, sets)) < 0.9 * len(union) or len(union) < 2 * len(sets):
            continue
        same = len({e["order"] for e in epochs}) == 1
        sure = same and all(e["stock"] and e["synced"] for e in epochs)
        sampler = epochs[0]["sampler"]["type"]
        seen = f"in an epoch every rank trained on the same {len(union)} samples ({sampler})"
        yield epochs[0]["at"], seen, "" if sure else "each rank is to pass over all of them"
    at, rows = fed(case)
    if rows and all(own == row[0] for row in rows for own in row):
        text = f"in all {len(rows)} steps looked at every rank had the same inputs or loss"
        yield at, text, "the data are made up"


@finds("split-differs", "checklist.md#review-your-script")
def judge_split(case):
    """DistributedSampler divides positions: all ranks have to divide one order of one data set."""
    for epochs in [*together(case, True, False), *together(case, False, False)]:
        first, at = epochs[0]["sampler"], epochs[0]["at"]
        if not divided(epochs) or first["num_replicas"] != len(case.ranks):
            continue
        for name in [name for name in first if name != "rank"]:
            values = [e["sampler"][name] for e in epochs]
            if len(set(map(str, values))) > 1:
                yield at, f"the ranks' samplers differ in {name}: {case.per_rank(values)}", ""
        subsets = len({str(e["chain"]) for e in epochs}) > 1
        if subsets or len({e["data"] for e in epochs}) > 1:
            text = "each rank has another subset or order of the data, and its sampler divides that"
            yield at, text, "" if subsets else "each rank makes up its data"


@finds("samples-missing", "uneven_inputs.md")
def judge_missing(case):
    """Together the ranks should see each sample of an epoch once."""
    for epochs in [] if case.has("same-data", "split-differs") else together(case, True):
        first, counts = epochs[0], counted(epochs)
        drawn = any(e["count"] > 1.1 * len(set(e["indices"])) for e in epochs)  # with replacement
        if drawn or not first["synced"]:
            continue
        replicas = first["sampler"]["num_replicas"]
        averaged = max((name.count(",") + 1 for name in case.groups), default=replicas)
        if divided(epochs) and replicas > averaged:
            text = f"the sampler divides the data among {replicas} ranks, and {averaged} average"
            yield first["at"], f"{text} their gradients", "others have the rest"
        twice = sum(n > 1 for n in counts.values())
        if twice > len(epochs) * (max(e["count"] / e["delivered"] for e in epochs) + 1):
            text = f"in an epoch {twice} of {len(counts)} samples were seen more than once"
            yield first["at"], text, "each rank draws its samples by itself"


@finds("same-worker-seeds", "messages.md#the-same-random-numbers-in-every-dataloader-worker")
def judge_workers(case):
    """A rank's generator seeds its workers: with one seed on all ranks, they draw alike."""
    others = [worker for rank in case.ranks[1:] for worker in rank.all("worker")]
    for worker in case.ranks[0].all("worker"):
        same = [other for other in others if worker["drew"].items() & other["drew"].items()]
        if same:
            drew = f"one of another rank draw the same numbers ({short(worker['drew'])})"
            yield (
                worker["at"],
                f"worker {worker['number']} of rank 0's loader and {drew}",
                "that is meant",
            )


def until_training(case, epochs, *kinds):
    """What each rank did from the beginning of an evaluation until training went on."""
    rows = zip(case.ranks, epochs)
    return [[e for e in rank.all(*kinds) if e["phase"] == own["phase"]] for rank, own in rows]


def evaluations(case):
    return [epochs for epochs in together(case, False) if not any(e["grad"] for e in epochs)]


@finds("padded-evaluation", "uneven_inputs.md", "02_padded_accuracy")
def judge_padding(case):
    """Samplers repeat samples until all ranks have equally many (Accelerate's: whole batches)."""
    for epochs in evaluations(case):
        counts = counted(epochs)
        done = until_training(case, epochs, "added", "gathered", "trimmed")
        results = {e["kind"] for own in done for e in own}
        extra = counts.total() - len(counts)
        same_split = len({str(e["chain"]) for e in epochs}) == 1
        parts = all(len(set(e["indices"])) < len(counts) for e in epochs)
        batch = max(-(-e["count"] // e["delivered"]) for e in epochs)
        padded = parts and same_split and 0 < extra < len(epochs) * batch
        if padded and results and "trimmed" not in results:
            twice = sorted(i for i, n in counts.items() if n > 1)
            which = f"samples {short(twice)} were" if len(twice) > 1 else f"sample {twice[0]} was"
            text = f"{counts.total()} samples were evaluated, but there are {len(counts)}: {which}"
            fine = "what is double is cut off after gathering" if "gathered" in results else ""
            yield epochs[0]["at"], f"{text} evaluated twice", fine


@finds("part-of-evaluation", "corrections.md#testing-and-collectives")
def judge_parts(case):
    """Each rank's figure is that of its part: add up the counts with all_reduce."""
    for epochs in evaluations(case):
        parts = max(len(set(e["indices"])) for e in epochs) < 0.9 * len(counted(epochs))
        kept = all(until_training(case, epochs, "sent"))  # each rank's results are kept apart
        added = any(until_training(case, epochs, "added", "gathered"))
        if parts and not kept and not added:
            each = case.per_rank(e["count"] for e in epochs)
            seen = f"the ranks evaluated parts ({each} samples), and nothing was added up"
            yield epochs[0]["at"], seen, "they are used one by one, or added later"
    others = {e["at"] for rank in case.ranks[1:] for e in rank.all("epoch")}
    own = [e for e in case.ranks[0].epochs(False) if not e["grad"] and divided([e])]
    for e in [e for e in own if e["at"] not in others and e["sampler"]["num_replicas"] > 1]:
        text = f"only rank 0 evaluates, and its sampler gives it a part, {e['count']} samples"
        yield e["at"], text, "a part is enough"


@finds("mean-of-means", "questions.md#metrics-and-losses")
def judge_means(case):
    """A rank with fewer samples gets the same weight: add right answers and counts, then divide."""
    for epochs in evaluations(case):
        counts, reduced = [e["count"] for e in epochs], until_training(case, epochs, "reduced")
        rows = [[e["value"] for e in own] for own in reduced]
        counted = any(count in row for count, row in zip(counts, rows))
        unequal = len(set(counts)) > 1 and len(set(map(len, rows))) == 1 and not counted
        for means in zip(*rows) if unequal else ():
            for scale in (1, 100):  # is it so many of the rank's samples, in percent perhaps?
                hits = [mean * count / scale for mean, count in zip(means, counts)]
                if any(mean % 1 for mean in means) and all(abs(n - round(n)) < 0.01 for n in hits):
                    each = case.per_rank(f"{m:.4} of {c} samples" for m, c in zip(means, counts))
                    text = f"means of unequal counts were added up ({each}), over all it is"
                    text += f" {scale * sum(hits) / sum(counts):.4}"
                    yield epochs[0]["at"], text, "they were weighed by the counts"


def evaluated(rank):
    """The models whose results were added, each with the orders of the samples that it got."""
    sums = {e["phase"]: e["reading"] for e in rank.all("evaluation")}
    for event in [e for e in rank.all("evaluated") if e["phase"] in sums]:
        epochs = [e for e in rank.all("epoch") if e["phase"] == event["phase"]]
        orders = [e["order"] for e in epochs if not e["backwards"]]
        yield {**event, "orders": orders, "reading": sums[event["phase"]]}


@finds("buffers-differ", "corrections.md#gradients-and-weights", "16_batchnorm_of_rank")
def judge_buffers(case):
    """Each rank evaluates a model of its own, not the one that is saved: broadcast before."""
    for group in case.paired([list(evaluated(rank)) for rank in case.ranks]):
        own, names = group[0]["own"], group[0]["names"]
        differ = [names[i] for i in differing(dict(enumerate(group)), "state")]
        if differ and all(e["names"] == names for e in group):
            orders = [str(e["orders"]) for e in group]
            unseen = orders[0] == "[]" and not group[0]["reading"]  # they came from no loader
            most = own or len(differ) > len(names) / 2  # not a rank's head
            parts = (len(set(orders)) > 1 or unseen) and any(case.joint()) and most
            seen = f"the ranks added results of different buffers or weights ({short(differ, 2)})"
            fine = "one rank's result is used, or each has its own model"
            yield group[0]["at"], seen, "" if parts else fine
    for group in case.paired([r.all("other") for r in case.ranks]):
        if len({str(e["state"]) for e in group}) > 1 and len({e["at"] for e in group}) == 1:
            text = "next to the trained model another computes, whose weights differ between ranks"
            yield group[0]["at"], text, "each rank is meant to have its own"

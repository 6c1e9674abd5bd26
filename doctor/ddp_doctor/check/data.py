"""Data and evaluation: which rank saw which samples, and were results brought together?"""

import ast
import re
from collections import Counter
from dataclasses import replace

from ..run.digits import NUMBER
from ..run.events import (
    Backward,
    Collective,
    Drew,
    Parameters,
    Printed,
    Read,
    Seeded,
    Sent,
    Statistic,
    Vocabulary,
    Wrote,
)
from ..run.words import per_rank, short
from .findings import Finding
from .order import (
    data_of_loader,
    divides_by_rank,
    drawn_in,
    drawn_order,
    draws_in_loop,
    giving_line,
    line_of_generator,
    line_of_part_of,
    line_of_statistic,
    line_of_subset,
    line_with_rank,
    makes_noise,
    part_in_class,
    part_of_data,
    running_statistic,
    seed_by_rank,
    seed_in_class,
    seed_of_generator,
    shuffled,
    subset_made,
    unordered,
)
from .printing import EACH_RANK_CALLS, OWN
from .source import (
    call_of,
    code_of,
    contains,
    files_of,
    guard_of,
    keyword_of,
    loop_around,
    parted,
    the_only,
)
from .values import (
    argument_of,
    averaged_later,
    calls_at,
    divides,
    function_around,
    is_parameter,
    line_made,
    loops_over,
    made,
    not_prepared,
    only_call,
    only_keyword,
    result_line,
    result_of_caller,
    result_of_framework,
    result_shown,
    seeded_by_rank,
    seeding_in,
)

BRINGS_TOGETHER = re.compile("reduce|gather|all_to_all|send|recv")
GENERATORS = ("torch", "numpy", "random")  # that each process has from its start


def trained(epoch):
    return epoch.trained


def evaluates(epoch):
    return epoch.evaluates


def of_one_set(epochs):
    """Indices can be compared if all ranks have the same data."""
    return len({epoch.began.data for epoch in epochs}) == 1


def sets_of(epochs):
    return [set(epoch.indices) for epoch in epochs]


def shared_in_batches(epochs):
    """Of the samples in a rank's n-th batch: which part do the n-th batches of all ranks share?"""
    shared = 0
    count = 0
    for parts in zip(*(epoch.parts for epoch in epochs)):
        samples = [set(part) for part in parts]
        shared += len(set.intersection(*samples))
        count += min(map(len, samples))
    return shared / max(count, 1)


def averages(run, rank, epoch):
    """Are gradients averaged while this epoch is read, by DDP or by the script?"""
    first = epoch.batches[0].when.passes
    last = epoch.batches[-1].when.passes
    for event in rank.all(Backward):
        if event.averages and first <= event.when.passes <= last:
            return True
    return any(optimizer.averaged_by_script for optimizer in run.optimizers)


def takes_a_part(team):
    """In most steps all ranks read the same batches, and each computes on a part of its own."""
    steps = 0
    divided = 0
    for works in zip(*(rank.steps for rank in team)):
        if not all(work.forwards for work in works):
            continue
        steps += 1
        parts = [0 < work.forwards[0].samples < work.read for work in works]
        inputs = {work.forwards[0].inputs for work in works}
        if all(parts) and len(inputs) == len(team):
            divided += 1
    return divided > steps / 2


# ------------------------------------------------------------------ the ranks' parts


def same_data(run):
    """Each rank's epoch has almost all samples that any rank of its team saw."""
    for team in run.teams:
        if takes_a_part(team):
            continue
        for epochs in run.meetings(team, trained):
            sets = sets_of(epochs)
            count = len(set.union(*sets))
            # With few samples two ranks may meet the same ones by chance.
            if min(map(len, sets)) < 0.9 * count or count < 2 * len(sets):
                continue
            if not of_one_set(epochs):
                continue
            same_order = all(epoch.indices == epochs[0].indices for epoch in epochs)
            if not same_order and is_repeated(epochs):
                continue
            # Without an average each rank may train a model of its own, on the same data.
            certain = same_order and epochs[0].began.stock
            certain = certain and any(event.averages for event in team[0].all(Backward))
            sampler = epochs[0].began.sampler
            yield Finding(
                "same-data",
                epochs[0].began.at,
                seen=f"In an epoch {sampler} gave every rank the same {count} samples",
                fine="" if certain else "each rank is meant to train on all of them",
                comes_from=undivided(run, epochs[0].began),
                role=role_of_sampler(epochs[0].began),
            )
        yield from same_beginning(run, team)
    yield from same_inputs(run)


def same_beginning(run, team):
    """An epoch that was left early, as by a framework that counts steps: the batches so far."""
    for epochs in run.meetings(team, trained, whole=False):
        count = min(len(epoch.batches) for epoch in epochs)
        starts = []
        for epoch in epochs:
            starts.append([batch.indices for batch in epoch.batches[:count]])
        samples = {index for batch in starts[0] for index in batch}
        if count < 4 or len(samples) < 8 or not of_one_set(epochs):
            continue
        if all(start == starts[0] for start in starts):
            yield Finding(
                "same-data",
                epochs[0].began.at,
                seen=f"In {count} batches every rank trained on the same {len(samples)} samples",
                fine="each rank is meant to train on all of them",
                comes_from=undivided(run, epochs[0].began),
                role=role_of_sampler(epochs[0].began),
            )


def role_of_sampler(began):
    """A cure that replaces such a sampler by another one would lose what it does."""
    if "Weighted" in began.sampler:
        return "weighted"
    return "own" if began.order_by else ""


def undivided(run, began):
    """Which line lets every rank read all of the data?

    What tells a framework not to divide it, the loader's sampler, or else the loader.
    """
    told = keyword_of("use_distributed_sampler", False, files_of(run))
    names = ("sampler", "batch_sampler")
    sampler = argument_of(began.made, ("DataLoader",), None, *names, callers=began.made_from)
    own = began.sampler_made or part_of_sampler(began) or line_made(sampler)
    return told or own or not_prepared(began.at, files_of(run)) or began.made


def part_of_sampler(began):
    """In a sampler of the script: the line with the rank, or the one that gives the samples."""
    if not began.order_by:
        return ""
    return part_in_class(began.order_by) or giving_line(began.order_by)


def is_repeated(epochs):
    """Repeated augmentation: in one step two ranks have a sample, in two augmentations.

    Ranks that shuffle all data by themselves share samples by chance, in large batches many.
    """
    by_chance = 1 / len(epochs[0].parts)
    return shared_in_batches(epochs) > max(0.4, 3 * by_chance)


def inputs_of(rank):
    """Where no loader tells: per step, the fingerprint of what DDP got."""
    return [work.forwards[0].inputs for work in rank.steps if work.forwards]


def losses_of(rank):
    """Where DDP does not compute either, as with FSDP: the losses of each step."""
    rows = []
    for work in rank.steps:
        rows.append(tuple(event.loss for event in work.backwards))
    return rows


def trains_together(run):
    """Do the ranks train one model, in parts (FSDP) or by an average that the script makes?"""
    if any(not event.plain for event in run.all(Parameters)):
        return True
    return any(optimizer.is_joint for optimizer in run.optimizers)


def is_known_by_loader(run):
    return any(epoch.trained and epoch.indices for epoch in run.ranks[0].epochs)


def same_inputs(run):
    for team in run.teams if not is_known_by_loader(run) else ():
        met = list(zip(*(inputs_of(rank) for rank in team)))
        same = [inputs for inputs in met if len(set(inputs)) == 1 and inputs[0] != -1]
        # One or two equal inputs may be a test of the shapes.
        if len(team) > 1 and len(met) > 2 and len(same) == len(met):
            found = Finding(
                "same-data",
                first_forward(team[0]),
                seen=f"In all {len(met)} steps whose inputs were compared, every rank got the same",
                fine="the data are only placeholders",
                comes_from=loop_of_stream(stream_of_training(run)),
            )
            yield with_source(run, team, found)
        if not met and len(team) > 1 and trains_together(run):
            yield from same_losses(run, team)


def with_source(run, team, found):
    """A loader whose samples have no indices reads a stream. Without a loader the script draws.

    With one seed for all ranks it draws the same on each of them. That is one mistake, although the
    equal random numbers are a finding as well.
    """
    if any(epoch.trained for rank in team for epoch in rank.epochs):
        return replace(found, role="stream")
    found = replace(
        found,
        fine=f"{found.fine}, or all ranks are meant to draw the same",
        role="no_loader",
    )
    own, common = draws_in_loop(lines_of_loop(team[0]), files_of(run))
    alike = []
    for name, other in drawn_alike(run):
        if name in common or (own and other.comes_from == own):
            alike.append(other)
    if own or alike:
        line = own or alike[0].comes_from
        found = replace(found, comes_from=line, role="seed" if line else found.role)
    if alike:
        found = replace(found, may_follow=(alike[0].key,))
    return found


def lines_of_loop(rank):
    """The first forward pass and what calls it, or else the first step."""
    for work in rank.steps:
        if work.forwards:
            return [work.forwards[0].at, *work.forwards[0].called_from]
    return [rank.steps[0].step.at]


def stream_of_training(run):
    """The __iter__() that gives the samples, if the ranks train on one IterableDataset only."""
    lines = {epoch.began.streams for epoch in run.ranks[0].epochs if epoch.trained}
    return the_only(lines)


def loop_of_stream(line):
    """The only outermost loop of the __iter__() in this line, or the line itself.

    Of `for shard in mine` it is the line that takes `mine` as a part, by the worker perhaps.
    """
    file, number = parted(line)
    function = function_around(file, number)
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    outermost = []
    for loop in loops:
        if not any(contains(other.body, loop.lineno) for other in loops):
            outermost.append(loop)
    if not line or len(outermost) != 1:
        return line
    [loop] = outermost
    given = line_of_part_of(function, loop.iter)
    return f"{file}:{given or loop.lineno}"


def first_forward(rank):
    """The line of the first forward pass. With a closure it comes after the first step() began."""
    return lines_of_loop(rank)[0]


def same_losses(run, team):
    rows = list(zip(*(losses_of(rank) for rank in team)))
    rows = [losses for losses in rows if losses[0] and None not in losses[0]]
    if len(rows) > 2 and all(len(set(losses)) == 1 for losses in rows):
        found = Finding(
            "same-data",
            team[0].steps[0].step.at,
            seen=f"In all {len(rows)} steps whose losses were compared, every rank had the same",
            fine="the data are only placeholders, or the ranks compute parts of one model",
        )
        yield with_source(run, team, found)


def different_split(run):
    """A sampler divides positions: do all ranks' samplers divide one order of one data set?"""
    for team in run.teams:
        for epochs in run.meetings(team, lambda epoch: True):
            began = [epoch.began for epoch in epochs]
            if any(event.parts != len(team) for event in began):
                continue
            # Another sampler with parts may mean something else by its numbers.
            known = began[0].sampler == "DistributedSampler"
            for name in ("epoch", "seed", "shuffle"):
                values = [event.settings.get(name) for event in began]
                if len(set(values)) > 1:
                    each = per_rank(team, values)
                    origin = began[0].sampler_made
                    if name == "seed" and not origin:
                        origin = seeded_by_rank(files_of(run))
                    if name == "epoch":
                        sets = call_of("set_epoch", files_of(run))
                        origin = guard_of([sets]) or sets
                    yield Finding(
                        "split-differs",
                        began[0].at,
                        seen=f"The samplers of the ranks differ in {name}: {each}",
                        fine="" if known else "this sampler needs a different value on each rank",
                        comes_from=origin,
                    )
            if is_divided_twice(epochs) or has_own_parts(run, epochs):
                continue  # see divided_again
            # A sampler of the script may give positions within the part that its rank has loaded.
            if any(event.own_order for event in began):
                continue
            subsets = {event.subset for event in began}
            if len(subsets) > 1 or not of_one_set(epochs):
                role, origin = line_of_parts(run, epochs, len(subsets) > 1)
                what = "At the same position of the data each rank has another sample or label"
                if len(subsets) > 1:
                    what = "The ranks hold different subsets of the data"
                yield Finding(
                    "split-differs",
                    began[0].at,
                    seen=f"{what}, and the samplers divide positions",
                    fine="" if known and len(subsets) > 1 else "the data are meant to differ",
                    comes_from=origin,
                    role=role,
                )


def different_words(run):
    """The ranks give the same words different numbers, as by the order of a set."""
    for team in run.teams:
        names = {}
        for rank in team:
            for event in rank.all(Vocabulary):
                names.setdefault(event.name, []).append(event)
        for name, events in names.items():
            same = len(events) == len(team) and len({event.words for event in events}) == 1
            if not same or len({event.order for event in events}) == 1:
                continue
            origin = unordered(files_of(run))
            # A list may have another order on each rank on purpose.
            if not origin and not all(event.numbers for event in events):
                continue
            words = f"the {events[0].count} words of {name!r}"
            seen = f"Each rank has {words} in another order"
            if events[0].numbers:
                seen = f"Each rank gives {words} other numbers"
            seen += ". The same number means another word or class on each rank"
            yield Finding(
                "split-differs",
                origin or team[0].steps[0].step.at,
                seen=seen,
                fine="the order of the words does not matter",
                comes_from=origin,
                role="order",
            )
            return


def different_statistics(run):
    """Before training each rank has computed a mean of its own, of its part of the data perhaps.

    Or it updates one from step to step.
    """
    joint = any(optimizer.is_joint for optimizer in run.optimizers)
    for team in run.teams if joint else ():
        running = []  # names of values that change, and differ at each look
        values = {}  # of each name: those of each rank
        for number, rank in enumerate(team):
            for event in rank.all(Statistic):
                values.setdefault(event.name, [[] for _ in team])[number].append(event.value)
        for name, own in values.items():
            stays = all(len(looks) > 1 and len(set(looks)) == 1 for looks in own)
            if not stays:
                apart = [len(set(met)) > 1 for met in zip(*own)]
                if len(apart) > 1 and all(apart):
                    running.append(name)
                continue
            if all(looks == own[0] for looks in own):
                continue
            steps = [rank.steps[0].step.at for rank in team if rank.steps]
            origin = line_of_statistic(name, files_of(run), steps)
            if origin:
                yield Finding(
                    "split-differs",
                    origin,
                    seen=f"When training began, each rank had another value of {name!r}",
                    fine="it is meant to be that of the rank's own data",
                    comes_from=origin,
                    role="statistic",
                )
                return
        lines = {name: running_statistic(name, files_of(run)) for name in running}
        named = [name for name in running if lines[name]]
        if named:
            yield Finding(
                "split-differs",
                lines[named[0]],
                seen=f"Each rank normalises by running values of its own: {short(named, 3)}",
                fine="they are brought together later, or each rank is meant to have its own",
                comes_from=lines[named[0]],
                role="statistic",
            )
            return


def never_read(run):
    """A sampler of the script, which takes a part by the rank, leaves samples out."""
    for _, epochs in averaged_epochs(run):
        began = epochs[0].began
        part = part_in_class(began.order_by) if began.order_by else ""
        read = set.union(*sets_of(epochs))
        known = part and began.samples and of_one_set(epochs) and not is_repeated(epochs)
        if known and not is_drawn_again(epochs) and len(read) < 0.9 * began.samples:
            drawn = drawn_apart(run, epochs)
            yield Finding(
                "samples-missing",
                began.at,
                seen=f"In an epoch the ranks read {len(read)} of {began.samples} samples",
                fine="an epoch is meant to have so few of them",
                comes_from=drawn or part,
                role="drawn" if drawn else "",
                explained_by=("same-data", "split-differs"),
            )


def is_drawn_again(epochs):
    """Drawn with replacement: a weighted sampler takes samples twice on purpose."""
    return any(len(epoch.indices) > 1.1 * len(set(epoch.indices)) for epoch in epochs)


def line_of_parts(run, epochs, by_subset):
    """-> what is made, and its line: the subset, the order of a set or a folder, or the data."""
    epoch = epochs[0]
    if by_subset:
        same = len({epoch.began.samples for epoch in epochs}) == 1
        made_in = subset_made(epoch.began, [other.began for other in epochs])
        return line_of_subset(made_in, same, files_of(run))
    part = line_of_own_data(run, epoch)
    if part:
        return "part", part
    order = unordered(files_of(run))
    data = data_of_epoch(run, epoch)
    drawn = drawn_in(data) or shuffled(files_of(run))
    if order or not drawn:
        return ("order", order) if order else ("data", line_made(data))
    return "drawn", drawn


def data_of_epoch(run, epoch):
    """The data set of a loader, or what the script gives to a Trainer that makes the loader."""
    data = data_of_loader(epoch.began)
    name = "train_dataset" if epoch.trained else "eval_dataset"
    return data if data is not None else only_keyword(name, files_of(run))


def line_of_own_data(run, epoch):
    """The line by which the data of a rank are a part of all data, and no draw of its own."""
    data = data_of_epoch(run, epoch)
    part = line_with_rank(data)
    if "seed" in code_of(part).lower():
        part = ""
    return part or divides_by_rank(data)


def has_own_parts(run, epochs):
    """Has each rank loaded a part of the data, of which its sampler takes only a part?"""
    if of_one_set(epochs) or any(epoch.began.own_order for epoch in epochs):
        return False
    parts = [len(set(epoch.indices)) <= 0.75 * epoch.began.samples for epoch in epochs]
    return epochs[0].trained and all(parts) and line_of_own_data(run, epochs[0]) != ""


def is_divided_twice(epochs):
    """Does each rank have a subset of its own, of which its sampler takes only a part?"""
    sets = sets_of(epochs)
    subsets = {epoch.began.subset for epoch in epochs}
    if len(subsets) < len(epochs) or not of_one_set(epochs):
        return False
    apart = len(set.union(*sets)) == sum(map(len, sets))
    parts = [len(own) <= 0.75 * epoch.began.samples for own, epoch in zip(sets, epochs)]
    return apart and all(parts)


def divided_again(run):
    """A sampler divides the part that each rank has already."""
    for team, epochs in averaged_epochs(run):
        own = has_own_parts(run, epochs)
        if epochs[0].began.parts > 1 and (own or is_divided_twice(epochs)):
            began = epochs[0].began
            counts = [f"{len(epoch.indices)} of {epoch.began.samples}" for epoch in epochs]
            each = per_rank(team, counts)
            part = line_of_own_data(run, epochs[0]) if own else ""
            yield Finding(
                "samples-missing",
                began.at,
                seen=f"A sampler divides the part of each rank again: it gives {each} samples",
                fine="the rest of each part is read in other epochs",
                comes_from=part
                or began.sampler_made
                or subset_made(began, [epoch.began for epoch in epochs]),
                role="part" if part else "",
            )


def averaged_epochs(run):
    """Each team with the epochs in which it averages.

    Without an average each rank trains a model of its own, and takes what it wants.
    """
    for team in run.teams:
        for epochs in run.meetings(team, trained):
            if averages(run, team[0], epochs[0]):
                yield team, epochs


def missing_samples(run):
    """Some samples were seen by several ranks of a team, or by none."""
    for team, epochs in averaged_epochs(run):
        parts = epochs[0].began.parts
        if parts > len(team):
            yield Finding(
                "samples-missing",
                epochs[0].began.at,
                seen=f"The sampler divides among {parts} ranks, but {len(team)} average",
                fine="other ranks train on the rest",
                comes_from=epochs[0].began.sampler_made,
                explained_by=("same-data", "split-differs"),
            )
        yield from seen_twice(run, team, epochs)


def line_of_part(run, epochs):
    """-> a role, and where a rank gets its part: by a sampler, an order, its number, or the loader.

    An order that each rank draws for itself gives other parts than one order, cut by the rank.
    """
    began = epochs[0].began
    others = [epoch.began for epoch in epochs]
    seed = seed_by_rank(began.order_by)
    if seed:
        return "seed", seed
    drawn = drawn_apart(run, epochs)
    if drawn and not began.sampler_made:
        return "drawn", drawn
    part = part_of_data(began, others)
    order = "" if began.sampler_made else unordered(files_of(run))
    return "", began.sampler_made or part or order or began.made


def drawn_apart(run, epochs):
    """The line that draws the order for a rank's part, unless the ranks have one seed for it."""
    began = epochs[0].began
    drawn = drawn_order(began, [epoch.began for epoch in epochs])
    code = code_of(drawn)
    name = "random"
    if "torch." in code:
        name = "torch"
    elif "np." in code or "numpy." in code:
        name = "numpy"
    seeds = {event.seed for rank in run.ranks for event in seeds_of(rank, name, began)[-1:]}
    is_global = not re.search(r"default_rng|RandomState|Random\(", code)
    return "" if is_global and len(seeds) == 1 else drawn


def seen_twice(run, team, epochs):
    """More samples than the samplers repeat to fill up the last batches."""
    counts = Counter()
    for samples in sets_of(epochs):
        counts.update(samples)
    twice = [index for index, count in counts.items() if count > 1]
    # Samplers fill up the last batch of each rank with samples that were there before.
    filled_up = len(team) * (len(epochs[0].batches[0].indices) + 1)
    comparable = of_one_set(epochs) and not is_drawn_again(epochs) and not is_repeated(epochs)
    if comparable and len(twice) > filled_up:
        role, origin = line_of_part(run, epochs)
        yield Finding(
            "samples-missing",
            epochs[0].began.at,
            seen=f"In an epoch {len(twice)} of {len(counts)} samples were seen twice",
            fine="each rank is meant to draw its samples by itself",
            comes_from=origin,
            role=role,
            explained_by=("same-data", "split-differs"),
        )


def same_order(run):
    """Two epochs of a sampler that shuffles have one order."""
    lines = {}
    for epoch in run.ranks[0].epochs:
        mixed = shuffles(epoch) or is_own_shuffle(epoch) or line_of_fixed_order(epoch)
        if epoch.trained and epoch.whole and epoch.indices and mixed:
            lines.setdefault(epoch.began.at, []).append(epoch)
    for at, epochs in lines.items():
        orders = {tuple(epoch.indices) for epoch in epochs}
        numbers = {epoch.began.settings.get("epoch") for epoch in epochs}
        if len(epochs) < 2 or len(orders) > 1:
            continue
        seen = f"Rank 0 took the samples of {len(epochs)} epochs in the same order"
        fixed = line_of_fixed_order(epochs[0])
        if len(numbers) == 1 and (shuffles(epochs[0]) or is_own_shuffle(epochs[0])):
            yield Finding(
                "same-order",
                at,
                seen=f"{seen}: the sampler's epoch was {min(numbers)} when they began",
                fine="" if shuffles(epochs[0]) else "the order is meant to be fixed",
                comes_from=call_of("set_epoch", files_of(run))
                or loop_around([at, *epochs[0].began.called_from]),
            )
        elif fixed and (len(numbers) > 1 or not epochs[0].cut):
            yield Finding(
                "same-order",
                at,
                seen=f"{seen}, by a sampler of the script",
                fine="the order is meant to be fixed",
                comes_from=fixed,
            )
    if not is_known_by_loader(run):
        yield from repeated_inputs(run, run.ranks[0])


def shuffles(epoch):
    return epoch.began.settings.get("shuffle") == "True"


def is_own_shuffle(epoch):
    """A sampler of the script that knows an epoch and gives the samples in no rising order.

    It may count its epochs at its own end, which a pass that --short has ended does not reach.
    """
    known = epoch.began.own_order and "epoch" in epoch.began.settings and not epoch.cut
    return known and epoch.indices != sorted(epoch.indices)


def line_of_fixed_order(epoch):
    """In a sampler of the script that gives no rising order: the line that seeds a generator."""
    if not epoch.began.order_by or epoch.indices == sorted(epoch.indices):
        return ""
    return seed_in_class(epoch.began.order_by)


def repeated_inputs(run, rank):
    inputs = inputs_of(rank)
    for period in range(3, len(inputs) // 2 + 1):
        # A run that has all its data in one batch repeats it rightly.
        if inputs[period:] == inputs[:-period] and -1 not in inputs and len(set(inputs)) > 1:
            yield Finding(
                "same-order",
                first_forward(rank),
                seen=f"After {period} steps rank 0 gave DDP the same batches in the same order",
                fine="the order is meant to be fixed",
                comes_from=line_of_seed(run),
            )
            return


def line_of_seed(run):
    """The only line that gives a generator of the script a seed, in each epoch perhaps."""
    streams = stream_of_training(run)
    own = seed_in_class(streams) if streams else ""
    return own or only_call(("manual_seed", "default_rng", "RandomState"), files_of(run))


def same_random_numbers(run):
    for _, found in drawn_alike(run):
        yield found


def drawn_alike(run):
    """-> generators that went from one common state of all ranks to another between two steps.

    Each has its name and its finding.
    """
    for optimizer in run.optimizers:
        rows = [row for row in optimizer.rows if row.steps[0].random]
        pairs = []
        for earlier, later in zip(rows, rows[1:]):
            follows = later.n == earlier.n + 1
            if follows and not later.works[0].loaders:  # a loader draws a seed when it begins
                pairs.append((earlier, later))
        own = {name for row in rows for name in row.steps[0].random} - {*GENERATORS, "cuda"}
        for name in (*GENERATORS, *sorted(own)):
            drew = [pair for pair in pairs if drew_alike(pair, name)]
            # After an evaluation of other lengths the generators may part: four steps are enough.
            if optimizer.is_joint and len(drew) > min(4, len(pairs) / 2):
                work = drew[0][0].works[0]
                # A generator of the script may choose samples, which the ranks then divide.
                if name in own and not makes_noise(name, files_of(run)):
                    continue
                if name not in own and seeded_by_library(run.ranks[0], name, work.step):
                    continue
                seen = f"In {len(drew)} of {len(pairs)} steps whose random numbers were compared,"
                seen += " all ranks drew the same numbers"
                found = Finding(
                    "same-random-numbers",
                    at=work.forwards[0].at if work.forwards else work.step.at,
                    seen=f"{seen} ({name}), as for dropout or noise",
                    fine="equal random numbers are meant",
                    comes_from=seed_of_generator(name, files_of(run))
                    or line_of_generator(name, files_of(run))
                    if name in own
                    else seed_of(run, name, work.step),
                )
                yield name, found


def drew_alike(pair, name):
    earlier, later = pair
    before = {step.random.get(name) for step in earlier.steps}
    after = {step.random.get(name) for step in later.steps}
    return len(before) == len(after) == 1 and before != after


def seeds_of(rank, name, step):
    """What gave a seed to this generator before the step, the last one last."""
    seeds = []
    for event in rank.all(Seeded):
        if event.when.time < step.when.time and event.generator == name:
            seeds.append(event)
    return seeds


def asked_for(seeds):
    """The line of the script that asked for the last seed, or an empty text.

    A Trainer may give the generators later on the seed that the script has asked for.
    """
    for event in reversed(seeds):
        if event.asked and event.seed == seeds[-1].seed:
            return line_of_number(event)
    return ""


def line_of_number(event):
    """A helper such as set_seed(seed) only passes the number on: its caller gives it."""
    given = argument_of(event.at, ("manual_seed", "seed"), 0, "seed")
    if given is not None and event.called_from and is_parameter(given):
        return event.called_from[0]
    return event.at


def seed_of(run, name, step):
    """The line that gave the generator its seed on all ranks, before this step."""
    lines = {asked_for(seeds_of(rank, name, step)) for rank in run.ranks}
    return the_only(lines)


def seeded_by_library(rank, name, step):
    """A Trainer that seeds all ranks alike, unasked, does so in each script that uses it.

    A finding in every script of a framework says nothing about the script. What the script itself
    seeds, with a function of the framework perhaps, is told.
    """
    seeds = seeds_of(rank, name, step) or seeds_of(rank, "torch", step)
    return bool(seeds) and not asked_for(seeds)


def same_worker_seeds(run):
    """Workers of two ranks began with the same state of a generator, and drew from it."""
    others = [event for rank in run.ranks[1:] for event in rank.all(Drew)]
    for event in run.ranks[0].all(Drew):
        for other in others:
            same = event.states.items() & other.states.items()
            if same:
                names = short(name for name, _ in sorted(same))
                yield Finding(
                    "same-worker-seeds",
                    event.at,
                    seen=f"Worker {event.worker} of rank 0's loader and a worker of another rank"
                    f" drew the same numbers ({names})",
                    fine="equal random numbers are meant",
                    comes_from=origin_of_workers(run, event, [name for name, _ in same]),
                )
                return


def origin_of_workers(run, drew, names):
    """A worker_init_fn stands in the loader's constructor. Otherwise the rank's seed counts."""
    for epoch in run.ranks[0].epochs:
        if epoch.began.at == drew.at:
            made_in = epoch.began.made
            if drew.seeded:
                function = argument_of(made_in, ("DataLoader",), None, "worker_init_fn")
                return seeding_in(function, names) or made_in
            generator = argument_of(made_in, ("DataLoader",), None, "generator")
            return line_made(generator) or seed_of(run, "torch", epoch.began)
    return ""


# ------------------------------------------------------------------ evaluation


def in_evaluation(rank, epoch, kinds):
    """What a rank did from the first batch of an evaluation until training went on."""
    first = epoch.batches[0].when
    found = []
    for event in rank.all(kinds):
        if event.when.passes == first.passes and event.when.time > first.time:
            found.append(event)
    return found


def results(rank, epoch):
    """The collectives that bring the results of an evaluation together."""
    found = []
    for event in in_evaluation(rank, epoch, Collective):
        if BRINGS_TOGETHER.search(event.op) and not event.decides and not event.of_training:
            found.append(event)
    return found


def reductions(rank, epoch):
    return [call for call in results(rank, epoch) if "reduce" in call.op]


def joined_by_files(team, epochs):
    """Does a rank read files that the others wrote in this evaluation?"""
    written = set()
    for rank, epoch in list(zip(team, epochs))[1:]:
        written.update(event.path for event in in_evaluation(rank, epoch, Wrote))
    first = epochs[0].batches[0].when.time
    reads = [event for event in team[0].all(Read) if event.when.time > first]
    return any(event.path in written for event in reads)


def until_training(rank, epoch, kind):
    """What a rank did from the last batch of an evaluation until training went on."""
    found = []
    for event in rank.events[epoch.over :]:
        if isinstance(event, Backward):
            break
        if isinstance(event, kind):
            found.append(event)
    return found


def padded_evaluation(run):
    """More samples were evaluated than there are."""
    for team in run.teams:
        yield from padded_of(run, team)


def padded_of(run, team):
    for epochs in run.meetings(team, evaluates):
        counts = Counter()
        for epoch in epochs:
            counts.update(epoch.indices)
        total = counts.total()
        extra = total - len(counts)
        cut = any(epoch.cut for epoch in epochs)
        batch = max(len(epoch.batches[0].indices) for epoch in epochs)
        parts = all(len(own) < len(counts) for own in sets_of(epochs))
        calls = results(team[0], epochs[0])
        by_files = joined_by_files(team, epochs)
        trimmed = any(call.trimmed for call in calls)
        # Ranks with other subsets have other samples under the same number of a position.
        same_subset = len({epoch.began.subset for epoch in epochs}) == 1
        padded = parts and same_subset and of_one_set(epochs) and 0 < extra < len(epochs) * batch
        if not padded or trimmed or not (calls or by_files):
            continue
        gathered = by_files or any("gather" in call.op for call in calls)
        all_shown = shows(team[0], epochs[0], total, but_not=len(counts))
        # A sum of counts cannot be corrected any more. A list can be cut off.
        if gathered and shows(team[0], epochs[0], len(counts), but_not=total):
            continue  # what is double was cut off
        twice = sorted(index for index, count in counts.items() if count > 1)
        were = "would be" if cut else "were"
        seen = f"{total} samples {were} evaluated, but there are only {len(counts)}"
        origin = line_of_padding(epochs[0].began, calls)
        yield Finding(
            "padded-evaluation",
            epochs[0].began.at,
            seen=f"{seen}. {len(twice)} sample(s) {were} counted twice ({short(twice)})",
            fine="the repeated samples are cut off after gathering"
            if gathered and not all_shown
            else "",
            comes_from=origin,
            role="framework" if origin and origin == epochs[0].began.made else "",
        )


def line_of_padding(began, calls):
    """The sampler, what gathers the results, or the loader that a framework gives a sampler."""
    return began.sampler_made or part_of_sampler(began) or line_of_gather(calls) or began.made


def line_of_gather(calls):
    """Accelerate's sampler repeats samples, and its gather_for_metrics() would cut them off."""
    lines = {call.at for call in calls}
    if len(lines) != 1:
        return ""
    [line] = lines
    return line if calls_at(line, ("gather", "reduce")) else ""


def shows(rank, epoch, count, but_not=None):
    """Does the script print one number of samples, and not the other?"""
    for event in until_training(rank, epoch, Printed):
        numbers = [float(number) for number in NUMBER.findall(event.text)]
        if count in numbers and but_not not in numbers:
            return True
    return False


def part_of_evaluation(run):
    """Each rank evaluated its part, and nothing was brought together."""
    for team in run.teams:
        yield from parts_of(run, team)
    yield from part_of_rank_0(run)


def parts_of(run, team):
    meetings = run.meetings(team, evaluates)
    joined = set()  # lines that begin an evaluation, at least one of which was brought together
    for epochs in meetings:
        for rank, epoch in zip(team, epochs):
            if results(rank, epoch):
                joined.add(epoch.began.at)
    for epochs in meetings:
        # Where a run broke off, its results may have been about to come together.
        if not run.ended_well and not all(map(goes_on, team, epochs)):
            continue
        sets = sets_of(epochs)
        if max(map(len, sets)) >= 0.9 * len(set.union(*sets)) or not of_one_set(epochs):
            continue
        logged = lines_logged_apart(team, epochs)
        for line in logged:
            yield Finding(
                "part-of-evaluation",
                line,
                seen="Lightning's self.log() got different values on the ranks without sync_dist",
                fine="the value of rank 0's part is meant",
                comes_from=line,
            )
        if logged:
            continue
        kept = [keeps_apart(rank, epoch) for rank, epoch in zip(team, epochs)]
        # A rank that writes or prints its own figure keeps the parts apart on purpose.
        named = any(OWN.search(event.text) for event in shown_by(team[0], epochs[0]))
        if epochs[0].began.at not in joined and not all(kept) and not named:
            each = per_rank(team, map(len, sets))
            at, origin = places_of_result(run, team[0], epochs[0])
            yield Finding(
                "part-of-evaluation",
                at,
                seen=f"The ranks evaluated parts ({each} samples), and nothing was added up",
                fine="the results are used one by one, or added up later",
                comes_from=origin,
            )


def places_of_result(run, rank, epoch):
    """-> the loop over the data, and the line that computes the result.

    A framework has the loop. The line that shows the result stands for it then.
    """
    at = epoch.began.at
    result = result_line(at) or result_of_caller(at, epoch.began.called_from)
    if result or loops_over(at):
        return at, result
    shown = [event.at for event in until_training(rank, epoch, Printed)]
    if not shown:
        return at, result_of_framework(files_of(run))
    return shown[0], result_shown(shown[0]) or result_of_framework(files_of(run))


def goes_on(rank, epoch):
    """Did this rank train after this evaluation?"""
    return any(isinstance(event, Backward) for event in rank.events[epoch.over :])


def lines_logged_apart(team, epochs):
    """Lines at which Lightning's self.log() keeps the values of the ranks' parts apart.

    Whether another value was reduced does not matter to these.
    """
    values = {}  # of each line, one list of texts per rank
    for number, (rank, epoch) in enumerate(zip(team, epochs)):
        for event in in_evaluation(rank, epoch, Printed):
            if event.by == "Lightning" and not OWN.search(event.text):
                texts = values.setdefault(event.at, [[] for _ in team])
                texts[number].append(event.text)
    lines = []
    for line, (first, *others) in values.items():
        differ = [first != other for other in others if other]
        if differ and all(differ):
            lines.append(line)
    return lines


def keeps_apart(rank, epoch):
    """Do the results of this rank leave it, by a file, a queue, the store, or a line of text?"""
    if in_evaluation(rank, epoch, (Wrote, Sent)):
        return True
    return bool(shown_by(rank, epoch))


def shown_by(rank, epoch):
    """Lines of this rank. With a logger that every rank calls, only rank 0 shows something."""
    shown = until_training(rank, epoch, Printed)
    return [event for event in shown if event.by not in EACH_RANK_CALLS]


def part_of_rank_0(run):
    """Only rank 0 evaluates, and a sampler gives it its part."""
    others = {epoch.began.at for rank in run.ranks[1:] for epoch in rank.epochs}
    # In a run that broke off the others may not have come to it.
    for epoch in run.ranks[0].epochs if run.ended_well else ():
        divided = epoch.began.sampler == "DistributedSampler" and epoch.began.parts > 1
        alone = epoch.began.at not in others
        if epoch.whole and epoch.evaluates and divided and alone:
            count = len(epoch.indices)
            yield Finding(
                "part-of-evaluation",
                epoch.began.at,
                seen=f"Only rank 0 evaluates, and its sampler gives it a part, {count} samples",
                fine="a part is enough for this result",
                comes_from=epoch.began.sampler_made,
            )


def mean_of_means(run):
    """Ranks with unequal numbers of samples add up their means, and do not add up the numbers."""
    for team in run.teams:
        for epochs in run.meetings(team, evaluates):
            whole = {len(epoch.indices) for epoch in epochs}
            counts = [epoch.loaded for epoch in epochs]
            rows = []
            for rank, epoch in zip(team, epochs):
                rows.append(reduced_numbers(rank, epoch))
            known = any(count in row for count, row in zip(counts, rows))
            lengths = {len(row) for row in rows}
            if len(whole) == 1 or known or len(lengths) > 1:
                continue
            for means in zip(*rows):
                yield from mean_of_unequal(team, epochs, means, counts)


def reduced_numbers(rank, epoch):
    """What this rank gave to all_reduce or reduce, where that was one number."""
    alone = [call for call in reductions(rank, epoch) if len(call.values) == 1]
    return [number for call in alone for number in call.values]


def line_of_mean(rank, epoch, mean):
    """The line that divides, or else the one that adds up."""
    lines = [call.at for call in reductions(rank, epoch) if call.values == [mean]]
    if not lines:
        return ""
    mean = argument_of(lines[0], ("all_reduce", "reduce"), 0, "tensor")
    first = made(mean) if mean is not None else None
    divided = first is not None and any(map(divides, ast.walk(first.node)))
    return first.line if divided else lines[0]


def mean_of_unequal(team, epochs, means, counts):
    """Is each mean a whole number of hits among the rank's samples, in percent perhaps?

    A mean of losses is none. There the script's text tells: a quotient, divided by the ranks later.
    """
    if all(mean % 1 == 0 for mean in means):
        return
    line = line_of_mean(team[0], epochs[0], means[0])
    for scale in (1, 100):
        hits = [mean * count / scale for mean, count in zip(means, counts)]
        whole = all(abs(hit - round(hit)) < 0.01 for hit in hits)
        if whole or (scale == 1 and averaged_later(line)):
            words = []
            for mean, count in zip(means, counts):
                words.append(f"{mean:.4} of {count} samples")
            each = per_rank(team, words)
            over_all = f", over all it is {scale * sum(hits) / sum(counts):.4}"
            if any(epoch.cut for epoch in epochs):
                over_all = "; in a whole pass the counts differ"
            yield Finding(
                "mean-of-means",
                epochs[0].began.at,
                seen=f"Means of unequal counts were added up ({each}){over_all}",
                fine="each rank is meant to count equally",
                comes_from=line,
            )
            return


JUDGES = [
    different_split,
    different_words,
    different_statistics,
    same_data,
    same_order,
    divided_again,
    missing_samples,
    never_read,
    same_random_numbers,
    same_worker_seeds,
    padded_evaluation,
    part_of_evaluation,
    mean_of_means,
]

"""The training step: do the ranks train one model, by the gradient that is meant?"""

import math
import re
from collections import Counter

from ..run.events import (
    Backward,
    Bypassed,
    Clipped,
    Computes,
    Cut,
    GlobalBatch,
    Keeps,
    Plateau,
    Raised,
    Restored,
    Scheduled,
    Seeded,
    Totals,
    Untrained,
    Wrapped,
)
from ..run.facts import facts
from ..run.words import per_rank, short
from .changed import (
    average_without_buffers,
    averaged_apart,
    changed_by_name,
    changed_gradient,
    changed_in_place,
    changed_weights,
    condition_around,
    guarded_change,
    initialised_late,
    loads_optimizer,
)
from .findings import Finding
from .order import line_with_rank, own_source, rank_in_call
from .source import (
    WRAPPERS,
    assignment_of,
    call_of,
    code_of,
    entry_assigned,
    files_of,
    guard_of,
    parted,
    wraps_on_gpus_only,
)
from .values import (
    argument_of,
    batch_given,
    calls_of,
    condition_made,
    context_made,
    function_around,
    further_model_made,
    is_above,
    is_name,
    length_assigned,
    line_made,
    line_over_world,
    loss_line,
    made,
    model_made,
    only_call,
    over_world,
    rate_of,
    reduced_to_one,
    returned,
    running_count,
    term_made,
    times_world,
)

UNUSED = re.compile("Expected to have finished reduction")
OTHER_SIZES = re.compile("appears not to match|expects same model across all ranks")
# Names that call a batch that of all ranks.
GLOBAL = re.compile(r"(global|total|overall|effective)[_-](train[_-])?(mini[_-]?)?batch", re.I)
# Arguments of schedules.
LENGTHS = ("total_steps", "T_max", "total_iters", "num_training_steps", "max_steps")


def different_gradients(run):
    """One search, four findings: the first step with different gradients, and its cause."""
    for optimizer in run.optimizers:
        row = optimizer.first_difference
        if row is None or run.is_loose:
            continue
        if optimizer.is_in_ddp:
            key, at, text, origin = cause(run, row)
        elif optimizer.averaged_by_script and averages_after_backward(row) and optimizer.drifts:
            key = "weights-differ"
            at = row.at
            text = ""
            origin = line_of_reduce(row) or line_of_gradients(run)
        else:
            continue  # see not_wrapped
        skipped = origin and origin == line_of_skipped(run, row)
        if skipped:
            text = ". The ranks have taken different numbers of steps"
        count = len(row.differing("gradients"))
        of = f"{count} of {len(optimizer.parameters.sizes)} parameters"
        # Local SGD averages after some steps, and an ensemble never does.
        later = optimizer.is_in_ddp and optimizer.averaged_ever
        certain = optimizer.drifts and not later and not run.has_own_models
        # A pass that --short ends may leave a rank in the middle of an accumulation.
        certain = certain and not any(work.carries for work in row.works)
        yield Finding(
            key,
            at,
            seen=f"In step {row.count} the ranks had different gradients for {of}{text}",
            fine=""
            if certain
            else "the ranks average later, or are meant to train different models",
            comes_from=origin,
            role=role_of_origin(row, origin, skipped),
            explained_by=("unused-parameters",),
        )


def role_of_origin(row, origin, skipped):
    """Is it the condition of a step, or one by which the script calls no_sync()?"""
    if skipped:
        return "skip"
    backwards = row.works[0].backwards
    if not backwards or not origin:
        return ""
    condition = condition_made(context_made(backwards[-1].no_sync))
    return "condition" if origin == condition else ""


def averages_after_backward(row):
    """Does the script itself communicate between a backward pass and this step?"""
    work = row.works[0]
    if not work.backwards:
        return False
    first = work.backwards[0].when.time
    return any(call.when.time > first and not call.by_torch for call in work.collectives)


def line_of_reduce(row):
    """dist.reduce() gives the sum to one rank only."""
    calls = [call for call in row.works[0].collectives if call.op == "reduce" and call.numel > 1]
    return calls[0].at if calls else ""


def cause(run, row):
    """Why gradients differ although DDP wraps the model -> key, line, words, its origin."""
    work = row.works[0]
    averaged = [event.averages for event in work.backwards]
    if not work.forwards and not any(averaged):
        at = work.backwards[-1].at if work.backwards else row.at
        return "not-through-ddp", at, NOT_CALLED, line_around_ddp(row)
    if averaged and not averaged[-1]:
        if not work.backwards[-1].models:
            return "not-through-ddp", work.backwards[-1].at, NOT_CALLED, line_around_ddp(row)
        words = f". {sum(averaged)} of the {len(averaged)} backward passes averaged them, but not"
        words += " the last one"
        if not any(averaged):
            words = f". None of the {len(averaged)} backward passes averaged them"
        attribute = assignment_of("require_backward_grad_sync", files_of(run))
        no_sync = context_made(work.backwards[-1].no_sync)
        origin = condition_made(no_sync) or no_sync or attribute
        return "last-pass-not-synced", row.at, words, origin
    differing = row.differing("gradients")
    passes = passes_before(row.ranks[0], work)
    through = [went_through_ddp(work.parameters, number, passes) for number in differing]
    if work.backwards and not any(through):
        return "not-through-ddp", work.backwards[-1].at, NOT_CALLED, line_around_ddp(row)
    in_ddp = work.parameters.in_ddp
    lacking = [number for number in differing if not in_ddp[number]]
    if lacking:
        wrapped = run.all(Wrapped)[0].at
        words = f". DDP ({wrapped}) does not have {len(lacking)} of these"
        return "not-in-ddp", row.at, words, wrapped
    return "weights-differ", row.at, "", line_of_gradients(run) or line_of_skipped(run, row)


NOT_CALLED = ". DDP's forward() was not called before this backward()"


def line_around_ddp(row):
    """The line that calls a model which DDP wraps, and not DDP.

    It is a model of the parameters that differ, and a pass between two of their steps follows.
    """
    work = row.works[0]
    rank = row.ranks[0]
    models = {work.parameters.models[number] for number in row.differing("gradients")}
    after = {event.when.passes: event.at for event in rank.all(Backward)}
    places = {event.at for event in passes_before(rank, work)}
    for event in rank.all(Bypassed):
        if event.model in models and after.get(event.when.passes) in places:
            return event.at
    return ""


def passes_before(rank, work):
    """The backward passes since the step before of the same optimizer.

    What a generator has made may train another model first, and then the generator.
    """
    found = []
    for other in reversed(rank.steps[: rank.steps.index(work) + 1]):
        is_before = other is not work and other.step.optimizer == work.step.optimizer
        if is_before:
            break
        found += other.backwards
    return found


def went_through_ddp(parameters, number, passes):
    """Was DDP called with the model of this parameter before one of these passes?

    A parameter that DDP does not have, or of which that is not known, is no case of it.
    """
    model = parameters.models[number] if parameters.models else -1
    return model == -1 or any(model in event.models for event in passes)


def line_of_gradients(run):
    """What changes weights or gradients on some ranks, or by different numbers on each."""
    return guarded_change(files_of(run)) or changed_gradient(files_of(run))


def line_of_skipped(run, row):
    """The condition of the step, if the ranks made different numbers of steps."""
    totals = {event.steps for event in run.all(Totals)}
    return condition_around(row.at) if len(totals) > 1 else ""


def unused_parameters(run):
    """DDP waited for gradients of parameters that the loss does not depend on, and then raised."""
    for event in run.all(Raised):
        if UNUSED.search(event.error) and run.all(Wrapped):
            yield Finding(
                "unused-parameters",
                event.at,
                seen="DDP raised, because the pass before had no gradient for some parameters",
                comes_from=run.all(Wrapped)[0].at if len(lines_of_ddp(run)) == 1 else "",
            )
            return


def different_sizes(run):
    """DDP compares the sizes of parameters when it wraps a model, and raised."""
    for event in run.all(Raised):
        if OTHER_SIZES.search(event.error):
            module = argument_of(event.at, WRAPPERS, 0, "module")
            line = line_with_rank(module) or line_made(module)
            yield Finding(
                "weights-differ",
                event.at,
                seen="DDP raised, because the models of the ranks have different parameters",
                comes_from=line,
                role="shape",
            )
            return


def lines_of_ddp(run):
    return {event.at for event in run.all(Wrapped)}


def different_weights(run):
    """Gradients and rates agree, and the weights differ: they did so from the start."""
    for optimizer in run.optimizers:
        rates = any(row.rates_differ() for row in optimizer.rows)
        if rates or optimizer.first_difference or not optimizer.is_joint or not optimizer.drifts:
            continue
        look = next(look for look in optimizer.looks if look.numbers)
        when = "After the last step"
        since = ", although the gradients agreed"
        early = look.row is not None and look.row.n == 0
        first = optimizer.looks[0]
        equal_at_first = first.row is not None and first.row.n == 0 and not first.numbers
        if equal_at_first:
            since = (
                f", although they were equal before step {first.row.count} and the gradients agreed"
            )
        if look.row is not None:
            when = f"Before step {look.row.count}"
        if early:
            since = ""
        of = f"{len(look.numbers)} of {len(optimizer.parameters.sizes)}"
        origin = line_that_changed(run, optimizer, look.row)
        by_rank = "" if origin else rank_in_call(optimizer.parameters.made)
        role = ""
        if by_rank:
            role = "rank"
        elif origin and origin == model_made(optimizer.parameters.made):
            role = "model"
        elif equal_at_first and not origin:
            role = "late"
        elif equal_at_first and loads_optimizer(origin):
            role = "state"
        elif early and optimizer.is_in_ddp:
            role = "early"
        yield Finding(
            "weights-differ",
            look.row.at if look.row is not None else optimizer.rows[-1].at,
            seen=f"{when} the weights of {of} parameters differ between the ranks{since}",
            fine="Join or a communication hook makes them differ" if run.is_loose else "",
            comes_from=origin or by_rank,
            role=role,
            explained_by=("unused-parameters",),
        )


def line_that_changed(run, optimizer, row):
    """What gave a rank other weights after DDP, or a broadcast, had made them equal?"""
    loads = []  # per rank: {line: [loads of weights]}
    for rank in optimizer.rows[0].ranks:
        wrapped = [event.when.time for event in rank.all(Wrapped)]
        own = {}
        for event in rank.all(Restored):
            late = row is not None and event.when.time > step_time(rank, row)
            if event.when.time > min(wrapped, default=0) and not late:
                own.setdefault(event.at, []).append(event)
        loads.append(own)
    lines = {}
    for at in {at for own in loads for at in own}:
        met = []
        for own in loads:
            met.append([event.state for event in own.get(at, [])])
        if any(states != met[0] for states in met):
            event = next(own[at][0] for own in loads if at in own)
            lines[at] = guard_of([at, *event.called_from]) or at
    if len(lines) == 1:
        return [*lines.values()][0]
    if lines:
        return ""
    files = files_of(run)
    wrapped = lines_of_ddp(run)
    late = initialised_late(*wrapped, files) if len(wrapped) == 1 else ""
    changed = guarded_change(files) or own_source(files) or late
    changed = changed or changed_in_place(files) or changed_weights(files)
    if not changed and row is not None and row.n == 0 and not optimizer.is_in_ddp:
        return model_made(optimizer.parameters.made)  # the script has never sent its weights
    return changed


def different_untrained(run):
    """Parameters that no optimizer trains, and buffers of the script, differ between the ranks."""
    if any(optimizer.first_difference or optimizer.drifts for optimizer in run.optimizers):
        return  # they may follow from these
    for team in run.teams:
        met = []
        for looks in zip(*(rank.all(Untrained) for rank in team)):
            models = {(*look.names, look.last) for look in looks}
            if len(models) == 1:
                met.append(looks)
        if len(team) > 1 and met:
            yield from different_parameters(run, met)
            yield from different_buffers(run, met)


def different_parameters(run, met):
    """At the last look parameters differ."""
    last = met[-1][0]
    buffers = last.names[len(last.names) - last.buffers :]
    names = [name for name in differing_names(met[-1]) if name not in buffers]
    if names:
        line = changed_by_name(names, files_of(run))
        yield Finding(
            "weights-differ",
            line or step_of(run, last),
            seen=f"The ranks have different values of {short(names, 3)}, which no optimizer trains",
            fine="each rank is meant to have its own, or they are made equal before they are used",
            comes_from=line,
            explained_by=("unused-parameters",),
        )


def different_buffers(run, met):
    """Before each step buffers differ: what all ranks but rank 0 put into them is lost."""
    counts = Counter()
    steps = [looks for looks in met if not looks[0].last]
    for looks in steps:
        buffers = looks[0].names[len(looks[0].names) - looks[0].buffers :]
        counts.update(name for name in differing_names(looks) if name in buffers)
    names = [name for name, count in counts.items() if count == len(steps)]
    if names and len(steps) > 1:
        line = changed_by_name(names, files_of(run))
        sent = any(event.buffers for event in run.all(Wrapped))
        words = ". DDP sends those of rank 0 before each pass, and the others are lost"
        yield Finding(
            "buffers-differ",
            line or step_of(run, steps[0][0]),
            seen=f"Each rank changes {short(names, 3)} by its own samples{words if sent else ''}",
            fine="the samples of rank 0 are enough for it",
            comes_from=line,
            role="own",
        )


def step_of(run, event):
    """The line of the step that follows this event, or of the last one."""
    steps = [work.step for work in run.ranks[0].steps]
    later = [step for step in steps if step.when.step >= event.when.step]
    return (later or steps)[0].at if steps else "?"


def step_time(rank, row):
    """When did this rank make this step?"""
    return row.works[row.ranks.index(rank)].step.when.time


def different_rates(run):
    for optimizer in run.optimizers:
        rows = [row for row in optimizer.rows if row.rates_differ()]
        if rows and optimizer.is_joint:
            rates = [f"{step.rates[0]:.4g}" for step in rows[0].steps]
            each = per_rank(rows[0].ranks, rates)
            yield Finding(
                "rates-differ",
                rows[0].at,
                seen=f"From step {rows[0].count} on the learning rates differ: {each}",
                fine="" if optimizer.drifts else "the weights still agree at the end",
                comes_from=step_of_schedule(run) or line_of_rate(run, optimizer, rows[0]),
            )


def line_of_rate(run, optimizer, row):
    """The rate in the constructor, what ReduceLROnPlateau got, or the script's own assignment."""
    if row.n == 0:
        by_rank = rank_in_call(optimizer.parameters.made)
        changed = by_rank or guarded_change(files_of(run))  # load_state_dict(), for example
        if changed:
            return changed
        own = line_made(rate_of(optimizer.parameters.made)) or optimizer.parameters.made
        return line_of_assigned(entry_assigned("lr", files_of(run))) or own
    values = []
    for rank in row.ranks:
        values.append([event.value for event in rank.all(Plateau)])
    if any(own != values[0] for own in values):
        return line_of_value(run, run.all(Plateau)[0].at)
    # A class may keep the rate in its own `self.lr`, too: what the optimizer gets is an entry.
    files = files_of(run)
    return line_of_assigned(assignment_of("lr", files) or entry_assigned("lr", files))


def line_of_assigned(line):
    """What makes the rate that this line assigns differ, or this line."""
    return running_count(line) or guard_of([line]) or line


def line_of_value(run, at):
    """The dist.reduce() of the value that ReduceLROnPlateau gets in this line, or this line."""
    value = argument_of(at, ("step",), 0, "metrics")
    return reduced_to_one(line_made(value), files_of(run)) or at


def step_of_schedule(run):
    """The `if` by the rank around the step of a schedule that only some ranks make."""
    gone = Counter()
    for rank in run.ranks:
        gone.update({event.at for event in rank.all(Scheduled)})
    for at, count in gone.items():
        if count < len(run.ranks):
            return guard_of([at]) or at
    return ""


def different_decisions(run):
    """ReduceLROnPlateau decides on each rank by itself, so each has to get the same value."""
    joint = any(optimizer.is_joint for optimizer in run.optimizers)
    for team in run.teams if joint else ():
        for met in paired(run, [rank.all(Plateau) for rank in team]):
            values = [event.value for event in met]
            if len({str(value) for value in values}) == 1:
                continue  # all are 0 or nan, perhaps
            if None in values or all(is_close(value, values[0], 1e-4) for value in values):
                continue
            each = per_rank(team, [f"{value:.4g}" for value in values])
            yield Finding(
                "rates-differ",
                met[0].at,
                seen=f"ReduceLROnPlateau got a different value on each rank: {each}",
                fine="the ranks still make the same decisions",
                comes_from=line_of_value(run, met[0].at),
            )


def different_modes(run):
    """In most steps DDP's model is in train mode on one rank, and in eval mode on another."""
    for optimizer in run.optimizers:
        odd = []
        for row in optimizer.rows:
            modes = {bool(work.forwards) for work in row.works}
            averaged = all(map(averages, row.works))
            if len(modes) > 1 and averaged:
                odd.append(row)
        if len(odd) > 2:
            trained = [work for work in odd[0].works if work.forwards]
            line = call_of("eval", files_of(run))
            seen = f"In {len(odd)} steps the model was in eval mode on some ranks"
            yield Finding(
                "modes-differ",
                trained[0].forwards[0].at,
                seen=f"{seen}, and in train mode on the others",
                fine="a rank is meant to train without dropout",
                comes_from=line,
            )


def averages(work):
    return any(event.averages for event in work.backwards)


def different_numbers_of_steps(run):
    """As many averaged gradients on each rank of a team, and not as many steps of them."""
    for team in run.teams:
        totals = [rank.all(Totals)[-1] for rank in team if rank.says(Totals)]
        if len(totals) < len(team) or run.is_loose:
            continue
        steps = [event.steps for event in totals]
        averaged = {event.averaged for event in totals}
        if len(set(steps)) > 1 and len(averaged) == 1 and min(averaged) > 2:
            most = team[steps.index(max(steps))]
            taken = per_rank(team, [f"took {count} steps" for count in steps])
            at = most.steps[0].step.at
            guard = guard_of([at])
            yield Finding(
                "steps-differ",
                at,
                seen=f"Every rank averaged {min(averaged)} gradients, but {taken}",
                fine="the weights are sent to all ranks afterwards",
                comes_from=guard or condition_around(at),
                role="" if guard else "skip",
            )


def not_wrapped(run):
    """Gradients differ, and nothing averages them: neither DDP nor the script."""
    for optimizer in run.optimizers:
        served = optimizer.is_in_ddp or optimizer.averaged_ever
        sharded = not optimizer.parameters.plain  # as FSDP does it
        if served or sharded or not optimizer.first_difference or not optimizer.drifts:
            continue
        busy = 0
        for row in optimizer.rows:
            busy += any(exchanges_much(call) for call in row.works[0].collectives)
        if busy > len(optimizer.rows) / 2 or len(optimizer.rows) < 2:
            continue  # weights or activations are exchanged
        parts = [epoch.began.parts for epoch in run.ranks[0].epochs if epoch.trained]
        # Whoever divides the data means one model. Folds and ensembles do not divide it so.
        divides = max(parts, default=1) > 1
        unwrapped = not run.all(Wrapped) and not run.is_loose
        one_model = unwrapped and not run.has_own_models
        on_gpus = wraps_on_gpus_only(files_of(run)) if one_model else ""
        certain = unwrapped and (divides or on_gpus)
        seen = f"In {len(optimizer.rows)} steps nothing averages the gradients of this model"
        yield Finding(
            "not-wrapped",
            optimizer.rows[0].at,
            seen=f"{seen}: the script calls DDP on GPUs only" if on_gpus else seen,
            fine="" if certain else "each rank is meant to train its own model",
            comes_from=on_gpus or model_made(optimizer.parameters.made),
            role="gpu" if on_gpus else "",
        )


def exchanges_much(call):
    return call.numel > 16 and call.op != "broadcast"


# ------------------------------------------------------------------ the size of the gradient


def not_the_mean(run):
    """The gradient that is applied, in units of the mean of the ranks' gradients."""
    for optimizer in run.optimizers if not run.is_loose else ():
        world = len(optimizer.rows[0].ranks)
        times = {}  # of each row that was looked at
        for row in optimizer.rows:
            if all(work.own and work.applied for work in row.works):
                times[row] = times_the_mean(row)
        for wrong in (world, 1 / world):
            odd = [row for row, factor in times.items() if is_close(factor, wrong)]
            # A single step may agree by chance.
            if world > 1 and len(odd) > max(1, len(times) / 2):
                seen = f"In {len(odd)} of {len(times)} steps whose gradients were compared"
                seen += f" the gradient is {wrong:g} times the"
                at = line_of_average(odd[0], optimizer)
                origin = "" if at == odd[0].at else at
                role = ""
                passes = odd[0].works[0].backwards
                if is_close(passes[0].factor * len(passes), wrong):
                    role = "loss"
                    origin = loss_line(passes[0].at, files_of(run))
                    if wrong < 1:
                        divided = line_over_world(passes[0].at)
                        origin = divided or line_over_world(origin, above=False) or origin
                yield Finding(
                    "not-the-mean",
                    at,
                    seen=f"{seen} mean of the ranks' gradients of mean losses",
                    fine="the learning rate is chosen for this gradient",
                    comes_from=origin,
                    role=role,
                )


def line_of_average(row, optimizer):
    """Where the script itself averages: the last large call after a backward pass."""
    work = row.works[0]
    calls = []
    for call in work.collectives:
        if call.numel > 1 and call.when.time > work.backwards[0].when.time:
            calls.append(call)
    if not calls:
        return row.at
    return calls[0].at if optimizer.is_in_ddp else calls[-1].at


def times_the_mean(row):
    """None: it is not known, or not one number for all parameters."""
    passes = row.works[0].added
    factors = {event.factor for event in passes}
    if len(factors) != 1 or None in factors or not all(event.mean for event in passes):
        return None
    factor = passes[0].factor * len(passes)
    if len(passes) > 1 and not is_close(factor, 1):
        return None  # accumulated losses of another weight
    ratios = []
    for number, applied in enumerate(row.works[0].applied):
        own = [work.own[number] for work in row.works]
        largest = max(map(abs, own))
        mean = sum(own) / len(own)
        # Otherwise they almost cancel out, or a rank has no gradient at all.
        if abs(mean) > 0.05 * largest / len(own) and min(map(abs, own)) > 0.01 * largest:
            ratios.append(applied / mean)
    if ratios and all(is_close(ratio, ratios[0], 0.001) for ratio in ratios):
        return ratios[0] * factor
    return None


def is_close(value, wanted, tolerance=0.01):
    return value is not None and abs(value - wanted) < tolerance * abs(wanted)


def unequal_counts(run):
    """The mean losses of the ranks are over different numbers of targets, in most passes."""
    for optimizer in run.optimizers:
        if not optimizer.is_joint:
            continue
        met = []  # (row, the passes of the ranks, their counts)
        for row in optimizer.rows:
            for passes in zip(*(work.backwards for work in row.works)):
                counts = unlike_counts(passes)
                if counts:
                    met.append((row, passes, counts))
        uneven = [one for one in met if imbalance(one[2]) > 1.001]
        # The last batch of an epoch is often uneven.
        if not uneven or len(uneven) < len(met) / 2:
            continue
        row, passes, numbers = max(uneven, key=lambda one: imbalance(one[2]))
        counts = per_rank(row.ranks, [f"{number:g}" for number in numbers])
        seen = f"In step {row.count} the ranks took mean losses over different counts ({counts})"
        yield Finding(
            "unequal-counts",
            passes[0].at,
            seen=f"{seen}, and so they are in {len(uneven)} of {len(met)} passes",
            fine="the small difference does not matter",
            comes_from=line_of_counts(run, passes),
        )


def line_of_counts(run, passes):
    """The line of the loss, or that of the first term in which the counts differ."""
    line = loss_line(passes[0].at, files_of(run))
    terms = list(zip(*(event.terms for event in passes)))
    for number, counts in enumerate(terms):
        if all(counts) and imbalance([abs(count) for count in counts]) > 1.001:
            return term_made(line, number, len(terms)) or line
    return line


def unlike_counts(passes):
    """The numbers of targets on the ranks, or an empty list if they are not known.

    In a sum of terms those of the first term in which they differ. A term may have a weight, and
    then its numbers are off by one factor on all ranks.
    """
    if all(event.targets for event in passes):
        return [event.targets for event in passes]
    if len({len(event.terms) for event in passes}) != 1:
        return []
    known = []
    for counts in zip(*(event.terms for event in passes)):
        if all(counts):
            known.append([abs(count) for count in counts])
    unlike = [counts for counts in known if imbalance(counts) > 1.001]
    return [*unlike, *known, []][0]


def imbalance(counts):
    return max(counts) / min(counts)


def accumulation_weight(run):
    """One search, two texts: the micro-batches of a step do not add up to a mean."""
    for optimizer in run.optimizers:
        works = []
        for row in optimizer.rows:
            work = row.works[0]
            # LBFGS: passes belong to other steps. With --short the rest of a pass is missing.
            if work.backwards and not work.step.closure and not work.carries:
                works.append(work)
        factors = set()
        lines = set()
        for work in works:
            for event in work.added:
                known = event.factor is not None and event.mean
                factors.add(round(event.factor, 6) if known else 0)
                lines.add(event.at)
        if not optimizer.is_joint or not factors or 0 in factors or len(lines) != 1:
            continue  # more than one loop, or losses that are no means
        if len(factors) > 1:
            yield from other_sums(works)
            continue
        factor = factors.pop()
        usual = Counter(len(work.added) for work in works).most_common(1)[0][0]
        odd = [work for work in works if len(work.added) != usual]
        if usual > 1 and not is_close(factor * usual, 1):
            each = f"A step adds up {usual} losses, each times {factor:.4g}"
            yield Finding(
                "accumulation-weight",
                works[0].step.at,
                seen=f"{each}: {factor * usual:.3g} times the mean",
                fine="the learning rate is chosen for this sum",
                comes_from=works[0].backwards[0].at,
            )
        elif odd:  # also a rest that is carried over into the next epoch
            count = len(odd[0].added)
            seen = f"Step {odd[0].count} adds up {count} losses, the others {usual}"
            yield Finding(
                "accumulation-weight",
                odd[0].step.at,
                seen=f"{seen}, and each is multiplied by {factor:.4g}",
                fine="this step is meant to have a different weight",
                comes_from=odd[0].backwards[0].at,
            )


def other_sums(works):
    """The factor changes between steps, and the factors of most steps add up to 1."""
    odd = []
    for work in works:
        total = sum(event.factor for event in work.added)
        if not is_close(total, 1):
            odd.append((work, total))
    parts = max(len(work.added) for work in works)
    if parts > 1 and 0 < len(odd) <= 2 * len(works) / 3:
        work, total = odd[0]
        count = len(work.added)
        seen = f"Step {work.count} adds up {count} losses, whose factors add up to {total:.3g}"
        yield Finding(
            "accumulation-weight",
            work.step.at,
            seen=f"{seen}, as in {len(odd)} of {len(works)} steps",
            fine="these steps are meant to have a different weight",
            comes_from=work.backwards[0].at,
        )


def clip_scaled(run):
    """The norm is that of the gradients times the scale of the GradScaler."""
    for event in run.ranks[0].all(Clipped):
        if event.scale > 1:
            yield Finding(
                "clip-scaled",
                event.at,
                seen=f"Gradients are clipped while they are multiplied by {event.scale:g}",
                fine="the limit is multiplied by the scale, too"
                if event.limit >= event.scale
                else "",
                comes_from=event.at,
            )


def zero_gradients(run):
    """In no step that was looked at is there a gradient that is not zero."""
    for optimizer in run.optimizers:
        looks = []
        for row in optimizer.rows:
            if row.steps[0].gradients:
                looks.append(row.steps[0].gradients)
        some = any(number not in (0, -1) for look in looks for number in look)
        if len(looks) > 2 and optimizer.parameters.plain and not some:
            yield Finding(
                "zero-gradients",
                optimizer.rows[0].at,
                seen=f"In {len(looks)} steps whose gradients were compared, all were 0 or missing",
                fine="there is nothing to train yet",
                comes_from=line_without_gradients(run, optimizer, looks),
            )


def line_without_gradients(run, optimizer, looks):
    """The optimizer that has other parameters than DDP, or zero_grad() after backward()."""
    missing = all(number == -1 for look in looks for number in look)
    if missing and run.all(Wrapped) and not optimizer.is_in_ddp:
        return optimizer.parameters.made
    work = optimizer.rows[0].works[0]
    if not work.backwards:
        return ""
    file, first = parted(work.backwards[-1].at)
    step_file, last = parted(work.step.at)
    lines = []
    for name, call in calls_of(("zero_grad",), {file}):
        if first < call.lineno < last and file == step_file:
            lines.append(f"{name}:{call.lineno}")
    return lines[0] if len(lines) == 1 else ""


def not_finite(run):
    """The first step in which a gradient or a loss is nan or inf, and whose loss was so."""
    for optimizer in run.optimizers:
        row = next((row for row in optimizer.rows if is_bad(row)), None)
        if row is None:
            continue
        bad = {}  # the first bad loss of each rank that has one
        for rank, work in zip(row.ranks, row.works):
            for event in work.backwards:
                if not is_number(event.loss):
                    bad.setdefault(rank.number, event)
        if len(bad) == len(row.ranks):
            what = "the loss of every rank was nan or inf"
        elif bad:
            what = f"the loss of rank {short(bad)} was nan or inf, and that of no other rank"
        else:
            what = "gradients were nan or inf, and no loss was so"
        yield Finding(
            "not-finite",
            at=next(iter(bad.values())).at if bad else row.at,
            seen=f"In step {row.count} {what}",
            fine="such steps are skipped, as by a GradScaler",
            comes_from=loss_of_one(run, bad, row),
        )


def loss_of_one(run, bad, row):
    """The line of the loss. If that of every rank is bad, the weights or the data may be, too."""
    one = len(bad) == 1 < len(row.ranks)
    return loss_line(next(iter(bad.values())).at, files_of(run)) if one else ""


def is_bad(row):
    losses = [event.loss for work in row.works for event in work.backwards]
    return not row.is_finite or not all(map(is_number, losses))


def is_number(loss):
    return loss is None or math.isfinite(loss)


# ------------------------------------------------------------------ models that are evaluated


def different_models(run):
    """The ranks bring results together that models of other buffers or weights made."""
    for team in run.teams:
        yield from evaluated_models(run, team)
        yield from further_models(run, team)


def evaluated_models(run, team):
    for met in paired(run, [rank.evaluations for rank in team]):
        models = [evaluation.model for evaluation in met]
        names = models[0].names
        differ = differing_names(models)
        if not differ or any(model.names != names for model in models):
            continue
        joint = any(optimizer.is_joint for optimizer in run.optimizers)
        # A rank's own head is a small part of a model.
        most = models[0].trained or len(differ) > len(names) / 2
        # If each rank evaluates all of the data, one rank's result may be used.
        orders = {evaluation.orders for evaluation in met}
        by_hand = met[0].orders == () and not met[0].reading
        certain = joint and most and (len(orders) > 1 or by_hand)
        what = "buffers" if models[0].trained else "buffers or weights"
        role, origin = line_of_buffers(run) if models[0].trained else line_of_copy(run, models[0])
        yield Finding(
            "buffers-differ",
            models[0].at,
            # Of a trained model only the buffers were compared.
            seen=f"The ranks added results of different {what} ({short(differ, 2)})",
            fine="" if certain else "one rank's result is used, or each has its own model",
            comes_from=origin,
            role=role,
        )


def line_of_buffers(run):
    """-> a role, and the only call of DDP, if it is told not to send buffers.

    Without DDP it is the average of the weights that leaves the buffers out.
    """
    wrapped = run.all(Wrapped)
    if not wrapped:
        return "averaged", average_without_buffers(files_of(run))
    unsent = {event.at for event in wrapped if not event.buffers}
    return "", unsent.pop() if len(unsent) == len(lines_of_ddp(run)) == 1 else ""


def further_models(run, team):
    """A teacher, or an average of the weights, next to the trained model."""
    others = []
    for rank in team:
        others.append([one for one in rank.all(Computes) if not one.trained and not one.first])
    for models in paired(run, others):
        if differing_names(models) and len({model.at for model in models}) == 1:
            role, origin = line_of_copy(run, models[0])
            yield Finding(
                "buffers-differ",
                models[0].at,
                seen="A second model is used, and its weights differ between the ranks",
                fine="each rank is meant to have its own",
                comes_from=origin,
                role=role,
            )


def line_of_copy(run, model):
    """-> a role, and the line by which this further model differs between the ranks.

    A condition changes it on some ranks, it is copied before DDP sends the weights, each rank has
    made it with random weights of its own, or an average changes it.
    """
    files = files_of(run)
    averaged = averaged_apart(files)
    guarded = guarded_change(files) or (guard_of([averaged]) if averaged else "")
    if guarded:
        return "second", guarded
    copied = only_call(("deepcopy", "AveragedModel"), files)
    if copied and is_before_ddp(run, copied) and draws_apart(run, copied, model) is not False:
        return "second", copied
    made_in = "" if copied else further_model_made(model.at)
    if made_in and draws_apart(run, made_in, model):
        return "made", made_in
    return "second", averaged


def is_before_ddp(run, line):
    """Is this line in the function that has the only call of DDP, and above that call?"""
    wrapped = lines_of_ddp(run)
    if len(wrapped) != 1:
        return False
    file, number = parted(wrapped.pop())
    same = function_around(file, number) is function_around(*parted(line))
    return same and parted(line)[1] < number


def draws_apart(run, line, model):
    """Do the ranks draw different weights in this line? None: their seeds do not tell it.

    The last seed above the line counts, in its function or in one that leads to it. Without any
    seed every process draws its own numbers.
    """
    rows = []  # of each rank: the seeds of PyTorch before the model computes
    for rank in run.ranks:
        first = next((one for one in rank.all(Computes) if one.at == model.at), None)
        until = first.when.time if first else math.inf
        events = [event for event in rank.all(Seeded) if event.when.time < until]
        rows.append([event for event in events if event.generator == "torch"])
    if not any(rows):
        return True
    last = None
    for events in zip(*rows):
        if any(is_above(one, line) for one in (events[0].at, *events[0].called_from)):
            last = events
    if last is None or len(set(map(len, rows))) > 1:
        return None
    return len({event.seed for event in last}) > 1


def differing_names(models):
    columns = zip(models[0].names, *(model.state for model in models))
    return [name for name, *prints in columns if len(set(prints)) > 1]


def paired(run, lists):
    """The n-th of each rank, but not if one rank has more of them in a run that ended well."""
    if len(set(map(len, lists))) > 1 and run.ended_well:
        return []
    return list(zip(*lists))


# ------------------------------------------------------------------ memory, batches, schedules


def memory_grows(run):
    """In each of ten steps one more graph of a forward pass is in memory."""
    for rank in run.ranks:
        counts = [work.step.graphs for work in rank.steps]
        grown = steps_in_which_it_grows(counts)
        # Within an accumulation graphs live for some steps: only ten in a row tell.
        if grown < 10:
            continue
        keepers = rank.all(Keeps)
        name = f" in {keepers[0].name!r}" if keepers else ""
        seen = f"In {grown} steps in a row rank {rank.number} kept one more graph{name}"
        yield Finding(
            "memory-grows",
            at=keepers[0].at if keepers else rank.steps[-1].step.at,
            seen=f"{seen}, up to {max(counts)}",
            fine="what is kept is needed later",
            comes_from=keepers[0].at if keepers else "",
        )
    yield from memory_of_gpus_grows(run)


def memory_of_gpus_grows(run):
    """Without a graph, as for outputs that are kept: at each of ten looks there is more."""
    for rank in run.ranks:
        bytes_used = [work.step.memory for work in rank.steps if work.step.memory]
        grown = steps_in_which_it_grows(bytes_used)
        if grown < 10 or bytes_used[-1] < bytes_used[0] + 10_000_000:
            continue
        megabytes = (bytes_used[-1] - bytes_used[0]) / 1e6
        yield Finding(
            "memory-grows",
            rank.steps[-1].step.at,
            seen=f"At {grown} looks rank {rank.number} used more memory, {megabytes:.0f} MB in all",
            fine="what is kept is needed later",
        )


def steps_in_which_it_grows(counts):
    """The longest stretch of steps: an epoch may end it, and free what was kept."""
    longest = 0
    stretch = 1
    for earlier, later in zip(counts, counts[1:]):
        stretch = stretch + 1 if later > earlier else 1
        longest = max(longest, stretch)
    return longest


def batch_grows(run):
    """With --alone: a step takes more samples than on one rank, and the rate is the same.

    Without it: the script's own words call its batch that of all ranks.
    """
    many = facts(run)
    one = run.alone
    called = called_global(run)
    if not many:
        return
    if one and many["rate"] == one["rate"] and many["samples"] > one["samples"]:
        seen = f"A step takes {many['samples']} samples, and on one rank {one['samples']}"
        yield Finding(
            "batch-grows",
            called[0].at if called else many["at"],
            seen=f"{seen}, and the rate is {many['rate']:g} in both",
            fine="" if called else "you want larger steps with the same rate",
            comes_from=loader_of_training(run),
        )
    elif called and not one:
        seen = f"{who_calls(called[0].at)} it the batch of all ranks"
        seen += f", but each rank takes {called[0].number}"
        yield Finding(
            "batch-grows",
            called[0].at,
            seen=f"{seen} samples, {many['samples']} together",
            fine="the batch of one rank is meant",
            comes_from=loader_of_training(run) or batch_given(called[0].at, files_of(run)),
            role="" if loader_of_training(run) else "batch",
        )


def who_calls(line):
    """The words of the script that call a number something: a flag, a variable, or a comment."""
    code = code_of(line)
    flag = re.search(r"add_argument\([^)]*?(--?[\w-]+)", code)
    name = re.match(r"[\w.]+", code)
    what = ""
    if flag:
        what = f"flag {flag[1]}"
    elif name:
        what = f"variable {name[0]}"
    if GLOBAL.search(what):
        return f"The name of the {what} calls"
    return f"The words at the {what} call" if what else "The words here call"


def first_training(run):
    """The event with which the first epoch of training began, or None."""
    epochs = [epoch for epoch in run.ranks[0].epochs if epoch.trained]
    return epochs[0].began if epochs else None


def loader_of_training(run):
    began = first_training(run)
    return began.made if began else ""


def batch_of_training(run):
    """What the training loader gets as its batch size, as a Value, or None."""
    began = first_training(run)
    callers = began.made_from if began else ()
    return argument_of(loader_of_training(run), ("DataLoader",), 1, "batch_size", callers=callers)


def rate_grows(run):
    """The rate is multiplied by the number of ranks, and a rank's batch is divided by it."""
    for optimizer in run.optimizers:
        rate = rate_of(optimizer.parameters.made)
        batch = batch_of_training(run)
        if rate is None or batch is None or not optimizer.is_joint:
            continue
        times = times_world(rate)
        divided = over_world(batch)
        if times == 1 and divided and not over_world(rate):
            seen = "The rate is multiplied by the number of ranks, and the batch is divided by it"
        elif times == 2 and not over_world(rate):
            seen = "The rate is multiplied by the number of ranks twice"
        else:
            continue
        yield Finding(
            "rate-grows",
            optimizer.parameters.made,
            seen=seen,
            fine="the rate is meant for the batch of one rank",
            comes_from=line_of_product(rate),
        )


def line_of_product(rate):
    """The line with the factor, of the names that lead to the rate."""
    while rate is not None and not is_product(rate):
        following = made(rate) if is_name(rate.node) else returned(rate)
        rate = following if following != rate else None
    return rate.line if rate is not None else ""


def is_product(value):
    return times_world(value, depth=0) > 0


def called_global(run):
    """Numbers that the script calls the batch of all ranks, where they are that of each rank."""
    each = Counter()
    for rank in run.ranks:
        for work in rank.steps:
            each[work.samples] += 1
    usual = each.most_common(1)[0][0] if each else 0
    return [event for event in run.ranks[0].all(GlobalBatch) if event.number == usual > 1]


def schedule_length(run):
    """Made for n steps, it went n times or one n-th of that: n is the number of ranks."""
    world = len(run.ranks)
    if run.code != 0 or run.all(Raised) or run.all(Cut):
        return
    for event in run.ranks[0].all(Scheduled):
        # Schedules per epoch are short, and two short numbers agree by chance.
        if event.gone < 10 or not event.length or event.rises:
            continue
        if is_near(event.length, event.gone * world):
            part = "half-way" if world == 2 else f"after 1/{world} of its length"
            seen = f"{event.name} is as long as the training of one process, {event.length} steps."
            seen += f" With {world} ranks each rank advances it {event.gone} times, and so it stops"
            seen += f" {part}"
            origin = line_of_length(event, run) or event.made
            role = "made" if origin == event.made else ""
        elif is_near(event.length * world, event.gone):
            part = "half-way" if world == 2 else f"after 1/{world} of it"
            seen = f"{event.name} is built for {event.length} steps, but each rank advances it"
            seen += f" {event.gone} times, and so it ends {part} through the training"
            # Accelerate makes one step per rank, and the script calls step() once.
            once = event.gone > 1.5 * len(run.ranks[0].steps)
            origin = once and line_of_length(event, run) or event.at
            roles = {event.made: "prepared_made", event.at: "step"}
            role = roles.get(origin, "prepared")
        else:
            continue
        yield Finding(
            "schedule-length",
            event.at,
            seen=seen,
            fine="the training goes on in a later run, or the rate is meant to end early",
            comes_from=origin,
            role=role,
        )


def line_of_length(event, run):
    """The line that computes how long the schedule is."""
    given = argument_of(event.made, (), None, *LENGTHS)
    given = given or argument_of(event.made, ("CosineAnnealingLR",), 1)
    first = made(given) if given is not None else None
    inner = returned(first) if first is not None else None
    return (inner.line if inner else line_made(given)) or length_assigned(files_of(run))


def is_near(one, other):
    return abs(one - other) < 0.08 * one


JUDGES = [
    unused_parameters,
    different_sizes,
    different_gradients,
    different_rates,
    different_decisions,
    different_weights,
    different_untrained,
    different_modes,
    different_numbers_of_steps,
    not_wrapped,
    not_the_mean,
    unequal_counts,
    accumulation_weight,
    clip_scaled,
    zero_gradients,
    not_finite,
    different_models,
    memory_grows,
    batch_grows,
    rate_grows,
    schedule_length,
]

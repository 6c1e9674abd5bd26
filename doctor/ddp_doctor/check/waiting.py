"""The run: who waited for whom, in which order, who failed before joining, who wrote what."""

import re
from collections import Counter, defaultdict
from pathlib import Path

from ..run.events import (
    Asked,
    Backward,
    Collective,
    Destroyed,
    Ended,
    EpochBegan,
    EpochEnded,
    Forward,
    Joined,
    Joining,
    Raised,
    Wrote,
)
from ..run.facts import op_of, state
from ..run.words import per_rank, short
from .changed import condition_around
from .findings import Finding
from .order import line_of_subset, own_source, part_of_data
from .source import (
    RANK,
    assignment_of,
    code_of,
    files_of,
    guard_of,
    has,
    loop_around,
    loops_around,
    parted,
    the_only,
)
from .values import decision, guarded_call, reduced_to_one

# Errors that follow from what another rank did.
LOST = re.compile("closed by peer|reset by peer|timed? ?out|broken pipe|connection|preamble", re.I)
STOPS = ("should_stop", "should_training_stop")  # they end the loops of Lightning and the Trainer
NOTHING = (None, None, None)  # no rank, no other rank, no call
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "wait")


def trains(rank):
    """Does it wait in a training step?"""
    return isinstance(rank.waits, Backward) or getattr(rank.waits, "training", False)


def stuck_ranks(run):
    """The ranks that waited in vain, if that is how the run ended, and nobody crashed."""
    if run.ended_well or run.end == "limit" or run.is_loose:
        return []
    for rank in run.ranks:
        crashed = any(not LOST.search(event.error) for event in rank.all(Raised))
        said = rank.waits or rank.says(Ended) or rank.says(Destroyed)
        # After a crash, or a kill without a word, the others wait rightly.
        if crashed or (run.end == "ended" and not said):
            return []
    return [rank for rank in run.ranks if rank.waits]


def waited_in_vain(run):
    """One search, three findings: all send, a rank left the loop, or only some ranks call."""
    stuck = stuck_ranks(run)
    if not stuck:
        return
    states = sentence_of(per_rank(run.ranks, map(state, run.ranks)))
    if len(stuck) > 1 and all(map(sends, stuck)):
        yield Finding(
            "all-send-first",
            stuck[0].waits.at,
            seen=f"{states}. None of them receives",
            comes_from=stuck[0].waits.at,
        )
    elif has_left(run, stuck) or left_behind(run, stuck):
        training = [rank for rank in stuck if trains(rank)] or left_behind(run, stuck)
        longer = longer_loader(run)
        left = parted_by(run, training[0])
        skipped = skipped_by(run, training[0])
        yield Finding(
            "uneven-steps",
            training[0].waits.at,
            seen=f"{states}. A rank has left the loop that the others are in",
            comes_from=longer or left or skipped,
            role=role_of_loader(run, longer) if longer else role_of_stop(left, skipped),
        )
    else:
        yield only_some_call(run, stuck, states)


def sentence_of(text):
    return text[:1].upper() + text[1:]


def met_another_call(run):
    """A call that only some ranks make met another call, and a rank raised for that."""
    if not run.ended_well and run.all(Raised) and not stuck_ranks(run):
        for rank, call in unmatched_calls(run):
            origin = guard_of([call.at, *callers_of(call, run)])
            if origin:
                yield Finding(
                    "one-rank-communicates",
                    call.at,
                    seen=f"Rank {rank.number} made the call {op_of(call)} here, which no other rank"
                    " ever made, and so it met a different call",
                    comes_from=origin,
                )


def unmatched_calls(run):
    """Of the first calls of the ranks that differ: those of a place that one rank alone came to.

    The calls that they met are of places to which this rank came as well.
    """
    calls = [shared_calls(rank) for rank in run.ranks]
    for met in zip(*calls):
        if len({place_of(call) for call in met}) == 1:
            continue
        for rank, own, call in zip(run.ranks, calls, met):
            others = [known for known in calls if known is not own]
            alone = not any(count(known, place_of(call)) for known in others)
            if alone and all(count(own, place_of(other)) for other in met):
                yield rank, call
        return


def parted_by(run, inner):
    """The decision by which another rank left a loop in which this one still is."""
    for rank in run.ranks:
        if rank is inner:
            continue
        outside = lines_in(rank.waits, run) if rank.waits else []
        found = decision(lines_in(inner.waits, run), outside)
        if found:
            return reduced_to_one(found, files_of(run)) or found
    for name in STOPS:
        line = assignment_of(name, files_of(run))
        if line:
            return guard_of([line]) or line
    return ""


def skipped_by(run, inner):
    """The condition by which a rank skips some of the passes that this one makes."""
    for line in lines_in(inner.waits, run):
        found = condition_around(line)
        loops = loops_around(line)
        if found and loops and loops[-1].lineno < parted(found)[1]:
            return found
    return ""


def lines_in(call, run):
    return [call.at, *callers_of(call, run)]


def asked_by_some(run):
    """A line that asks a framework for a collective, and that only some ranks have reached."""
    counts = []
    for rank in run.ranks:
        counts.append(Counter(event.at for event in rank.all(Asked)))
    for event in run.all(Asked):
        if len({count[event.at] for count in counts}) > 1:
            origin = guard_of([event.at, *event.called_from])
            if origin:
                return event.at, origin
    return "", ""


def asked_apart(run):
    """Some ranks asked a framework for a collective, and the run did not hang."""
    line, origin = asked_by_some(run)
    if line and run.end == "ended" and not stuck_ranks(run):
        yield Finding(
            "one-rank-communicates",
            line,
            seen="Only some ranks ask the framework here to reduce a value over all ranks",
            fine="the other ranks ask for the same value in another line",
            comes_from=origin,
        )


def only_some_call(run, stuck, states):
    """The call that a rank makes and another one does not."""
    line, origin = asked_by_some(run)
    if line:
        return Finding("one-rank-communicates", line, seen=states, comes_from=origin)
    guarded = [rank for rank in stuck if guard_of(lines_in(rank.waits, run))]
    first = guarded[0] if len(guarded) == 1 else min(stuck, key=is_usual_place)
    call = first.waits
    places = {op_of(rank.waits) + rank.waits.at for rank in stuck}
    alike = len(places) == 1 and len(stuck) == len(run.ranks)
    if alike or (is_usual_place(first) and first not in guarded):
        # Perhaps an earlier call of one rank has met a later one of another.
        one, other, further = further_call(run)
        if further is not None:
            call = further
            alike = False
            states += words_of(one, other, call)
    guard = guard_of(lines_in(call, run))
    one, other, answered = answered_by_another(run) if not guard else NOTHING
    if answered is not None and answered is not call:
        call = answered
        guard = guard_of(lines_in(call, run))
        states += words_of(one, other, call)
    source = own_source(files_of(run)) if alike else ""
    left = parted_in_loops(run, stuck)
    role = "source" if source else role_of_stop(left, "")
    return Finding(
        "one-rank-communicates",
        call.at,
        seen=states,
        fine="the network or a process is broken" if alike else "",
        comes_from=guard or source or left,
        role="" if guard else role,
    )


def words_of(one, other, call):
    return f". Rank {one} made the call {op_of(call)} in {call.at}, and rank {other} did not"


def role_of_stop(left, skipped):
    """Do all ranks test whether to leave the loop, or only some of them?"""
    if not left:
        return "skip" if skipped else ""
    code = code_of(left)
    by_rank = code.startswith(("if ", "elif ", "while ")) and RANK.search(code)
    return "tested" if by_rank or guard_of([left]) else "stop"


def answered_by_another(run):
    """A call under an `if` by the rank that met another call, so that its rank went on."""
    one, other, further = further_call(run)
    if further is None or not guard_of(lines_in(further, run)):
        return NOTHING
    return one, other, further


def parted_in_loops(run, stuck):
    """The only decision by which a rank has left a loop of another one."""
    lines = {parted_by(run, rank) for rank in stuck} - {""}
    return the_only(lines)


def callers_of(call, run):
    """A pass in a line tells only once what led to it."""
    for event in [call, *run.all((Forward, Backward))]:
        lines = getattr(event, "called_from", [])
        if lines and event.at == call.at:
            return lines
    return []


def further_call(run):
    """-> (rank, other rank, the first call that the one has made more often than the other).

    In the same place the other one made a call that both have made: it went on without this one.
    """
    calls = [shared_calls(rank) for rank in run.ranks]
    for met in zip(*calls):
        names = [place_of(call) for call in met]
        if len(set(names)) == 1:
            continue
        for rank, own, call, name in zip(run.ranks, calls, met, names):
            for other, others, its_name in zip(run.ranks, calls, names):
                here = count(own, name) > count(others, name)
                there = count(others, its_name) > count(own, its_name)
                if here and not there:
                    return rank.number, other.number, call
        break
    return NOTHING


def shared_calls(rank):
    """The calls that wait for all ranks."""
    calls = []
    for event in rank.events:
        if isinstance(event, Collective):
            shared = event.whole_group and event.op not in POINT_TO_POINT
        elif isinstance(event, Forward):
            shared = event.sends
        else:
            shared = isinstance(event, Backward) and event.averages
        if shared:
            calls.append(event)
    return calls


def place_of(call):
    return op_of(call), call.at


def count(calls, place):
    return sum(place_of(call) == place for call in calls)


def longer_loader(run):
    """The constructor of the loader with which a rank trains on more batches than another."""
    loaders = []
    for rank in run.ranks:
        epochs = [epoch.began for epoch in rank.epochs if epoch.trained and epoch.began.batches]
        loaders.append(epochs[-1] if epochs else None)
    if None in loaders or len({began.batches for began in loaders}) == 1:
        return ""
    longest = max(loaders, key=lambda began: began.batches)
    return part_of_data(longest, loaders) or longest.made


def role_of_loader(run, line):
    """Is it the constructor of a loader, or does it take or count the part of a rank before?"""
    made = {event.made for event in run.all(EpochBegan)}
    if line in made:
        return "loader"
    subsets = {subset for event in run.all(EpochBegan) for subset, _ in event.subsets}
    counts = [line_of_subset(subset, False, ()) for subset in subsets]
    return "share" if ("share", line) in counts else "part"


def is_usual_place(rank):
    """A rank in a step or in a barrier waits rightly: the other one tells more."""
    return trains(rank) or op_of(rank.waits) == "barrier"


def sends(rank):
    """Does it wait for a message to be taken?"""
    calls = [call.op for call in rank.all(Collective) if call.op != "wait"]
    return bool(calls) and calls[-1] in ("send", "isend")


def has_left(run, stuck):
    """Some ranks wait in a training step, and the others have ended or have had less data."""
    training = [rank for rank in stuck if trains(rank)]
    others = [rank for rank in run.ranks if rank not in training]
    left = all(is_outside(rank, training, run) for rank in others)
    counts = set()
    for rank in run.ranks:
        whole = [epoch for epoch in rank.epochs if epoch.trained and epoch.whole]
        counts.add(tuple(len(epoch.batches) for epoch in whole))
    return bool(training) and bool(others) and (left or len(counts) > 1)


def is_outside(rank, training, run):
    """Has it ended, or does it wait in a barrier after all loops that the others are in?"""
    if rank.waits is None:
        return True
    lines = lines_in(rank.waits, run)
    if op_of(rank.waits) != "barrier":
        return False
    if not guard_of(lines):
        return True
    # Only some ranks come to this barrier. Does it stand in one of the loops, which may be nested?
    in_loop = False
    for other in training:
        for line in lines_in(other.waits, run):
            file, _ = parted(line)
            numbers = [parted(own)[1] for own in lines if parted(own)[0] == file]
            for loop in loops_around(line):
                in_loop = True
                if any(has(loop, number) for number in numbers):
                    return False
    return in_loop


def left_behind(run, stuck):
    """The ranks that read on in an epoch which was over for another rank after fewer batches.

    Lightning asks in each step whether to stop: they wait in this question, and in no pass.
    """
    found = []
    for rank in stuck:
        current = rank.epochs[-1] if rank.epochs else None
        if current is None or not current.trained or current.whole:
            continue
        number = len(training_epochs(rank, current.began.at))
        for other in run.ranks:
            epochs = training_epochs(other, current.began.at)
            if len(epochs) != number or not is_done_with(other, epochs[-1]):
                continue
            if len(epochs[-1].batches) < len(current.batches):
                found.append(rank)
                break
    return found


def training_epochs(rank, at):
    return [epoch for epoch in rank.epochs if epoch.trained and epoch.began.at == at]


def is_done_with(rank, epoch):
    """The epoch is whole, and the rank went on to something else."""
    after = rank.events[epoch.over :]
    goes_on = any(isinstance(event, (EpochBegan, EpochEnded, Ended, Destroyed)) for event in after)
    return epoch.whole and goes_on and not trains(rank)


def uneven_passes(run):
    """With --short all ranks leave a pass after equally many batches. Whole, it has how many?"""
    for team in run.teams if not run.is_loose else ():
        for epochs in run.meetings(team, lambda epoch: epoch.trained):
            counts = [epoch.began.batches for epoch in epochs]
            if len(set(counts)) > 1 and any(epoch.cut for epoch in epochs):
                each = per_rank(team, [f"{count} batches" for count in counts])
                yield Finding(
                    "uneven-steps",
                    epochs[0].began.at,
                    seen=f"In a whole pass the loaders have different lengths: {each}",
                    fine="the loop ends at a number that all ranks share",
                    comes_from=longer_loader(run),
                    role=role_of_loader(run, longer_loader(run)),
                )


# ------------------------------------------------------------------ the order of calls


def crossed_order(run):
    """The n-th calls of the ranks are different ones, or are about different things."""
    calls = []
    for rank in run.ranks:
        # PyTorch itself, as in Join, calls what the other ranks' PyTorch waits for.
        own = [call for call in rank.all(Collective) if call.whole_group and not call.by_torch]
        calls.append([call for call in own if call.op not in POINT_TO_POINT])
    for number, met in enumerate(zip(*calls), 1):
        ops = {call.op for call in met}
        sizes = {call.numel for call in met}
        # Gathered or scattered parts may have other sizes; a sum may not.
        if len(ops) > 1 or (ops == {"all_reduce"} and len(sizes) > 1):
            # In a hang, a call that another rank never makes has its name: see waited_in_vain().
            if stuck_ranks(run) and not all_make(met, calls, number):
                return
            calls_in_words = [f"{call.op} of {call.numel} numbers ({call.at})" for call in met]
            each = per_rank(run.ranks, calls_in_words)
            yield Finding(
                "crossed-order",
                met[0].at,
                seen=f"Collective number {number} differs between the ranks: {each}",
                comes_from=guard_of_calls(met),
            )
            return
    yield from crossed_words(run, calls)


def path_of(call):
    return (call.at, *call.called_from)


def guard_of_calls(calls):
    """The `if` by the rank around the first call that has one."""
    return next(filter(None, (guard_of([*path_of(call)]) for call in calls)), "")


def all_make(met, calls, number):
    """Does each rank make, from its n-th call on, the n-th calls of all the others?"""
    wanted = {(call.op, call.at, call.numel) for call in met}
    for own in calls:
        made = {(call.op, call.at, call.numel) for call in own[number - 1 :]}
        if not wanted <= made:
            return False
    return True


def crossed_words(run, calls):
    """For each function and variable: the same words on all ranks, in another order."""
    said = defaultdict(lambda: [[] for _ in run.ranks])
    places = {}
    for number, own in enumerate(calls):
        for call in own:
            for name, word in call.about.items():
                said[call.op, name][number].append(word)
                places.setdefault((call.op, name), path_of(call))
    for (op, name), words in said.items():
        if name == "keys":
            same = all(map(have_same_keys, zip(*words)))
        else:
            same = all(sorted(own) == sorted(words[0]) for own in words)
        if not same or all(own == words[0] for own in words):
            continue
        each = per_rank(run.ranks, [f"({short(own, 3)})" for own in words])
        # The same line may be called from different lines, if a function of the script has it.
        apart = [met for met in zip(*calls) if len({path_of(call) for call in met}) > 1]
        yield Finding(
            "crossed-order",
            places[op, name][0],
            seen=f"The ranks call {op} in different orders, by their {name}: {each}",
            # A variable may be named otherwise, what is gathered may carry its name, and a tensor
            # may have the numbers of a dictionary by chance.
            fine="these calls belong together"
            if name in ("tensor", "keys") or "gather" in op
            else "",
            comes_from=guard_of_calls(apart[0]) if apart else loop_around(places[op, name]),
        )


def have_same_keys(met):
    """The ranks' numbers of one call, by the keys of the dictionaries that they come from."""
    return len({str(sorted(keys.split(", "))) for keys in met}) == 1


# ------------------------------------------------------------------ the processes and their files


def raised_before_joining(run):
    """A process ended by an exception before it was a member of a group."""
    waits = [process for process in run.strangers if process.says(Joining)]
    for process in run.strangers:
        for event in process.all(Raised):
            if LOST.search(event.error):
                continue
            others = f". {len(waits)} other process(es) waited for it" if waits else ""
            yield Finding(
                "raised-before-joining",
                event.at,
                seen=f"A process raised {event.error} before it joined a group{others}",
                comes_from=event.at,
            )


def never_joined(run):
    alone = [process for process in (*run.strangers, *run.ranks) if process.steps]
    joined = [event for event in run.all(Joined) if event.world > 1]
    if len(alone) > 1 and not joined:
        yield Finding(
            "never-joined",
            alone[0].steps[0].step.at,
            seen=f"{len(alone)} processes trained a model, and each is alone in its group",
            fine="each is meant to train its own model",
            comes_from=guarded_call(alone[0].steps[0].step.at, "init_process_group"),
        )


def saved_by_every_rank(run):
    """Several ranks write one file, in the same stretch of training."""
    writers = defaultdict(dict)
    checkpoints = set()
    for rank in run.ranks:
        for event in rank.all(Wrote):
            is_lock = event.path.endswith("lock")
            is_new = not (event.appends or event.renamed or is_lock)
            if event.weights or is_new:
                writers[event.path, event.when.step][rank.number] = event.at
                if event.weights:
                    checkpoints.add(event.path)
    for (path, step), lines in writers.items():
        if len(lines) > 1:
            fine = "each rank has a disk of its own"
            if path not in checkpoints:
                fine = "all ranks write the same, or each rank has a disk of its own"
            yield Finding(
                "saved-by-every-rank",
                at=next(iter(lines.values())),
                seen=f"Ranks {short(lines)} all write {Path(path).name} after {step} steps",
                fine=fine,
                comes_from=next(iter(lines.values())),
                role="" if path in checkpoints else "results",
            )


JUDGES = [
    raised_before_joining,
    never_joined,
    waited_in_vain,
    met_another_call,
    asked_apart,
    uneven_passes,
    crossed_order,
    saved_by_every_rank,
]

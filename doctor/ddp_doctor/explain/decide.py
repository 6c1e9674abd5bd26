"""Which ranks failed first: the decision over everything that a log says."""

from dataclasses import dataclass, field

from .events import Event, events_of
from .log import Log, expand
from .match import EXIT_CODES, OUTCOMES, WEIGHTS, Rule

# Codes of a process that was asked to end, and of one that aborted.
STOPPED = (-15, 143)
ABORTED = (-6, 134)
KILLED = (-9, 137)


@dataclass
class Decision:
    """What happened, and to whom."""

    rule: Rule
    ranks: list | None  # the ranks that are the cause; [] without a failure; None: none is known
    event: Event | None = None  # the first telling one
    values: dict = field(default_factory=dict)  # for the holes of the rule's sentences
    # What the decision was made from:
    log: Log | None = None
    events: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def decide(log):
    """-> Decision"""
    events, notes = events_of(log)
    found = decision_of(log, events)
    found.log = log
    found.events = events
    found.notes = notes
    return found


def decision_of(log, events):
    if healthy(log, events):
        return Decision(OUTCOMES["survived" if events or log.exits else "healthy"], [])
    failed = []
    for rank, code in sorted(log.exits.items()):
        if code not in (0, *STOPPED):
            failed.append(rank)
    if after_the_end(log, events):
        ended = failed or sorted(ranks_of(events))
        first = events[0] if events else None
        return Decision(OUTCOMES["after_the_end"], ended if len(ended) == 1 else None, first)
    events = without_late_signals(events)
    strongest = max([event.rule.weight for event in events], default=0)
    ended = from_exit_codes(log, events, strongest)
    if ended:
        return ended
    if strongest > WEIGHTS["waited"]:
        return from_events(log, events, strongest)
    timed_out = {}
    for rank, known in log.collectives.items():
        if "sequence" in known:
            timed_out[rank] = known
    if timed_out:
        return from_collectives(log, timed_out)
    waited = [event for event in events if event.rule.role in ("waited", "lost")]
    if waited:
        return from_waiting(log, waited)
    if strongest:
        return from_events(log, events, strongest)
    if failed:
        # If all ended alike without a word, the first cause stands elsewhere.
        alone = len(failed) < len(log.ranks)
        return Decision(OUTCOMES["exit_code"], failed if alone else None)
    for code in log.lone_codes:
        if code not in STOPPED:
            return Decision(EXIT_CODES.get(code, OUTCOMES["exit_code"]), None)
    if log.exits or log.lone_codes:
        return Decision(OUTCOMES["stopped"], None)
    if log.complaints:
        return Decision(OUTCOMES["complaint"], None)
    return Decision(OUTCOMES["nothing"], [])


def ranks_of(events, roles=None):
    """The ranks of events, of all or of those with one of the roles."""
    found = set()
    for event in events:
        if roles is None or event.rule.role in roles:
            found.add(event.rank)
    return found - {None}


# 1. Runs that ended well, or had ended before something failed.


def troubles_of(log, events):
    """(file, position) of everything that looks like a failure."""
    troubles = [(event.line.file, event.position) for event in events]
    for known in log.collectives.values():
        troubles.append((known["line"].file, known["line"].position))
    for file, tail in log.tails.items():
        if tail.exit >= 0:
            troubles.append((file, tail.exit))
    return troubles


def healthy(log, events):
    """A normal end, or progress of the same file, after every failure."""
    troubles = troubles_of(log, events)
    for file, position in troubles:
        tail = log.tails.get(file)
        if tail is None:
            return False
        ended = tail.end and tail.end.position > position
        went_on = len(tail.progress) == 3 and tail.progress[0] > position
        if not ended and not went_on:
            return False
    return bool(troubles) or any(tail.end for tail in log.tails.values())


def after_the_end(log, events):
    """Only the shutdown failed: the training had ended, and no rank waits for another one."""
    troubles = troubles_of(log, events)
    for event in events:
        reported = event.rule.kind == "launch" and event.where is None
        if event.rule.role not in ("lost", "vague", "killed") and not reported:
            return False
    if log.collectives or not troubles:
        return False
    for file, position in troubles:
        if not had_ended(log, file, position):
            return False
        tail = log.tails[file]
        if tail.end.rank is not None and len(log.ranks) > 1 and log.exits.get(tail.end.rank) == 0:
            return False
    return True


def had_ended(log, file, position):
    """Does an earlier line of the same file say so, and no step came after it?"""
    tail = log.tails.get(file)
    if tail is None or tail.end is None or tail.end.position > position:
        return False
    return not tail.progress or tail.progress[-1] <= tail.end.position


def without_late_signals(events):
    """A person who stops a run that has already failed is not the cause."""
    failed = []
    for event in events:
        if event.rule.role in ("cause", "setup") and event.line.time is not None:
            failed.append(event.line.time)
    found = []
    for event in events:
        signal = event.rule.role == "killed" and event.rule.kind == "launch"
        late = signal and failed and event.line.time is not None and event.line.time > min(failed)
        if not late:
            found.append(event)
    return found


# 2. What a rank said or how it ended.


def from_exit_codes(log, events, strongest):
    """Some signals say more than a message of a rank that waited."""
    telling = {}
    for rank, code in sorted(log.exits.items()):
        rule = EXIT_CODES.get(code)
        if rule and not explained(log, events, rank):
            telling.setdefault(rule.weight, []).append(rank)
    if not telling or max(telling) <= strongest:
        return None
    ranks = telling[max(telling)]
    rule = EXIT_CODES[log.exits[ranks[0]]]
    return Decision(rule, ranks)


def explained(log, events, rank):
    """SIGABRT after a timeout or a message is a consequence of it."""
    if log.exits[rank] not in ABORTED:
        return False
    return rank in log.collectives or any(event.rank == rank for event in events)


def from_events(log, events, weight):
    strongest = [event for event in events if event.rule.weight == weight]
    first = min(strongest, key=lambda event: (event.line.time or 10**6, event.position))
    rule = first.rule
    if rule.role == "setup":
        return Decision(rule, None, first)
    if rule.ranks == "none" and rule.role == "killed":
        return Decision(rule, None, first)  # the scheduler ended all of them
    same = [event for event in strongest if event.rule.title == rule.title]
    if rule is OUTCOMES["exception"]:
        same = [event for event in same if event.where == first.where]
    concerned = ranks_of_kind(log, rule)
    if concerned:
        return Decision(rule, concerned, first)
    roots = ranks_of(same)
    roots |= same_end(log, events, roots) if roots else ended_like(log, events, rule.role)
    compared = []
    for event in same:
        if event.rank is not None and {"have", "culprit", "count"} <= event.fields.keys():
            compared.append(event)
    if compared:
        values = {event.rank: event.fields["have"] for event in compared}
        for event in compared:
            values[int(event.fields["culprit"])] = event.fields["count"]
        return Decision(rule, odd_ones(values), first)
    if rule.ranks == "none" and roots == log.ranks:
        return Decision(rule, None, first)  # the calls of the ranks do not fit: which one is odd?
    if rule.role == "vague" and roots == log.ranks:
        return Decision(rule, None, first)  # all say so, and it tells nothing of any of them
    return Decision(rule, sorted(roots) or None, first)


def ranks_of_kind(log, rule):
    """Some causes concern all ranks, or those that ask for a GPU beyond the visible ones."""
    if rule.ranks == "all":
        return sorted(log.ranks)
    visible = log.values.get("visible")
    if rule.ranks == "beyond visible" and visible:
        count = len(visible.split(","))
        per_node = max(log.per_node, len(log.ranks) if log.per_node == 1 else 1)
        return [rank for rank in sorted(log.ranks) if rank % per_node >= count]
    return []


def ended_like(log, events, role):
    """The ranks of a failure that names none, by the exit codes or because one rank is silent."""
    killed = set()
    failed = set()
    for rank, code in log.exits.items():
        if code in KILLED:
            killed.add(rank)
        elif code > 0:
            failed.add(rank)
    if killed:
        return killed if role == "killed" else set()
    failed -= ranks_of(events, ("waited", "lost"))
    if role == "killed":
        silent = log.ranks - ranks_of(events) - set(log.exits)
        if len(silent) == 1 or len(log.ranks) == 1:
            return silent
    aborted = {rank for rank, code in log.exits.items() if code in ABORTED}
    if not failed and len(aborted) == 1:
        return aborted
    return failed if len(failed) == 1 else set()


def same_end(log, events, roots):
    """Ranks with the exit code of the blamed ones, whose own message the log does not show."""
    codes = {log.exits.get(rank) for rank in roots}
    alike = set()
    for rank, code in log.exits.items():
        if code > 0 and code in codes:
            alike.add(rank)
    return alike - ranks_of(events)


# 3. What NCCL's watchdog said of the collective that did not end.


def from_collectives(log, timed_out):
    timed_out = of_usual_group(timed_out)
    numbers = {rank: int(known["sequence"]) for rank, known in timed_out.items()}
    low = min(numbers.values())
    values = dict(next(iter(timed_out.values())))
    values["reporters"] = name(sorted(timed_out))
    culprit = log.values.get("culprit")
    if low < max(numbers.values()) and culprit is None:
        behind = sorted(rank for rank, number in numbers.items() if number == low)
        values.update(timed_out[behind[0]])
        return Decision(OUTCOMES["behind"], behind, values=values)
    calls = {}
    for rank, known in timed_out.items():
        calls[rank] = f"{known['operation']} of {size_of(known)} elements"
    if len(set(calls.values())) > 1:
        return from_other_calls(calls, culprit, values)
    silent = []
    for rank in sorted(log.ranks):
        aborted = log.exits.get(rank) in ABORTED
        if "sequence" not in log.collectives.get(rank, {}) and not aborted:
            silent.append(rank)
    if silent and len(silent) <= len(log.ranks) / 2:
        return Decision(OUTCOMES["silent"], silent, values=values)
    if silent:
        return Decision(OUTCOMES["one_missing"], None, values=values)
    return Decision(OUTCOMES["below_the_script"], None, values=values)


def size_of(known):
    """The number of elements, or the shape, in what the watchdog said of a collective."""
    return str(known.get("size") or known.get("shape", "?"))


def of_usual_group(timed_out):
    """Numbers of different process groups cannot be compared."""
    groups = [known["group"] for known in timed_out.values() if known.get("group")]
    if not groups:
        return timed_out
    usual = max(sorted(set(groups)), key=groups.count)
    found = {}
    for rank, known in timed_out.items():
        if known.get("group", usual) == usual:
            found[rank] = known
    return found


def from_other_calls(calls, culprit, values):
    words = [f"{name(ranks)} in {call}" for call, ranks in groups_of(calls).items()]
    odd = odd_ones(calls) if culprit is None else [int(culprit)]
    values["calls"] = ", ".join(words)
    values["odd"] = "which of them is wrong, only the code says"
    if odd:
        values["odd"] = f"{name(odd)} differs from the others"
    return Decision(OUTCOMES["other_call"], odd, values=values)


def groups_of(values):
    groups = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    return groups


def odd_ones(values):
    """The ranks outside the largest group; None if there is no single largest one."""
    groups = sorted(groups_of(values).values(), key=len)
    if len(groups) < 2 or len(groups[-1]) == len(groups[-2]):
        return None
    odd = []
    for group in groups[:-1]:
        odd += group
    return sorted(odd)


# 4. Ranks that waited, or lost their connection.


def from_waiting(log, events):
    first = max(events, key=lambda event: ("culprit" in event.fields, event.rule.weight))
    noticed = ranks_of(events)
    culprit = first.fields.get("culprit")
    if culprit and noticed.issuperset(expand(culprit)):
        # The rank that the others name waited, too.
        return Decision(first.rule, None, first)
    if culprit:
        return Decision(first.rule, sorted(expand(culprit)), first)
    silent = sorted(log.ranks - noticed)
    heard = set(log.exits) | set(log.last_words)
    unknown = len(silent) > 1 and heard.isdisjoint(silent)  # perhaps their logs are missing
    if silent and len(silent) <= max(1, len(log.ranks) // 2) and not unknown:
        outcome = "left" if first.rule.role == "lost" else "absent"
        found = Decision(OUTCOMES[outcome], silent, first)
        found.values["page"] = first.rule.page
        return found
    if len(log.ranks) > 1 and log.ranks <= ranks_of(events, ("waited",)):
        return all_waited([event for event in events if event.rule.role == "waited"])
    return Decision(first.rule, None, first)


def all_waited(events):
    """Nobody is missing: the ranks wait in different calls, or the network has failed."""
    where = {}
    for event in events:
        if event.rank is not None:
            where[event.rank] = event.where or "an unknown line"
    places = groups_of(where)
    words = [f"{name(ranks)} at {place}" for place, ranks in places.items()]
    outcome = "all_waited" if len(places) == 1 else "all_waited_elsewhere"
    return Decision(OUTCOMES[outcome], None, events[0], {"places": ", ".join(words)})


def name(ranks):
    """Ranks in words; more than twenty are shortened."""
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    if len(words) > 20:
        return f"{len(words)} ranks ({', '.join(words[:3])}, ..., {words[-1]})"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"

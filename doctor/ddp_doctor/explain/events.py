"""Events: what the telling lines and tracebacks of a log mean for the rank that printed them."""

import re
from dataclasses import dataclass, field, replace

from .log import Line
from .match import FACTS, OUTCOMES, RULES, WEIGHTS, Rule, best_first, facts_of, messages_of

# Roles of a rank's own end. A note is harmless, and a frame only reports another message.
FAILURES = tuple(WEIGHTS)


# Out of memory: "(GPU 2; 23.69 GiB total capacity" or "GPU 2 has a total capacity of".
FULL_GPU = re.compile(r"\bGPU ([1-9]\d?)(?:;| has a total)", re.ASCII)
RAY_PROCESS = re.compile(r"\(pid=(\d+), ip=", re.ASCII)


@dataclass
class Event:
    rule: Rule
    line: Line
    rank: int | None
    fields: dict = field(default_factory=dict)
    where: str | None = None  # FILE:LINE of the user's own script
    message: str = ""
    others: list = field(default_factory=list)  # other causes of the same words
    page: str = ""  # the entry to read, if it is not the rule's
    during: str = ""  # what the traceback was in, such as "in the evaluation"

    @property
    def position(self):
        return self.line.position


def events_of(log):
    """-> the failures in the order of the log, and the notes."""
    events = []
    notes = []
    for line, found in log.notable:
        event = event_of_line(line, best_first(found, log.seen))
        if event and event.rule.role == "note":
            notes.append(event)
        elif event:
            events.append(event)
    for stream, block in log.blocks:
        event = event_of_traceback(log, stream, block)
        if event:
            events.append(event)
    events.sort(key=lambda event: event.position)
    for event in events + notes:
        name_rank(log, event)
    return spread(log, events), notes


def event_of_line(line, known):
    # A frame stands around another message, which tells more if it is on the same line.
    known = [pair for pair in known if pair[0].role != "frame"]
    if not known:
        return None
    known = [pair for pair in known if pair[0].role != "vague"] or known
    rule, fields = known[0]
    message = re.sub(r"^(?:\[[^\]]*\] ?)+", "", line.text.strip()) or line.text.strip()
    return Event(rule, line, line.rank, fields, message=message, others=others_of(known))


def others_of(known):
    """Other entries that the same words fit as well."""
    titles = []
    for rule, _ in known[1:]:
        alike = rule.length == known[0][0].length and rule.title != known[0][0].title
        if alike and rule.role != "frame" and rule.title not in titles:
            titles.append(rule.title)
    return titles


def event_of_traceback(log, stream, block):
    chosen = block.segments[0]
    for segment in block.segments:
        if segment.inner:
            chosen = segment
    where = chosen.user
    for segment in block.segments:
        where = where or segment.user
    text = "\n".join(block.text)
    known = best_first(messages_of(text), log.seen)
    failures = [pair for pair in known if pair[0].role in FAILURES]
    # "NCCL error" is less than any other message in the same traceback.
    telling = [pair for pair in failures if pair[0].role != "vague"] or failures
    if telling:
        rule, fields = telling[0]
        event = Event(rule, chosen.line, stream[2], fields, where, chosen.message)
        event.others = others_of(telling)
        event.during = phase_of(block)
        name_process(event, text)
        return event
    if is_report(chosen.message, log):
        return None
    waits = re.search(RULES["waiting_words"], chosen.message)
    rule = OUTCOMES["unknown_wait" if waits else "exception"]
    event = Event(rule, chosen.line, stream[2], {}, where, chosen.message)
    event.during = phase_of(block)
    name_process(event, text)
    # The exception has no entry, but what it came through may have one, such as a loader's worker.
    for segment in block.segments:
        for rule, _ in best_first(messages_of(segment.message), log.seen):
            event.page = event.page or rule.page
    return event


def name_process(event, text):
    """Ray prints the traceback of a worker in the driver, with the worker's process number."""
    pids = RAY_PROCESS.findall(text)
    if pids:
        event.fields = {**event.fields, "pid": pids[-1]}


def phase_of(block):
    """What the process was doing, by the functions in its traceback."""
    frames = "\n".join(block.frames)
    for phase in RULES["phases"]:
        if re.search(phase["pattern"], frames, re.I | re.M):
            return phase["words"]
    return ""


def is_report(message, log):
    """Is this exception only a launcher's report of another one?"""
    if any(fact.role == "ignore" for fact, _ in facts_of(message, FACTS)):
        return True
    return any(rule.role == "frame" for rule, _ in best_first(messages_of(message), log.seen))


# Lines that name no rank: the process, the node or the launcher's report may.


def name_rank(log, event):
    if event.rank is None:
        event.rank = event.line.rank
    rank = event.fields.get("rank", "")
    if rank.isdigit():
        event.rank = int(rank)
    pid = event.fields.get("pid") or event.line.pid
    if event.rank is None and pid in log.ranks_of_pids:
        event.rank = log.ranks_of_pids[pid]
    elif event.rank is None and event.line.device is not None and len(log.nccl_hosts) == 1:
        event.rank = event.line.device
    elif event.rank is None and not log.ranks_are_named and log.per_node == 1:
        # On one machine the rank is the number of its GPU, unless each rank sees one GPU only.
        full = FULL_GPU.search(event.line.text)
        event.rank = int(full[1]) if full else None
    if event.rank is not None:
        log.ranks.add(event.rank)


def spread(log, events):
    """Give events without a rank to the ranks that they must be of."""
    unnamed = []
    for event in events:
        if event.rank is None and event.rule.role != "setup":
            unnamed.append(event)
    named = {event.rank for event in events}
    failed = [rank for rank, code in sorted(log.exits.items()) if code > 0 and rank not in named]
    out = []
    for event in events:
        ranks = ranks_of_unnamed(log, event, unnamed, failed) if event in unnamed else []
        log.ranks |= set(ranks)
        for rank in ranks or [event.rank]:
            out.append(replace(event, rank=rank))
    return out


def ranks_of_unnamed(log, event, unnamed, failed):
    node = event.line.node
    if event.rule.role == "lost" and log.ranks_are_named:
        return []  # the launcher's own connection
    if node is not None and log.per_node == 1 and not failed:
        return [node]
    if event.where or event.rule.role == "cause":
        alike = [other for other in unnamed if other.rule.title == event.rule.title]
        places = [other for other in alike if other.where and other.where == event.where]
        if len(places) == len(log.ranks) > 1:
            return sorted(log.ranks)  # a traceback for each rank
        if len(failed) == 1 or len(alike) >= len(failed):
            return failed
    return []

"""What the ranks did in a step, part by part, and who waited for whom. For the film of a run.

parts_of() a step -> meetings_of() the steps of a rank -> waits_of() all ranks
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..run.events import Filmed
from ..speed.pace import COLUMN, WAITING

LATE = "late"  # a rank came later than another one out of the meeting before
CERTAIN = 0.5  # what explains at least this share of something is its cause


@dataclass(frozen=True)
class Part:
    """A stretch of a step in which the rank stayed in one column of the table of `speed`."""

    phase: str
    call: str  # the function and line of a collective, else ""
    begin: float
    end: float
    no_core: float  # seconds of it in which the rank could have run and had no core


@dataclass(frozen=True)
class Meeting:
    """A rank comes to a call in which ranks wait for each other, and leaves it."""

    key: tuple[str, str]  # phase and call: at one meeting they are the same on all ranks
    begin: float
    end: float
    since: float  # when this rank left its meeting before
    before: Counter  # the seconds of each phase between these meetings


@dataclass(frozen=True)
class Wait:
    """A rank waited for another one, until that one came to the same meeting."""

    rank: int  # the position of the rank, as in Pace.ranks
    waits_for: int
    step: int
    begin: float
    end: float
    more: Counter  # the seconds for which the other rank was longer in each phase
    phase: str  # the one that is most of the wait; "" if none is


def parts_of(step: Filmed) -> list[Part]:
    """The laps of a step, those of one column together."""
    parts: list[Part] = []
    begin = step.begun
    for phase, call, end, no_core in step.laps:
        column = COLUMN.get(phase, phase)
        call = call if phase == "collective" else ""
        last = parts[-1] if parts else None
        # A call ends with a lap that has no name.
        if last is not None and last.phase == column and call in ("", last.call):
            parts[-1] = replace(last, end=end, no_core=last.no_core + no_core)
        else:
            parts.append(Part(column, call, begin, end, no_core))
        begin = end
    return parts


def waits_of(parts: list[dict], recorded: list[dict], common: list[int]) -> list[Wait]:
    """Who waited for whom, in all steps that were written down by all ranks."""
    met = []
    for own, steps in zip(parts, recorded):
        met.append(meetings_of(own, common, since=steps[common[0]].begun))
    waits = []
    for n in common:
        rows = [own[n] for own in met]
        keys = list(map(keys_of, rows))
        # Ranks that call different collectives do not meet in the order of their calls.
        if all(own == keys[0] for own in keys):
            for meetings in zip(*rows):
                waits += waits_at(meetings, n)
    return waits


def keys_of(meetings: list[Meeting]) -> list[tuple[str, str]]:
    return [meeting.key for meeting in meetings]


def meetings_of(parts: dict, common: list[int], since: float) -> dict[int, list[Meeting]]:
    """{number of a step: the meetings of a rank in it}"""
    found = {}
    before: Counter = Counter()
    for n in common:
        found[n] = []
        for part in parts[n]:
            if part.phase in WAITING:
                key = (part.phase, part.call)
                found[n].append(Meeting(key, part.begin, part.end, since, before))
                before = Counter()
                since = part.end
            else:
                before[part.phase] += part.end - part.begin - part.no_core
                before["no core"] += part.no_core
    return found


def waits_at(meetings: tuple[Meeting, ...], step: int) -> Iterator[Wait]:
    for position, own in enumerate(meetings):
        # Whoever came after this rank had left was not needed: a broadcast has one source.
        later = [one for one in meetings if own.begin < one.begin <= own.end]
        if later:
            slowest = max(later, key=lambda meeting: meeting.begin)
            seconds = slowest.begin - own.begin
            more = Counter(slowest.before)
            more.subtract(own.before)
            more[LATE] = slowest.since - own.since
            phase = max(more, key=lambda name: more[name])
            known = phase if more[phase] > CERTAIN * seconds else ""
            yield Wait(
                rank=position,
                waits_for=meetings.index(slowest),
                step=step,
                begin=own.begin,
                end=slowest.begin,
                more=more,
                phase=known,
            )

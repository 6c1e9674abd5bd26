"""A film of a run: what its ranks did in some of the last steps, side by side. See speed --film.

    Film > Lane (a rank) > Bar (what it did for how long)

The numbers are those that `speed` has measured. waits.py finds who waited for whom,
words.py says it, and picture.py draws. Moments are seconds of the clock that all
processes of a machine share.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..run.events import FILMED, Filmed
from ..speed.pace import PAUSE, PHASES, WAITING, WARM_UP, Pace, RankPace
from . import picture
from .waits import CERTAIN, Part, Wait, parts_of, waits_of
from .words import about, number_of, sentences_of, title_of

SHOWN = 3  # steps
ENDINGS = (".html", ".svg")
IRREGULAR = {*PAUSE, "evaluation", "start-up"}  # a step with one of these phases is not shown
NO_FILM = (
    "No film was written. It needs a step near the end that is a regular one on all ranks, ranks "
    "on one machine, and a run that comes to its end or to its hundredth step."
)


@dataclass(frozen=True)
class Bar:
    """What a lane shows: a phase, or "wait", or "no core"."""

    what: str
    step: int
    begin: float
    end: float
    label: str  # a few words that may stand in the bar


@dataclass(frozen=True)
class Lane:
    rank: int
    bars: tuple[Bar, ...]
    steps: dict[int, tuple[float, float]]  # when each step begins and ends


@dataclass(frozen=True)
class Film:
    title: str
    lanes: tuple[Lane, ...]
    steps: tuple[int, ...]
    begin: float
    end: float
    sentences: tuple[str, ...]  # who waited for whom, and what costs most
    about: tuple[str, ...]  # what was run, where, and what is shown

    @property
    def caption(self):
        """What can be posted with an issue."""
        lines = [self.title, *self.about]
        lines += [f"- {sentence}" for sentence in self.sentences]
        return "\n".join(lines)


# ------------------------------------------------------------------ before and after the run


def why_not(path: str) -> str | None:
    """-> why no film can be written to this path; None if it can. It is asked before the run."""
    folder = os.path.dirname(path) or "."
    if not path.endswith(ENDINGS):
        return "the name of a film ends with .html or .svg"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    if os.path.isdir(path):
        return "this is a folder"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "this file cannot be written"
    return None


def write(pace: Pace | None, figures: dict | None, command: list[str], path: str) -> str:
    """Write the film of a run -> what to tell the user."""
    film = film_of(pace, figures, command) if figures else None
    if film is None:
        return NO_FILM
    if path.endswith(".svg"):
        text = picture.still(film)
    else:
        text = picture.page(film)
    Path(path).write_text(text, encoding="utf-8")
    return f"Film: {path}. Its caption:\n\n{film.caption}"


def film_of(pace: Pace, figures: dict, command: list[str]) -> Film | None:
    """None: no step was a regular one on all ranks at the same time, or they wrote down none."""
    recorded = list(map(by_number, pace.ranks))
    common = sorted(set.intersection(*map(set, recorded)))[-FILMED:]
    parts = [parts_by_number(own, common) for own in recorded]
    steps = typical_steps(recorded, parts, common, list(figures["ranks"].values()))
    if not steps or not overlap(recorded, steps[0]):
        return None
    waits = []
    for wait in waits_of(parts, recorded, common):
        if wait.step in steps:
            waits.append(wait)
    lanes = []
    for position, rank in enumerate(pace.ranks):
        own = [wait for wait in waits if wait.rank == position]
        bars: list[Bar] = []
        spans = {}
        for n in steps:
            bars += bars_of_step(n, parts[position][n], own, pace, position)
            spans[n] = span_of(recorded[position][n])
        lane = Lane(rank.number, tuple(bars), spans)
        lanes.append(lane)
    longest = {}
    for n in steps:
        longest[n] = longest_of([own[n] for own in recorded])
    return Film(
        title=title_of(pace, waits, figures, steps),
        lanes=tuple(lanes),
        steps=tuple(steps),
        begin=min(lane.bars[0].begin for lane in lanes),
        end=max(lane.bars[-1].end for lane in lanes),
        sentences=tuple(sentences_of(pace, waits, figures, longest)),
        about=tuple(about(figures, command, longest, common)),
    )


def by_number(rank: RankPace) -> dict[int, Filmed]:
    return {step.n: step for step in rank.filmed}


def parts_by_number(recorded: dict[int, Filmed], numbers: list[int]) -> dict[int, list[Part]]:
    return {n: parts_of(recorded[n]) for n in numbers}


# ------------------------------------------------------------------ which steps


def span_of(step: Filmed) -> tuple[float, float]:
    return step.begun, step.laps[-1][2]


def longest_of(steps: list[Filmed]) -> float:
    """The seconds of this step on the rank on which it took longest."""
    return max(end - begin for begin, end in map(span_of, steps))


def overlap(recorded: list[dict], step: int) -> bool:
    """Ranks of several machines have several clocks. Then a step does not happen at one time."""
    spans = [span_of(own[step]) for own in recorded]
    last_begin = max(begin for begin, _ in spans)
    first_end = min(end for _, end in spans)
    return last_begin < first_end


def is_regular(step: Filmed) -> bool:
    phases = {phase for phase, *_ in step.laps}
    return step.n > WARM_UP and not phases & IRREGULAR


def typical_steps(
    recorded: list[dict], parts: list[dict], common: list[int], medians: list[dict]
) -> list[int]:
    """The consecutive regular steps that are nearest to the medians of the ranks.

    The last steps alone may be unusual: other programs of the machine disturb some of them.
    """
    far = {}  # {number of a regular step: how far it is from the medians}
    for n in common:
        if all(is_regular(own[n]) for own in recorded):
            far[n] = distance(parts, n, medians)
    for count in range(SHOWN, 0, -1):
        choices = []
        for first in far:
            numbers = list(range(first, first + count))
            if far.keys() >= set(numbers):
                choices.append(numbers)
        if choices:
            return nearest(choices, far)
    return []


def nearest(choices: list[list[int]], far: dict[int, float]) -> list[int]:
    """The choice whose farthest step is nearest."""
    farthest = []
    for numbers in choices:
        farthest.append(max(far[n] for n in numbers))
    return choices[farthest.index(min(farthest))]


def distance(parts: list[dict], n: int, medians: list[dict]) -> float:
    """How far, in milliseconds, the phases of a step are from their medians, on all ranks."""
    total = 0.0
    for own, row in zip(parts, medians):
        sums = phases_of(own[n])
        for name in (*PHASES, "no core"):
            total += abs(sums[name] - row[name])
    return total


def phases_of(parts: list[Part]) -> Counter:
    """The milliseconds of each phase of a step, as in the table of `speed`."""
    sums: Counter = Counter()
    for part in parts:
        sums[part.phase] += 1000 * (part.end - part.begin - part.no_core)
        sums["no core"] += 1000 * part.no_core
    return sums


# ------------------------------------------------------------------ the bars


def lines_of(parts: list[Part], pace: Pace, position: int) -> dict[Part, str]:
    """{part: the line of the script in which the rank was}, where one is known.

    The doctor knows in which lines a rank was in a phase. This is said of the longest part only.
    """
    lines = {}
    for part in parts:
        if part.call:
            _, _, line = part.call.partition(" ")
            lines[part] = line
    for phase in ("data", "own", "saving"):
        alike = [part for part in parts if part.phase == phase]
        at, share = pace.hot([phase], position)
        if alike and share >= CERTAIN:
            longest = max(alike, key=length_of)
            lines[longest] = at
    return lines


def length_of(part: Part) -> float:
    return part.end - part.begin


def bars_of_step(
    n: int, parts: list[Part], waits: list[Wait], pace: Pace, position: int
) -> Iterator[Bar]:
    own = [wait for wait in waits if wait.step == n]
    lines = lines_of(parts, pace, position)
    for part in parts:
        yield from bars_of(part, n, own, pace, lines.get(part))


def bars_of(part: Part, n: int, waits: list[Wait], pace: Pace, line: str | None) -> Iterator[Bar]:
    """A part is its wait for another rank, what is left of it, and the time without a core.

    Nobody knows when in a part there was no core. It is drawn at the end.
    """
    begin = part.begin
    end = max(begin, part.end - part.no_core)
    for wait in waits:
        if wait.begin == part.begin and part.phase in WAITING:
            until = min(wait.end, end)
            number = pace.ranks[wait.waits_for].number
            yield Bar("wait", n, begin, until, label=f"waits for rank {number}")
            begin = until
    if end > begin:
        function, _, _ = part.call.partition(" ")
        label = function or part.phase
        if line:
            label += f", line {number_of(line)}"
        yield Bar(part.phase, n, begin, end, label)
    if part.end > end:
        yield Bar("no core", n, end, part.end, label="no core")

"""The words of a film: its title, its sentences and what was run where."""

import os
import platform
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean

from .. import __version__
from ..speed.judge import LEAST_MS, LEAST_SHARE
from ..speed.pace import Pace
from .waits import CERTAIN, LATE, Wait

IN_TITLE = 0.1  # of a step: a shorter wait is not in the title
LONGEST = 60  # letters of a line of the script
MOST = 5  # sentences about waits: many ranks have many
NAMED = 4  # ranks: more of them are only counted
IN_WORDS = {
    "own": "its own code",
    "data": "the wait for its batch",
    "optimizer": "the optimizer's step",
    "forward": "its forward pass",
    "backward": "its backward pass",
    "saving": "saving",
    "no core": "the lack of a core",
    LATE: "leaving the exchange before late",
}


@dataclass(frozen=True)
class Group:
    """Waits in the shown steps that have one reason: for which rank, and by which phase."""

    waits: list[Wait]

    @property
    def waits_for(self):
        return self.waits[0].waits_for

    @property
    def phase(self):
        return self.waits[0].phase

    @property
    def ranks(self):
        return sorted({wait.rank for wait in self.waits})

    @property
    def steps(self):
        return {wait.step for wait in self.waits}

    def of_rank(self, rank: int) -> float:
        """The seconds for which this rank waited, in all shown steps."""
        return sum(wait.end - wait.begin for wait in self.waits if wait.rank == rank)

    @property
    def seconds(self):
        """Of the rank that waited longest."""
        return max(map(self.of_rank, self.ranks))

    def causes(self) -> dict[str, float]:
        """{phase: the milliseconds for which the other rank was longer}, the longest first."""
        more: Counter = Counter()
        for wait in self.waits:
            more.update(wait.more)
        return {name: 1000 * value / len(self.waits) for name, value in more.most_common()}


def groups_of(waits: list[Wait]) -> list[Group]:
    """The longest first."""
    alike: dict[tuple, list[Wait]] = {}
    for wait in waits:
        alike.setdefault((wait.waits_for, wait.phase), []).append(wait)
    groups = [Group(own) for own in alike.values()]
    return sorted(groups, key=lambda group: group.seconds, reverse=True)


def title_of(pace: Pace, waits: list[Wait], figures: dict, steps: list[int]) -> str:
    text = f"{number_of_ranks(figures)}, {figures['step']:.1f} ms per step"
    groups = groups_of(waits)
    if not groups:
        return text
    longest = groups[0]
    least = IN_TITLE * figures["step"] / 1000
    # Small waits come and go by chance. They do not belong into a title.
    if longest.seconds / len(steps) < least:
        return text
    who = ranks_in_words(pace, longest.ranks)
    wait = "waits" if len(longest.ranks) == 1 else "wait"
    other = pace.ranks[longest.waits_for].number
    return f"{text}: {who} {wait} for rank {other}"


def number_of_ranks(figures: dict) -> str:
    count = len(figures["ranks"])
    return "1 rank" if count == 1 else f"{count} ranks"


def ranks_in_words(pace: Pace, positions: list[int]) -> str:
    numbers = [str(pace.ranks[position].number) for position in positions]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > NAMED:
        return f"{len(numbers)} ranks"
    first = ", ".join(numbers[:-1])
    return f"ranks {first} and {numbers[-1]}"


# ------------------------------------------------------------------ the sentences


def sentences_of(
    pace: Pace, waits: list[Wait], figures: dict, spans: dict[int, float]
) -> Iterator[str]:
    """Who waited for whom, and then what costs most in the whole run.

    `spans` has the length in seconds of each shown step.
    """
    said = []
    # What takes less is not worth a sentence.
    least = max(LEAST_MS, LEAST_SHARE * figures["step"]) / 1000
    for group in groups_of(waits)[:MOST]:
        mean_wait = group.seconds / len(spans)
        if mean_wait >= least:
            said.append(sentence_of(pace, group, spans))
    if not said and len(pace.ranks) > 1:
        long = f"for {1000 * least:.1f} ms or longer"
        said.append(f"On average of these steps, no rank waited for another one {long}.")
    yield from said
    for one in figures["findings"]:
        share = one["ms"] / figures["step"]
        where = place(one["at"]) if ":" in one["at"] else ""
        if one["key"] == "straggler" and where and is_said(where, said):
            continue  # the ranks that wait for it have named it
        cost = f"{one['ms']:.1f} ms of a step ({share:.0%}): {one['seen']}"
        if where:
            cost = f"{where}, costs {cost}"
        yield f"In the whole run, {cost}."


def is_said(where: str, sentences: list[str]) -> bool:
    return any(where in sentence for sentence in sentences)


def sentence_of(pace: Pace, group: Group, spans: dict[int, float]) -> str:
    """Who waited how long for whom, and where that one was."""
    count = len(group.steps)
    each = [1000 * group.of_rank(rank) / count for rank in group.ranks]
    shortest = f"{min(each):.1f}"
    longest = f"{max(each):.1f}"
    if shortest == longest:
        long = f"{longest} ms"
    else:
        long = f"{shortest} to {longest} ms"
    who = ranks_in_words(pace, group.ranks).capitalize()
    other = pace.ranks[group.waits_for].number
    whole = 1000 * mean(spans[n] for n in group.steps)
    part = max(each) / whole
    share = f"{part:.0%} of the {whole:.1f} ms of a step"
    if count == 1:
        often = f"in step {min(group.steps)}"
    elif count == len(spans):
        often = f"the average of these {count} steps"
    else:
        often = f"the average of steps {listed(group.steps)}"
    cause = cause_of(pace, group)
    return f"{who} waited {long} for rank {other} ({share}), {cause} ({often})."


def listed(steps: set[int]) -> str:
    return " and ".join(str(n) for n in sorted(steps))


def cause_of(pace: Pace, group: Group) -> str:
    """Which part of its work held up the rank that the others waited for, and in which line?"""
    causes = group.causes()
    if not group.phase:
        parts = []
        for phase, milliseconds in list(causes.items())[:2]:
            words = IN_WORDS.get(phase, phase)
            parts.append(f"{milliseconds:.1f} ms by {words}")
        both = " and ".join(parts)
        return f"which was delayed by several things, {both}"
    more = causes[group.phase]
    if group.phase == "no core":
        return f"which had no core for {more:.1f} ms longer"
    if group.phase == LATE:
        return f"which came out of the exchange before this one {more:.1f} ms later"
    phase = IN_WORDS.get(group.phase, group.phase)
    at, share = pace.hot([group.phase], group.waits_for, others=True)
    if share >= CERTAIN:
        return f"which was in {place(at)}: {phase} took {more:.1f} ms longer"
    return f"for which {phase} took {more:.1f} ms longer"


def place(at: str) -> str:
    """file:line -> the text of this line, its number, and its file."""
    name, _, number = at.rpartition(":")
    shown = os.path.basename(name) if os.path.isabs(name) else name
    code = line_of_file(name, int(number))
    where = f"line {number} of {shown}"
    return f"`{code}`, {where}" if code else where


def number_of(at: str) -> str:
    return at.rpartition(":")[2]


def line_of_file(name: str, number: int) -> str:
    """ "" if the file is not there, as on another machine."""
    try:
        lines = Path(name).read_text(encoding="utf-8", errors="replace").splitlines()
        line = lines[number - 1]
    except (OSError, IndexError):
        return ""
    code, _, _ = line.partition("  # ")
    code = code.strip()
    return code if len(code) <= LONGEST else f"{code[: LONGEST - 3]}..."


# ------------------------------------------------------------------ what was run, and where


def about(
    figures: dict, command: list[str], spans: dict[int, float], among: list[int]
) -> Iterator[str]:
    """`spans` has the length in seconds of each shown step, and `among` the recorded steps."""
    steps = list(spans)
    yield f"Command: {shlex.join(command)}"
    ranks = number_of_ranks(figures)
    threads = figures.get("threads", "?")
    each = "1 thread" if threads == 1 else f"{threads} threads"
    device = "on GPUs" if figures["gpu"] else "on the CPU"
    cores = figures.get("cores", "?")
    yield f"Machine: {ranks} with {each} each {device}, {cores} cores of {processor()}"
    today = date.today().isoformat()
    yield f"Versions: {versions()}; {today}"
    lengths = ", ".join(f"{1000 * seconds:.1f}" for seconds in spans.values())
    numbers = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    shown = f"{numbers}, which took {lengths} ms"
    medians = f"the medians of the run ({figures['step']:.1f} ms per step)"
    chosen = f"Of the steps {among[0]} to {among[-1]}, they are nearest to {medians}"
    yield f"Shown: {shown}. {chosen}. All widths are measured times."


def processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> str:
    """The version of PyTorch is asked for without an import, which takes seconds."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "?"
    python = platform.python_version()
    return f"ddp-doctor {__version__}, PyTorch {torch}, Python {python}, {platform.system()}"

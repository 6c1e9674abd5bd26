"""What the laps of a run say, put together once for the judges of `speed`. See watch/laps.py.

    Pace > RankPace > TimedStep

All times are in seconds. Where the kernel tells it, the time in which a rank could have run and had
no core is kept apart: it is in no phase.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median

from ..run.events import Filmed, Laps, Loaded, Looks, Reducer

# The columns of the table.
PHASES = ("data", "forward", "backward", "exposed", "optimizer", "collective", "saving", "own")
WAITING = ("exposed", "collective")  # for other ranks
WORK = tuple(phase for phase in PHASES if phase not in WAITING)
COLUMN = {"search": "forward", "loss": "forward"}  # these are shown in another column
PAUSE = ("first batch", "between")  # between two epochs
WARM_UP = 3  # steps that do not count
WARM_UP_OF_SHORT = 5  # the same with --short, where few steps are made


@dataclass(frozen=True, eq=False)
class TimedStep:
    """One step of one rank."""

    laps: Laps
    warm_up: int

    @cached_property
    def phases(self):
        """The seconds of each column, and of all other phases."""
        seconds = Counter()
        for phase, took in self.laps.seconds.items():
            seconds[COLUMN.get(phase, phase)] += took
        return seconds

    def sum_of(self, phases):
        return sum(self.phases[phase] for phase in phases)

    @cached_property
    def work(self):
        """All but the wait for other ranks. The time without a core is a part of it."""
        return self.sum_of(WORK) + self.laps.no_core

    @cached_property
    def wait(self):
        return self.sum_of(WAITING)

    @property
    def time(self):
        return self.work + self.wait

    @property
    def pause(self):
        return self.sum_of(PAUSE)

    @property
    def is_regular(self):
        """It neither begins an epoch nor evaluates, and the first steps warm up."""
        is_special = self.laps.last or self.pause > 0 or self.phases["evaluation"] > 0
        return self.laps.n > self.warm_up and not is_special


@dataclass(frozen=True, eq=False)
class RankPace:
    """The steps of one rank. What follows its last step is the last of them."""

    number: int
    steps: dict[int, TimedStep]  # by the number of the step
    looks: Looks | None  # None: the rank was killed
    reducer: Reducer | None  # None: there is no DDP
    loaded: tuple[Loaded, ...]
    filmed: tuple[Filmed, ...]  # some steps, lap by lap; the last ones are those before its end

    def total(self, phase):
        return sum(step.phases[phase] for step in self.steps.values())

    @cached_property
    def training(self):
        """Seconds of all steps but the first, without evaluation and saving in them."""
        made = [step for n, step in self.steps.items() if n > 1 and not step.laps.last]
        return sum(step.time + step.pause - step.phases["saving"] for step in made)

    @cached_property
    def start_up(self):
        """Seconds until the first step was over."""
        laps = self.steps[1].laps
        return sum(laps.seconds.values()) + laps.no_core

    @cached_property
    def pauses(self):
        """The steps that begin an epoch, except the first one."""
        return [step for step in self.steps.values() if step.pause > 0 and not step.laps.last]

    def lines(self, phases):
        """How often the rank was seen in which line of the script, in seconds."""
        lines = Counter()
        seen = self.looks.seconds if self.looks else {}
        for phase, seconds in seen.items():
            if COLUMN.get(phase, phase) in phases:
                lines.update(seconds)
        return lines


@dataclass(frozen=True, eq=False)
class Pace:
    """The steps of all ranks. A step counts if it is a regular one on each of them."""

    ranks: tuple[RankPace, ...]
    rows: tuple[tuple[TimedStep, ...], ...]  # for each such step, one per rank

    @property
    def zero(self):
        return self.ranks[0]

    @cached_property
    def step(self):
        """The median over steps, of the mean over the ranks."""
        return median(self.step_times)

    @cached_property
    def step_times(self):
        return [mean_time(row) for row in self.rows]

    def of_rank(self, position, value):
        """The median of a value over the steps of one rank."""
        return median(value(row[position]) for row in self.rows)

    def least(self, value):
        """The median over steps of the least of all ranks: it contains no wait for a slower one."""
        return median(min(map(value, row)) for row in self.rows)

    # The step is fastest + imbalance + communication.

    @cached_property
    def works(self):
        """Of each rank: the median of its work."""
        positions = range(len(self.ranks))
        return [self.of_rank(position, lambda step: step.work) for position in positions]

    @cached_property
    def fastest(self):
        """What the rank works that has least to do."""
        return min(self.works)

    @cached_property
    def slowest(self):
        """The most work of any rank in a step. It is another rank in each step, perhaps."""
        return median(map(most_work, self.rows))

    @property
    def imbalance(self):
        """On two ranks the slowest minus the mean would be half of what delays one of them."""
        return self.slowest - self.fastest

    @property
    def communication(self):
        return self.step - self.slowest

    @property
    def samples(self):
        """Of a step and rank; 0 if no batch was seen."""
        positions = range(len(self.ranks))
        counts = [self.of_rank(position, lambda step: step.laps.samples) for position in positions]
        return mean(counts)

    # Lines of the script.

    def hot(self, phases, position=0, others=False):
        """The line in which a rank is longest in these phases -> the line, its share of them.

        With `others` it is the line in which the rank is longer than its others are. The share
        includes the lines near to it, since a call may have several lines.
        """
        lines = self.ranks[position].lines(phases)
        if others:
            lines = more_than_others(lines, self.ranks, position, phases)
        if not lines:
            return "?", 0.0
        line = max(lines, key=lines.get)
        file, _, number = line.rpartition(":")
        near = sum(lines[f"{file}:{int(number) + more}"] for more in range(-3, 4))
        return line, near / (lines.total() or 1)


def mean_time(row):
    return mean(step.time for step in row)


def most_work(row):
    return max(step.work for step in row)


def more_than_others(lines, ranks, position, phases):
    rests = [rank.lines(phases) for rank in ranks if rank is not ranks[position]]
    more = Counter()
    for line, seconds in lines.items():
        more[line] = seconds - median(rest[line] for rest in rests)
    return more


def pace_of(run):
    """-> what the laps of the run say; None if no rank has written any."""
    paces = []
    warm_up = WARM_UP_OF_SHORT if run.short else WARM_UP
    for rank in run.ranks:
        steps = {laps.n: TimedStep(laps, warm_up) for laps in rank.all(Laps)}
        if steps:
            looks = last(rank.all(Looks))
            reducer = last(rank.all(Reducer))
            loaded = tuple(rank.all(Loaded))
            filmed = tuple(rank.all(Filmed))
            paces.append(RankPace(rank.number, steps, looks, reducer, loaded, filmed))
    if not paces:
        return None
    rows = defaultdict(list)
    for pace in paces:
        for number, step in pace.steps.items():
            if step.is_regular:
                rows[number].append(step)
    together = [tuple(rows[n]) for n in sorted(rows) if len(rows[n]) == len(paces)]
    return Pace(tuple(paces), tuple(together))


def last(events):
    return events[-1] if events else None

"""A run: what its processes said, put together once for the judges. Nobody writes into it.

    Run > Rank > Work (a step and what led to it), Epoch (what a loader gave)
    Run > Optimizer > Row (the same step on the ranks of a team)

A team is the ranks that average gradients with each other.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from .events import (
    Backward,
    Batch,
    Collective,
    Computes,
    Cut,
    EpochBegan,
    EpochEnded,
    Event,
    Forward,
    Gradients,
    Joined,
    Last,
    Loose,
    Parameters,
    Returned,
    ScalerStepped,
    Step,
    Wrapped,
    Wrote,
)
from .launch import WAITS


@dataclass(frozen=True)
class Work:
    """One step of one rank, with all that led to it since its step before."""

    step: Step
    parameters: Parameters
    forwards: tuple[Forward, ...]  # for training
    backwards: tuple[Backward, ...]
    collectives: tuple[Collective, ...]
    own: list[float]  # sums of this rank's gradients, before the script itself averages
    applied: list[float]  # sums of the gradients that are applied, before they are clipped
    read: int  # samples that the loaders gave for training
    loaders: int  # epochs that began
    carries: bool  # it has backward passes from before the end that --short gave to a pass

    @property
    def count(self):
        """The number of the step for a reader, who counts from 1, also past add_param_group()."""
        return self.parameters.before + self.step.n + 1

    @property
    def added(self):
        """The backward passes whose gradients add up: those since gradients were last cleared."""
        first = 0
        for number, event in enumerate(self.backwards):
            if event.cleared:
                first = number
        return self.backwards[first:]

    @property
    def samples(self):
        """How many samples led to it? 0: that is not known."""
        given = sum(event.samples for event in self.forwards)
        # Without DDP, or if a model computed on a batch twice: what the loaders gave.
        known = [count for count in (given, self.read) if count]
        return min(known, default=0)


@dataclass(frozen=True)
class Epoch:
    """What a DataLoader gave to one rank, from one iter() until the next."""

    began: EpochBegan
    batches: tuple[Batch, ...]
    whole: bool  # it gave len(loader) batches; StopIteration if there is no length
    trained: bool  # there were backward passes in it
    over: int  # position of its last batch among the rank's events
    cut: Cut | None  # --short has ended it: `whole` and `indices` are with what was not loaded

    @cached_property
    def parts(self):
        """The indices of each batch."""
        parts = [batch.indices for batch in self.batches]
        return parts + self.cut.batches if self.cut else parts

    @cached_property
    def indices(self):
        return [index for part in self.parts for index in part]

    @cached_property
    def loaded(self):
        """How many samples were loaded?"""
        return sum(len(batch.indices) for batch in self.batches)

    @property
    def evaluates(self):
        """Ignite fetches the first batch before the script's function calls eval()."""
        batches = self.batches[1:] or self.batches
        return not self.trained and all(batch.evaluates for batch in batches)


@dataclass(frozen=True)
class Evaluation:
    """A model computed on its own, and then results came together."""

    model: Computes
    orders: tuple  # the indices of each epoch that ended in this evaluation
    reading: bool  # a loader was being read when results came together


@dataclass(frozen=True, eq=False)
class Rank:
    """One process that joined the group, or one that never did (its number is -1)."""

    number: int
    events: tuple[Event, ...]
    steps: tuple[Work, ...]
    epochs: tuple[Epoch, ...]
    evaluations: tuple[Evaluation, ...]
    waits: Event | None  # what it waited for when the run ended

    def all(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def whole_epochs(self):
        return sum(epoch.whole for epoch in self.epochs)

    def says(self, kind):
        return any(isinstance(event, kind) for event in self.events)


@dataclass(frozen=True, eq=False)
class Row:
    """The same step on the ranks of a team that made it."""

    n: int
    ranks: tuple[Rank, ...]
    works: tuple[Work, ...]  # one per rank

    @property
    def steps(self):
        return [work.step for work in self.works]

    @property
    def at(self):
        return self.works[0].step.at

    @property
    def count(self):
        return self.works[0].count

    def differing(self, what):
        """Numbers of the parameters whose fingerprints differ between the ranks."""
        prints = [getattr(step, what) for step in self.steps]
        numbers = []
        for number, column in enumerate(zip(*prints)):
            if len(set(column)) > 1:
                numbers.append(number)
        return numbers

    @property
    def is_finite(self):
        return all(step.finite is not False for step in self.steps)

    def rates_differ(self):
        return len({str(step.rates) for step in self.steps}) > 1


@dataclass(frozen=True)
class Look:
    """What of the weights differs between the ranks at a moment?"""

    row: Row | None  # the step that follows, None after the last one
    numbers: list[int]  # of the parameters


@dataclass(frozen=True)
class Optimizer:
    """An optimizer on the ranks of a team: its steps side by side."""

    rows: tuple[Row, ...]
    lasts: tuple[Last, ...]  # the weights after the last step, one per rank

    @property
    def first(self):
        return self.rows[0].works[0]

    @property
    def parameters(self):
        return self.first.parameters

    @property
    def is_in_ddp(self):
        return any(self.parameters.in_ddp)

    @cached_property
    def averaged_by_script(self):
        """Does the script average gradients, or weights, from the beginning on?"""
        return self.exchanges(until=9)

    @cached_property
    def averaged_ever(self):
        return self.exchanges(until=math.inf)

    def exchanges(self, until):
        """Does the script exchange tensors as large as half of the parameters, or as all together?

        A broadcast before the first step only sends what all ranks begin with.
        """
        exchanged = Counter()
        for call in self.rows[0].ranks[0].all(Collective):
            begins = call.op == "broadcast" and call.when.step == 0
            by_others = call.by_torch or call.decides
            if call.when.step < until and not by_others and not begins:
                exchanged[call.numel] += 1
        sizes = Counter(self.parameters.sizes)
        count = sizes.total()
        found = (sizes & exchanged).total()
        if found == count or found >= max(2, count / 2):
            return True
        whole = sum(self.parameters.sizes)
        # Together with the optimizer's state, perhaps.
        return any(1 < whole <= numel <= 4 * whole for numel in exchanged)

    @property
    def is_joint(self):
        return self.is_in_ddp or self.averaged_by_script

    @cached_property
    def first_difference(self):
        """The first row in which the ranks apply different gradients."""
        for row in self.rows:
            if row.differing("gradients"):
                return row
        return None

    @cached_property
    def looks(self):
        found = []
        for row in self.rows:
            if all(step.weights for step in row.steps):
                found.append(Look(row, row.differing("weights")))
        # A rank that broke off has other weights rightly.
        alike = len({last.n for last in self.lasts}) == 1
        if len(self.lasts) > 1 and alike:
            columns = zip(*(last.weights for last in self.lasts))
            numbers = [n for n, column in enumerate(columns) if len(set(column)) > 1]
            found.append(Look(None, numbers))
        return found

    @cached_property
    def drifts(self):
        """The weights differ at the last look, and were never brought together again."""
        differ = [bool(look.numbers) for look in self.looks]
        for earlier, later in zip(differ, differ[1:]):
            if earlier and not later:
                return False
        return bool(differ) and differ[-1]


@dataclass(frozen=True)
class Run:
    code: int | None  # None: it was stopped
    end: str  # ended, enough, hang, limit, interrupt
    ranks: tuple[Rank, ...]
    strangers: tuple[Rank, ...]  # processes that never joined a group
    optimizers: tuple[Optimizer, ...]
    alone: dict = field(default_factory=dict)  # facts() of a run on one rank, see --alone
    others: int = 0  # processes of other starts of ranks, see largest_start()
    short: int | None = None  # --short: after so many batches a pass ended
    kept: dict = field(default_factory=dict)  # files that were put back, see kept.py
    command: tuple = ()

    @property
    def ended_well(self):
        """By itself, or as --short means it."""
        return self.end == "enough" or (self.end == "ended" and self.code == 0)

    @property
    def is_loose(self):
        """Ranks may differ on purpose."""
        return any(rank.says(Loose) for rank in self.ranks)

    def all(self, kind):
        return [event for rank in self.ranks for event in rank.all(kind)]

    @property
    def processes(self):
        """The ranks, and then those that never joined a group."""
        return (*self.ranks, *self.strangers)

    @cached_property
    def teams(self):
        """The ranks that average with each other; all of them if nothing says so."""
        members = {tuple(event.ranks) for event in self.all(Wrapped)}
        teams = []
        for numbers in sorted(members):
            teams.append([rank for rank in self.ranks if rank.number in numbers])
        return teams or [list(self.ranks)]

    @cached_property
    def has_own_models(self):
        """Does more than one rank save weights, each into files of its own?"""
        paths = []
        for rank in self.ranks:
            own = {event.path for event in rank.all(Wrote) if event.weights}
            if own:
                paths.append(own)
        return len(paths) > 1 and not set.intersection(*paths)

    def meetings(self, ranks, keep, whole=True):
        """[(an epoch of each rank)]: the n-th whole epoch that one line began, on each rank.

        With whole=False: the n-th of those that were left early.
        """
        lines = defaultdict(list)
        for rank in ranks:
            own = defaultdict(list)
            for epoch in rank.epochs:
                if epoch.whole == whole and epoch.indices and keep(epoch):
                    own[epoch.began.at].append(epoch)
            for at, epochs in own.items():
                lines[at].append(epochs)
        meetings = []
        for columns in lines.values():
            if len(columns) == len(ranks) > 1:
                meetings += zip(*columns)
        return meetings


# ------------------------------------------------------------------ build it


def build(code, end, processes, alone=None, **about):
    """`about` has further fields of a Run."""
    strangers = []
    starts = []  # (when it joined last, its number, its events) of each process that joined
    for events in processes:
        joined = [event for event in events if isinstance(event, Joined)]
        if joined:
            starts.append((joined[-1].when.time, joined[-1].rank, events))
        else:
            strangers.append(rank_of(-1, events))
    chosen, others = largest_start(starts)
    ranks = tuple(rank_of(number, chosen[number]) for number in sorted(chosen))
    optimizers = optimizers_of(ranks)
    return Run(code, end, ranks, tuple(strangers), optimizers, alone or {}, others, **about)


def largest_start(starts):
    """-> {number: events} of the ranks that were started together, and how many others there were.

    A script may call mp.spawn several times, and torchrun may start all ranks again. If several
    starts have equally many ranks, it is the last one.
    """
    groups = [{}]
    for _, number, events in sorted(starts, key=lambda start: start[:2]):
        if number in groups[-1]:
            groups.append({})
        groups[-1][number] = events
    chosen = max(reversed(groups), key=len)
    return chosen, len(starts) - len(chosen)


def rank_of(number, events):
    epochs = epochs_of(events)
    evaluations = evaluations_of(events, epochs)
    return Rank(number, events, steps_of(events), epochs, evaluations, waits_of(events))


def steps_of(events):
    works = []
    parameters = {}  # the last ones of each optimizer
    since = []  # events since the last step
    passes = 0  # backward passes before
    for event in events:
        if isinstance(event, Parameters):
            parameters[event.optimizer] = event
        elif isinstance(event, ScalerStepped):
            since = []  # what led to a step that was left out leads to no other step
            passes = event.when.passes
        elif isinstance(event, Step):
            work = work_of(event, parameters[event.optimizer], since)
            # In a long run the events of calls are cut off before those of steps.
            if len(work.backwards) == event.when.passes - passes:
                works.append(work)
            since = []
            passes = event.when.passes
        else:
            since.append(event)
    return tuple(works)


def work_of(step, parameters, since):
    forwards = []
    backwards = []
    collectives = []
    own = []
    applied = []
    read = 0
    loaders = 0
    is_cut = False  # was the last pass over a loader ended by --short?
    carries = False
    for event in since:
        if isinstance(event, Forward) and event.training:
            forwards.append(event)
        elif isinstance(event, Backward):
            backwards.append(event)
        elif isinstance(event, Collective):
            collectives.append(event)
        elif isinstance(event, Gradients) and event.optimizer == step.optimizer:
            if event.before_clip:
                applied = event.sums
            else:
                own = event.sums
        elif isinstance(event, Batch) and not event.evaluates:
            read += len(event.indices)
        elif isinstance(event, EpochBegan):
            loaders += 1
        elif isinstance(event, Cut):
            is_cut = True
        if isinstance(event, (EpochBegan, EpochEnded)):
            carries |= is_cut and bool(backwards)
    lists = (tuple(forwards), tuple(backwards), tuple(collectives))
    return Work(step, parameters, *lists, own, applied or step.sums, read, loaders, carries)


def epochs_of(events):
    """Cut the batches of each loader at its iter()."""
    begun = {}  # loader -> position of its EpochBegan
    cuts = []
    for position, event in enumerate(events):
        if isinstance(event, EpochBegan):
            if event.loader in begun:
                cuts.append((begun[event.loader], position))
            begun[event.loader] = position
    cuts += [(start, len(events)) for start in begun.values()]
    epochs = []
    for start, end in sorted(cuts):
        epochs += epochs_between(events, start, end)
    return tuple(epochs)


def epochs_between(events, start, end):
    """From a loader's iter() until its next one. Other loaders may have been read in between.

    A loader that never stops, as that of YOLOv5, gives one epoch after the other: len(loader)
    batches are one. A framework may never call next() to the end, so StopIteration is not needed.
    """
    began = events[start]
    epochs = []
    batches = []
    stopped = False
    cut = None
    over = start
    passes = None  # backward passes until something else began, after the last batch
    for position in range(start + 1, end):
        event = events[position]
        if isinstance(event, Batch) and event.loader == began.loader:
            if began.batches and len(batches) == began.batches:
                epochs.append(epoch_of(began, batches, True, event.when.passes, over, None))
                batches = []
            batches.append(event)
            over = position
            passes = None
            continue
        if isinstance(event, EpochEnded) and event.loader == began.loader:
            stopped = True
        if isinstance(event, Cut) and event.loader == began.loader:
            cut = event
        if isinstance(event, (EpochBegan, EpochEnded)) and passes is None:
            passes = event.when.passes
    if passes is None:
        passes = last_passes(events)
    known = len(batches) + len(cut.batches if cut else [])
    whole = stopped and not cut if began.batches is None else known == began.batches
    epochs.append(epoch_of(began, batches, whole and len(batches) > 0, passes, over, cut))
    return epochs


def epoch_of(began, batches, whole, passes, over, cut):
    return Epoch(began, tuple(batches), whole, is_training(batches, passes), over, cut)


def last_passes(events):
    """Backward passes of the whole run. A worker of a loader knows of none."""
    return max(event.when.passes for event in events)


def is_training(batches, passes):
    """Were there backward passes between the batches, or after the only one?"""
    if not batches:
        return False
    first = batches[0]
    if batches[-1].when.passes > first.when.passes:
        return True
    return passes > first.when.passes and not first.evaluates


def waits_of(events):
    """The innermost call that did not return."""
    open_calls = []
    for event in events:
        if isinstance(event, WAITS):
            open_calls.append(event)
        elif isinstance(event, Returned) and open_calls:
            open_calls.pop()
    return open_calls[-1] if open_calls else None


def evaluations_of(events, epochs):
    """Cut the events at each training pass: between two of them an evaluation may lie."""
    ended = {}  # position of an epoch's last batch -> the epoch
    for epoch in epochs:
        if epoch.batches and not epoch.trained:
            ended[epoch.over] = epoch
    found = []
    model = None
    together = False
    reading = False
    orders = []
    for position, event in enumerate(events):
        if isinstance(event, Backward) or (isinstance(event, Forward) and event.training):
            if together:
                found.append(Evaluation(model, tuple(orders), reading))
            model = None
            together = False
            orders = []
        elif isinstance(event, Computes) and event.first:
            model = event
        elif isinstance(event, Collective) and model and not together and brings(event):
            # A collective in the function that calls the model, or after its data were read.
            together = bool(orders) or model.function in event.functions
            reading = any(is_open(epoch, event, position) for epoch in epochs)
        if position in ended:
            orders.append(tuple(ended[position].indices))
    if together:
        found.append(Evaluation(model, tuple(orders), reading))
    return tuple(found)


def is_open(epoch, event, position):
    """Was this epoch being read when the event happened?"""
    return epoch.began.when.time < event.when.time and position < epoch.over


def brings(event):
    """Does this call bring results together?"""
    return any(word in event.op for word in ("reduce", "gather", "all_to_all", "send", "recv"))


def optimizers_of(ranks):
    """The n-th steps of optimizers that have the same parameters, in one team."""
    table = defaultdict(dict)
    lasts = defaultdict(list)
    for rank in ranks:
        team = tuple(tuple(event.ranks) for event in rank.all(Wrapped))
        keys = {}
        alike = Counter()
        for event in rank.all(Parameters):
            form = (team, tuple(event.sizes), tuple(event.in_ddp))
            keys[event.optimizer] = (form, alike[form])  # two models may have one form
            alike[form] += 1
        for work in rank.steps:
            table[keys[work.step.optimizer], work.step.n][rank] = work
        for event in rank.all(Last):
            lasts[keys[event.optimizer]].append(event)
    rows = defaultdict(list)
    for (key, n), works in table.items():
        if len(works) >= min(2, len(ranks)):
            rows[key].append(Row(n, tuple(works), tuple(works.values())))
    optimizers = []
    for key, own in rows.items():
        in_order = sorted(own, key=lambda row: row.n)
        optimizers.append(Optimizer(tuple(in_order), tuple(lasts[key])))
    return tuple(optimizers)

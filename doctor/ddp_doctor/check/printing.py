"""What the script shows: is it a loss of rank 0 that is read as that of all?"""

import re
from dataclasses import dataclass

from ..run.digits import NUMBER, agrees
from ..run.events import Backward, Forward, Printed
from .findings import Finding

# The text says whose figure it is.
OWN = re.compile(r"\b(rank|shard|part|local|own|process|worker|node|fold|gpu|device|cuda)", re.I)
OF_TEST = re.compile(r"\W*(test|val|valid|validation|eval|evaluation)(\b|_)", re.I)
# Rank 0 shows it, although each rank calls these.
EACH_RANK_CALLS = ("Lightning", "Fabric", "Accelerate", "TensorBoard", "wandb")


@dataclass(frozen=True)
class Counts:
    """By what a script may divide its sums: a pass that --short ended has fewer of them."""

    batches: frozenset
    samples: frozenset


@dataclass(frozen=True)
class Pass:
    """A backward pass of a rank and its loss."""

    number: int  # backward passes before it
    loss: float  # without its factor
    whole: float  # with it: the Trainer multiplies by the number of ranks
    samples: int  # of the forward pass before it


def passes_of(rank):
    passes = []
    samples = 1
    for event in rank.events:
        if isinstance(event, Forward):
            samples = event.samples
        elif isinstance(event, Backward) and event.loss is not None:
            loss = event.loss / (event.factor or 1)
            passes.append(Pass(event.when.passes, loss, event.loss, samples))
    return passes


def loss_of_one_rank(run):
    """Only rank 0 shows it, and the number is its own loss or a mean of its own losses."""
    others = set()
    for rank in run.ranks[1:]:
        for event in rank.all(Printed):
            others.update([event.at, *event.through])
    lines = {}
    for event in run.ranks[0].all(Printed):
        by_rank_0 = event.at not in others or event.by in EACH_RANK_CALLS
        if event.evaluates and OF_TEST.match(event.text):
            continue  # it is no loss of the training
        if by_rank_0 and not OWN.search(event.text):
            lines.setdefault(event.at, []).append(event)
    passes = [passes_of(rank) for rank in run.ranks]
    begun = sorted({epoch.began.when.passes for epoch in run.ranks[0].epochs})
    counts = counts_of(run.ranks[0])
    for at, events in lines.items():
        hits = []
        misses = 0
        since = 0
        for event in events:
            starts = starts_of(since, event.when.passes, begun)
            own = is_own_loss(passes, starts, event, counts)
            if own:
                hits.append(event)
            elif own is not None and not event.evaluates:
                misses += 1  # in an evaluation a logger shows other losses
            since = event.when.passes
        # A number may agree with a loss by chance, but not in most lines.
        if len(hits) > misses:
            shown = f"{hits[0].text[:40]!r} ({hits[0].by})"
            yield Finding(
                "loss-of-one-rank",
                at,
                seen=f"Rank 0 shows {shown}, which is its own loss and not that of all ranks",
                fine="it is read as the loss of rank 0",
                comes_from=at,
            )


def counts_of(rank):
    cut = [epoch for epoch in rank.epochs if epoch.cut and epoch.trained]
    batches = {epoch.began.batches for epoch in cut}
    samples = {len(epoch.indices) for epoch in cut} | {epoch.began.samples for epoch in cut}
    return Counts(frozenset(filter(None, batches)), frozenset(filter(None, samples)))


def starts_of(since, until, begun):
    """Means are taken since the last such line, or since the epoch began."""
    earlier = [passes for passes in begun if passes < until]
    return {since, *earlier[-1:]}


def is_own_loss(passes, starts, event, counts):
    """Does a number agree with rank 0's losses, and not with the losses of each rank?

    None: it may as well be the mean of all ranks, as a right script prints it.
    """
    # A number without the word must have more digits, so that it does not agree by chance.
    digits = 2 if "loss" in event.text.lower() else 4
    numbers = []
    for number in NUMBER.findall(event.text):
        if len(number.partition(".")[2]) >= digits:
            numbers.append(number)
    of_ranks = [[] for _ in passes]
    of_all = []
    for start in starts:
        rows = []
        for own, known in zip(passes, of_ranks):
            row = losses_of(own, start, event.when.passes, counts)
            known += row
            rows.append(row)
        of_all += [sum(values) / len(values) for values in zip(*rows)]
    agree = [is_shown(numbers, known) for known in of_ranks]
    if not agree[0] or all(agree):
        return False
    return None if is_shown(numbers, of_all) else True


def is_shown(numbers, values):
    for value in values:
        if any(agrees(number, value) for number in numbers):
            return True
    return False


def losses_of(passes, since, until, counts):
    """The last loss, the next one, and means and the sum of those since a pass.

    The next one: a line that stands before backward() shows the loss that follows. Each loss
    counts with and without its factor.
    """
    losses = []
    wholes = []
    weights = []
    known = [float("nan")] * 4
    for one in passes:
        if one.number in (until - 1, until):
            place = 2 * (one.number - until + 1)
            known[place] = one.whole
            known[place + 1] = one.loss
        if since <= one.number < until:
            losses.append(one.loss)
            wholes.append(one.whole)
            weights.append(one.samples)
    if losses:
        known.append(sum(losses) / len(losses))
        weighed = [loss * weight for loss, weight in zip(losses, weights)]
        known.append(sum(weighed) / max(sum(weights), 1))
        # With accumulation the parts of a step are added up; a script may add up all steps.
        known.append(sum(losses))
        known.append(sum(wholes) / len(wholes))
        known.append(sum(wholes))
        for count in sorted(counts.batches):
            known.append(sum(losses) / count)
            known.append(sum(wholes) / count)
        for count in sorted(counts.samples):
            known.append(sum(weighed) / count)
    return known


JUDGES = [loss_of_one_rank]

"""Facts of a run that need no judge: its steps, and what each rank does at its end."""

from collections import Counter

from .events import Collective, Destroyed, Ended, Raised


def facts(run):
    """What --alone compares: the steps of the first optimizer whose gradients are averaged."""
    joint = [optimizer for optimizer in run.optimizers if optimizer.is_joint]
    chosen = [*joint, *run.optimizers]
    if not chosen:
        return {}
    rows = chosen[0].rows
    samples = Counter()
    rates = []
    for row in rows:
        samples[sum(work.samples for work in row.works)] += 1
        rates += row.steps[0].rates
    largest = [max(rates)]
    for optimizer in chosen[1 : len(joint) or 1]:
        largest.append(max(max(row.steps[0].rates) for row in optimizer.rows))
    return {
        "steps": len(rows),
        "samples": samples.most_common(1)[0][0],
        "rate": max(rates),
        "rates": largest,  # of each optimizer whose gradients are averaged
        "at": rows[0].at,
    }


def state(rank):
    steps = f"after {len(rank.steps)} steps"
    if rank.waits and rank.says(Raised):
        return f"waited in {op_of(rank.waits)} ({rank.waits.at}) {steps} until it raised"
    if rank.waits:
        return f"waits in {op_of(rank.waits)} ({rank.waits.at}) {steps}"
    if rank.says(Ended) or rank.says(Destroyed):
        return f"has ended {steps}"
    return f"computes {steps}"


def op_of(event):
    return event.op if isinstance(event, Collective) else type(event).__name__.lower()

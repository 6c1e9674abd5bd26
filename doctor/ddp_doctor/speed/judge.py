"""What costs time, and in which line: the judges of `speed`, from what the laps of a run say.

A judge yields a Cost. No time without a core is in any cost, since that is the machine's business.
"""

from statistics import mean, median

from .costs import Cost
from .pace import PAUSE, WORK

FEW_BYTES = 2**20  # of gradients: an all-reduce of fewer costs latency, mostly
LEAST_MS = 1.0  # what costs less in a step is not named
LEAST_SHARE = 0.02  # of a step
MANY_FAULTS = 1000  # page faults in a step; a process that keeps its memory has close to none
SPENT_ON = {
    "evaluation": "on evaluation",
    "saving": "on saving",
    "own": "in the script's own code",
}


def cost(key, at, seconds, seen):
    return Cost(key, at, 1000 * seconds, seen)


def slow_data(pace):
    """All ranks wait for their batches."""
    seconds = pace.least(lambda step: step.phases["data"])
    if seconds > 0.1 * pace.step:
        at, share = pace.hot(["data"])
        seen = f"all ranks wait for their batch, {share:.0%} of the time in this line"
        yield cost("slow-data", at, seconds, seen)


def straggler(pace):
    """One rank works longer than the others, in most steps."""
    if len(pace.ranks) < 2:
        return
    for position, rank in enumerate(pace.ranks):
        more = more_work(pace, position)
        seconds = sum(more.values())
        phase = max(more, key=more.get)
        often = mean(works_longest(row, position) for row in pace.rows)
        if often > 0.7 and min(seconds, more[phase]) > 0.1 * pace.step:
            at, _ = pace.hot(WORK, position, others=True)
            share = f"{often:.0%} of the steps"
            seen = f"rank {rank.number} works longer in {share}, mostly in {phase}"
            yield cost("straggler", at, seconds, seen)


def others_of(row, position):
    return row[:position] + row[position + 1 :]


def more_work(pace, position):
    """{phase: the seconds in a step for which this rank is in it, more than the others are}"""
    more = {}
    for phase in WORK:
        if phase == "saving":
            continue  # rank 0 saves for all: see pauses()
        differences = []
        for row in pace.rows:
            rest = median(step.phases[phase] for step in others_of(row, position))
            differences.append(row[position].phases[phase] - rest)
        more[phase] = median(differences)
    return more


def works_longest(row, position):
    """A rank that only waits for a core longer than the others has not more work."""
    works = [step.work - step.laps.no_core for step in row]
    return works[position] > max(others_of(works, position))


def communication(pace):
    """DDP averages too many bytes, so few that it is latency, or too often."""
    reducer = pace.zero.reducer
    if reducer is None:
        return
    exposed = pace.least(lambda step: step.phases["exposed"])
    early = pace.least(wasted_averages)
    at, _ = pace.hot(["exposed"])
    if early > 0:
        passes = round(pace.of_rank(0, lambda step: step.laps.passes))
        each = f"DDP averages in each of the {passes} passes of a step"
        seen = f"{each}: no_sync() around all but the last one leaves this out"
        yield cost("each-pass-synced", at, early, seen)
    rest = exposed - early
    # While a rank or one of gloo's threads waits for a core, the average takes longer.
    without_core = pace.least(lambda step: step.laps.no_core)
    if rest > max(0.2 * pace.step, without_core, others_without_core(pace)):
        seen = f"{reducer.bytes:,} bytes are averaged after the last gradient"
        if reducer.bytes < FEW_BYTES:
            few = f"{seen}: so few that it is latency, which a step pays whatever its batch is"
            yield cost("small-batch", at, rest, few)
        else:
            yield cost("exposed", at, rest, seen)


def others_without_core(pace):
    """Seconds of a step in which the threads that communicate had no core, on the worst rank."""
    most = 0.0
    for rank in pace.ranks:
        if rank.looks is not None:
            most = max(most, rank.looks.others_without_core / len(rank.steps))
    return most


def wasted_averages(step):
    """The time of all averages but the last, if the passes of a step add to one gradient.

    It is not wasted if there are several models or optimizers, as those of a GAN, or if each pass
    begins without gradients.
    """
    laps = step.laps
    averages_each = len(laps.averages) == laps.passes > 1
    if averages_each and laps.accumulates and laps.models == 1 and laps.others == 0:
        return sum(laps.averages[:-1])
    return 0.0


def collectives(pace):
    """The script communicates in each step."""
    reducer = pace.zero.reducer
    sent = pace.of_rank(0, lambda step: step.laps.sent if step.laps.averages else 0)
    all_gradients = reducer is not None and sent >= 0.9 * reducer.bytes
    for call in calls_of(pace):
        seconds = pace.least(lambda step, call=call: step.laps.calls.get(call, 0.0))
        if reducer is None and seconds < 0.2 * pace.step:
            continue  # to average by hand is no mistake
        name, _, at = call.partition(" ")
        if all_gradients and name == "all_reduce":
            what = f"{sent:,.0f} bytes after DDP has averaged its gradients"
            yield cost("averaged-twice", at, seconds, f"{name} in each step: {what}")
        else:
            yield cost("own-collectives-per-step", at, seconds, f"{name} in each step")


def calls_of(pace):
    calls = set()
    for row in pace.rows:
        calls.update(row[0].laps.calls)
    return sorted(calls)


# ------------------------------------------------------------------ what happens in some steps only


def shares(pace):
    """Evaluation, and saving in the loop, next to training."""
    steps = pace.zero.steps.values()
    evaluation = min(rank.total("evaluation") for rank in pace.ranks)
    yield from next_to_training(pace, "evaluation-share", ["evaluation"], evaluation, 0.5)
    often = sum(step.phases["saving"] > 0 for step in steps) > 5
    saving = pace.zero.total("saving") if often else 0.0
    yield from next_to_training(pace, "saving-share", ["saving"], saving, 0.05)


def next_to_training(pace, key, phases, seconds, most, why=""):
    """All of it together is more than this share of training."""
    training = pace.zero.training
    if seconds > most * training:
        at, _ = pace.hot(phases)
        where = "between epochs" if phases == PAUSE else SPENT_ON[phases[0]]
        who = "rank 0" if key == "rank-0-works-alone" else "the run"
        seen = f"{who} spent {seconds:.1f} s {where}, and {training:.1f} s on training{why}"
        yield cost(key, at, seconds / len(pace.zero.steps), seen)


def rank_0_works_alone(pace):
    """Rank 0 does something between steps, and the others wait for it."""
    waited = -more_on_rank_0(pace, ["collective", "exposed"])
    for phases in (["evaluation"], ["saving"], ["own", *PAUSE]):
        seconds = min(more_on_rank_0(pace, phases), waited)
        yield from next_to_training(pace, "rank-0-works-alone", phases, seconds, 0.05)


def more_on_rank_0(pace, phases):
    """Seconds of all steps together, beyond what is usual in a step, and beyond the other ranks."""
    unusual = []
    for rank in pace.ranks:
        row = [step.sum_of(phases) for step in rank.steps.values()][3:]
        unusual.append(sum(row) - len(row) * median(row))
    others = unusual[1:] or unusual
    return unusual[0] - median(others)


def epoch_pause(pace):
    """Between epochs all ranks wait: for workers that start again, for a loader built again, ..."""
    usual = pace.least(lambda step: step.phases["data"])
    counts = [len(rank.pauses) for rank in pace.ranks]
    if not min(counts):
        return
    pauses = []
    for rank in pace.ranks:
        pauses.append(sum(step.pause - usual for step in rank.pauses))
    seconds = min(pauses)
    each = seconds / min(counts)
    why = f", {each:.2f} s before each of {min(counts)} epochs; {why_it_pauses(pace.zero)}"
    yield from next_to_training(pace, "epoch-pause", PAUSE, seconds, 0.05, why)


def why_it_pauses(rank):
    """What the loaders have done at the beginning of these epochs."""
    first_batch = sum(step.phases["first batch"] for step in rank.pauses)
    between = sum(step.phases["between"] for step in rank.pauses)
    if between > first_batch:
        return "most of it is the script's own code between the epochs"
    if any(not loaded.again for loaded in rank.loaded):
        return "the loader is built again for each epoch"
    workers = max((one.workers for one in rank.loaded if not one.persistent), default=0)
    if workers:
        who = "its worker starts" if workers == 1 else f"its {workers} workers start"
        return f"{who} again: persistent_workers=True keeps what has started"
    return "most of it is the wait for the first batch"


# ------------------------------------------------------------------ the rest


def own_code(pace):
    """Without DDP the forward pass may be in it, so it is not named."""
    at, share = pace.hot(["own"])
    seconds = share * pace.least(lambda step: step.phases["own"])
    if seconds > 0.1 * pace.step and pace.zero.total("forward"):
        seen = "the script's own code in the loop, on all ranks"
        yield cost("own-code", at, seconds, seen)


def unused_search(pace):
    """DDP searches for unused parameters, and there are none."""
    rank = pace.zero
    if rank.reducer is None or rank.looks is None or not rank.reducer.searches:
        return
    passes = sum(step.laps.passes for step in rank.steps.values())
    if rank.looks.gradients == passes * rank.reducer.parameters:
        seconds = pace.least(lambda step: step.laps.seconds.get("search", 0.0))
        seen = "find_unused_parameters is on, and every parameter had a gradient in each pass"
        yield cost("unused-search", rank.reducer.at, seconds, seen)


def memory_returned(pace):
    """Each rank returns memory to the system in a step, and asks for it again in the next."""
    positions = range(len(pace.ranks))
    faults = min(pace.of_rank(position, lambda step: step.laps.faults) for position in positions)
    if faults > MANY_FAULTS:
        at, _ = pace.hot(["forward", "backward"])
        kernel = pace.least(lambda step: step.laps.kernel)
        seen = f"{faults:,.0f} page faults in a step: memory is returned and asked for again"
        yield cost("memory-returned", at, kernel, seen)


JUDGES = [
    slow_data,
    straggler,
    communication,
    collectives,
    shares,
    rank_0_works_alone,
    epoch_pause,
    own_code,
    unused_search,
    memory_returned,
]


def findings(pace):
    """All costs that are worth a line, the dearest first."""
    least = max(LEAST_MS, LEAST_SHARE * 1000 * pace.step)
    found = []
    for judge in JUDGES:
        found += [one for one in judge(pace) if one.ms >= least]
    return sorted(found, key=lambda one: one.ms, reverse=True)

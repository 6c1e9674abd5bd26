"""What costs time, and in which line: the steps of a run with --speed, and what they show.

A judge yields (seconds per step, key, line, text). A cost leaves out the time without a processor.
"""

import os
from collections import Counter, defaultdict
from statistics import mean, median

from . import twin

PHASES = "data forward backward exposed optimizer collective saving own".split()
FORWARD = {"search": "forward", "loss": "forward"}  # parts of it
WORK = [p for p in PHASES if p not in ("exposed", "collective")]  # the rest waits for other ranks
FEW = 2**20  # bytes of gradients: an all-reduce of fewer costs latency, mostly
LEAST = 0.001, 0.02  # seconds, and share of a step: what costs less is not named


class Step:
    """Seconds per phase, and those of them in which the rank had no processor (waits)."""

    def __init__(self, step, waited):
        self.__dict__.update(step)
        self.phases, self.waits, self.places, averages = Counter(), Counter(), Counter(), []
        self.calls, begin = Counter(tuple(one[:2]) for one in self.laps), self.begin
        for phase, at, end, delay in self.laps:
            cost = end - begin - (delay - waited)
            self.places[phase, at] += cost
            averages += [cost] if phase == "exposed" else []
            phase = FORWARD.get(phase, phase)
            self.phases[phase] += end - begin
            self.waits[phase] += delay - waited
            begin, waited = end, delay
        self.waited, self.early = waited, sum(averages[:-1])
        self.cost = {p: self.phases[p] - self.waits[p] for p in PHASES}
        self.work = sum(self.cost[p] for p in WORK)
        self.time = sum(self.phases[p] for p in PHASES)
        self.regular = self.n > 3 and not self.new and not self.phases["evaluation"]


class Rank:
    """The steps of one rank: {number: Step}."""

    def __init__(self, events):
        self.events, self.steps, waited = {e["kind"]: e for e in events}, {}, 0.0
        for step in [s for e in events if e["kind"] == "laps" for s in e["steps"]]:
            self.steps[step["n"]] = one = Step(step, waited)
            waited = one.waited
        self.number, self.end = self.events["init"]["rank"], self.events.get("end", {})

    def hot(self, *phases, others=()):
        """The line in which this rank was most of a phase, or longer than others; and its share."""
        lines = Counter()
        for key, seconds in self.end.get("hot", {}).items():
            phase, at = key.split(" ", 1)
            if FORWARD.get(phase, phase) in phases:
                rest = [rank.end.get("hot", {}).get(key, 0) for rank in others]
                lines[at] += seconds - (median(rest) if rest else 0)
        line = max(lines, key=lines.get, default="?")
        return line, lines[line] / (lines.total() or 1)

    def place(self, phase):
        """The line that begins a phase."""
        places = (key for step in self.steps.values() for key in step.places)
        return next((at for name, at in places if name == phase), "?")

    def total(self, phase):
        return sum(step.phases[phase] for step in self.steps.values())


class Measured:
    """A run as the judges see it. A step counts if it is a regular one on all ranks."""

    def __init__(self, run):
        events = [own for own, _ in run.processes if any(e["kind"] == "laps" for e in own)]
        self.ranks = sorted(map(Rank, events), key=lambda rank: rank.number)
        every = [{n for n, s in rank.steps.items() if s.regular} for rank in self.ranks]
        self.common = sorted(set.intersection(*every)) if every else []
        self.rows = [[rank.steps[n] for rank in self.ranks] for n in self.common]
        self.run, self.kinds, self.fewer = run, {}, 0
        cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))  # not on a Mac
        self.cores = len(cores(0))
        if self.rows:
            self.zero = self.ranks[0]
            self.wrap = self.zero.events.get("wrap")
            self.step = median(sum(s.cost.values()) for row in self.rows for s in row)
            self.waits = median(s.waits.total() for row in self.rows for s in row)

    def typical(self, rank, value):
        return median(value(rank.steps[n]) for n in self.common)

    def least(self, value):
        """The median over steps of the least of all ranks: no wait for a slower one is in it."""
        return median(min(map(value, row)) for row in self.rows)

    def rounds(self, size):
        """{kind: [(mean, most) over the ranks, in seconds of a step, for each block]}"""
        blocks, result = defaultdict(lambda: defaultdict(list)), defaultdict(list)
        for rank in self.ranks:
            for n, step in rank.steps.items():
                block, place = divmod(n - twin.WARM - 1, size)
                if n > twin.WARM and place and step.regular:  # the first belongs to two kinds
                    blocks[step.kind, block][rank].append(step.time)
        for (kind, _), own in blocks.items():
            if len(own) == len(self.ranks):
                times = [median(steps) for steps in own.values()]
                result[kind].append((mean(times), max(times)))
        return result


def slow_data(run):
    costs = [run.typical(rank, lambda s: s.cost["data"]) for rank in run.ranks]
    rank = run.ranks[costs.index(max(costs))]
    if max(costs) > 0.1 * run.step:
        at, share = rank.hot("data")
        text = f"rank {rank.number} waits for its batch, {share:.0%} of it in this line"
        yield max(costs), "slow-data", at, text


def straggler(run):
    for own, rank in enumerate(run.ranks if len(run.ranks) > 1 else []):
        rows = [(row[own], row[:own] + row[own + 1 :]) for row in run.rows]
        more = {}
        for phase in set(WORK) - {"saving"}:
            rests = [median(s.cost[phase] for s in rest) for _, rest in rows]
            more[phase] = median(one.cost[phase] - rest for (one, _), rest in zip(rows, rests))
        cost, phase = sum(more.values()), max(more, key=more.get)
        often = mean(one.work > max(s.work for s in rest) for one, rest in rows)
        if often > 0.7 and min(cost, more[phase]) > 0.05 * run.step:
            at, _ = rank.hot(*WORK, others=[r for r in run.ranks if r is not rank])
            text = f"rank {rank.number} works longer in {often:.0%} of the steps, mostly in {phase}"
            yield cost, "straggler", at, text


def communication(run):
    """Exposed communication: too many bytes, so few that it is latency, or too many averages."""
    if not run.wrap:
        return
    cost, at = run.least(lambda s: s.cost["exposed"]), run.zero.place("exposed")
    early = run.least(lambda s: s.early if s.synced == s.passes and not s.others else 0)
    size = run.wrap["bytes"]
    text = f"{size:,} bytes are averaged after the last gradient"
    if early > 0.5 * cost > 0:
        passes = run.typical(run.zero, lambda s: s.passes)
        text = f"DDP averages in each of {passes:.0f} passes of a step: no_sync() for all but one"
        yield early, "each-pass-synced", at, text
    elif cost > max(0.2 * run.step, run.waits):  # gloo's threads wait for processors, too
        few = f"{text}: so few that it is latency, which each step pays whatever its batch is"
        yield cost, *(("small-batch", at, few) if size < FEW else ("exposed", at, text))


def collectives(run):
    for key in {place for row in run.rows for place in row[0].places if place[0] == "collective"}:
        calls, (name, _, at) = median(row[0].calls[key] for row in run.rows), key[1].partition(" ")
        cost = median(min(s.places[key] for s in row) for row in run.rows)
        moved = run.typical(run.zero, lambda s: s.moved)
        if calls >= 1:
            text = f"{name}, {calls:.0f} time(s) in each step"
            again = run.wrap and name == "all_reduce" and moved >= 0.9 * run.wrap["bytes"]
            again = again and run.typical(run.zero, lambda s: s.synced)
            text += f": {moved:,.0f} bytes after DDP has averaged its gradients" if again else ""
            yield cost, "averaged-twice" if again else "own-collectives-per-step", at, text


def rank_zero(run):
    """Where ranks meet between regular steps: how long do the others wait for rank 0?"""
    total, parts = 0.0, Counter()
    for n in run.zero.steps if len(run.ranks) > 1 else ():
        rows = [rank.steps[n] for rank in run.ranks if n in rank.steps]
        if n > 3 and n not in run.common and len(rows) == len(run.ranks):
            own, *waits = [s.phases["collective"] + s.phases["exposed"] for s in rows]
            total += max(0.0, median(waits) - own)
            for phase in ("evaluation", "saving", "own"):
                parts[phase] += rows[0].phases[phase] - median(s.phases[phase] for s in rows[1:])
    phase = max(parts, key=parts.get, default="own")
    if min(total, parts[phase]) > 0.05 * sum(s.time for s in run.zero.steps.values()):
        text = f"the others wait {total:.1f} s in all for rank 0, which is in {phase}"
        yield total / len(run.zero.steps), "rank-0-works-alone", run.zero.hot(phase)[0], text


def shares(run):
    steps = run.zero.steps.values()
    saving, training = run.zero.total("saving"), sum(step.time for step in steps)
    evaluation = min(rank.total("evaluation") for rank in run.ranks)  # rank 0 alone: rank_zero()
    often = sum(step.phases["saving"] > 0 for step in steps) > 5
    spent = {"evaluation": (evaluation, 0.5), "saving": (often * saving, 0.05)}
    for phase, (total, most) in spent.items():
        if total > most * (training - saving):
            at = run.zero.place(phase) if phase == "saving" else run.zero.hot(phase)[0]
            text = f"{total:.1f} s in all, next to {training - saving:.1f} s of training"
            yield total / len(steps), f"{phase}-share", at, text


def own_code(run):
    at, share = run.zero.hot("own")
    cost = share * run.least(lambda s: s.cost["own"])
    if cost > 0.05 * run.step:
        yield cost, "own-code", at, "the script's own code in the loop, on all ranks"


def unused(run):
    if run.wrap and run.wrap["find_unused"] and run.zero.end.get("gradients") == run.wrap["count"]:
        cost = run.least(lambda s: sum(v for (p, _), v in s.places.items() if p == "search"))
        text = "find_unused_parameters is on, and in the first steps every parameter had a gradient"
        yield cost, "unused-search", run.wrap["at"], text


def threads(run):
    if "threads" in run.kinds:
        fewer, usual = (median(t for t, _ in run.kinds[kind]) for kind in ("threads", "with"))
        text = f"{run.zero.end['threads']} threads per rank, and {run.cores} cores for all; with "
        text += f"{run.fewer} each, a step of the twin takes so much less"
        yield usual - fewer, "too-many-threads", run.zero.events["init"]["at"], text


JUDGES = [slow_data, straggler, communication, collectives, rank_zero, shares, own_code]
JUDGES += [unused, threads]


def findings(run):
    """-> [(seconds per step, key, line, text)], the most expensive first."""
    found = [one for judge in JUDGES for one in judge(run)]
    least = max(LEAST[0], LEAST[1] * run.step)
    return sorted((one for one in found if one[0] >= least), reverse=True)

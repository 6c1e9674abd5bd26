"""What costs time, and in which line: the steps of a run with --speed, and what they show.

A judge yields (seconds per step, key, line, text). No time without a processor is in any cost.
"""

from collections import Counter, defaultdict
from statistics import mean, median

from . import twin

PHASES = "data forward backward exposed optimizer collective saving own".split()
FORWARD = {"search": "forward", "loss": "forward"}  # parts of it
WORK = [p for p in PHASES if p not in ("exposed", "collective")]  # the rest waits for other ranks
FEW = 2**20  # bytes of gradients: an all-reduce of fewer costs latency, mostly
LEAST = 0.001, 0.02  # seconds, and share of a step: what costs less is not named


class Step:
    """Its seconds by phase, and by part of a phase; and those without a processor (wait)."""

    def __init__(self, step):
        self.__dict__.update(step)
        self.phases, averages = Counter(), []
        for name, seconds, wait in self.laps:
            phase = name.split()[0]  # of "collective barrier train.py:9"
            for key in {name, phase, FORWARD.get(phase, phase)}:
                self.phases[key] += seconds - wait
            averages += [seconds - wait] if phase == "exposed" else []
        self.early, self.wait = sum(averages[:-1]), sum(one[-1] for one in self.laps)
        self.work = sum(self.phases[p] for p in WORK)
        self.time = self.wait + sum(self.phases[p] for p in PHASES)
        self.regular = self.n > 3 and not self.new and not self.phases["evaluation"]


class Rank:
    """The steps of one rank: {number: Step}."""

    def __init__(self, events):
        self.events = {e["kind"]: e for e in events}
        laps = [step for e in events if e["kind"] == "laps" for step in e["steps"]]
        self.steps = {step["n"]: Step(step) for step in laps}
        self.number, self.end = self.events["init"]["rank"], self.events.get("end", {})

    def hot(self, *phases, others=()):
        """The line with most of a phase, or more than on others; the share of it and lines near."""
        lines = Counter()
        for key, seconds in self.end.get("hot", {}).items():
            phase, at = key.split(" ", 1)
            if FORWARD.get(phase, phase) in phases:
                rest = [rank.end.get("hot", {}).get(key, 0) for rank in others]
                lines[at] += seconds - (median(rest) if rest else 0)
        line = max(lines, key=lines.get, default="?:0")
        file, _, number = line.rpartition(":")
        near = sum(lines[f"{file}:{int(number) + more}"] for more in range(-3, 4))
        return line, near / (lines.total() or 1)

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
        self.run, self.kinds, self.cores = run, {}, twin.CORES
        if self.rows:
            self.zero = self.ranks[0]
            self.wrap = self.zero.events.get("wrap")
            self.step = median(s.time for row in self.rows for s in row)

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
    (at, share), cost = run.zero.hot("data"), run.least(lambda s: s.phases["data"])
    if cost > 0.1 * run.step:
        yield cost, "slow-data", at, f"all ranks wait for their batch, {share:.0%} of it here"


def straggler(run):
    for own, rank in enumerate(run.ranks if len(run.ranks) > 1 else []):
        rows = [(row[own], row[:own] + row[own + 1 :]) for row in run.rows]
        more = {}
        for phase in set(WORK) - {"saving"}:
            rests = [median(s.phases[phase] for s in rest) for _, rest in rows]
            more[phase] = median(one.phases[phase] - rest for (one, _), rest in zip(rows, rests))
        cost, phase = sum(more.values()), max(more, key=more.get)
        often = mean(one.work > max(s.work for s in rest) for one, rest in rows)
        if often > 0.7 and min(cost, more[phase]) > 0.1 * run.step:
            at, _ = rank.hot(*WORK, others=[r for r in run.ranks if r is not rank])
            text = f"rank {rank.number} works longer in {often:.0%} of the steps, mostly in {phase}"
            yield cost, "straggler", at, text


def communication(run):
    """Exposed communication: too many bytes, so few that it is latency, or too many averages."""
    if not run.wrap:
        return
    cost, size = run.least(lambda s: s.phases["exposed"]), run.wrap["bytes"]
    early = run.least(lambda s: s.early if s.synced == s.passes and not s.others else 0)
    (at, _), text = run.zero.hot("exposed"), f"{size:,} bytes are averaged after the last gradient"
    if early > 0.5 * cost > 0:
        passes = run.typical(run.zero, lambda s: s.passes)
        text = f"DDP averages in each of {passes:.0f} passes of a step: no_sync() for all but one"
        yield early, "each-pass-synced", at, text
    elif cost > max(0.2 * run.step, run.least(lambda s: s.wait)):  # gloo's threads wait, too
        few = f"{text}: so few that it is latency, which each step pays whatever its batch is"
        yield cost, *(("small-batch", at, few) if size < FEW else ("exposed", at, text))


def collectives(run):
    moved = run.typical(run.zero, lambda s: s.synced and s.moved)
    whole = run.wrap and moved >= 0.9 * run.wrap["bytes"]
    for key in {key for row in run.rows for key in row[0].phases if key.startswith("collective ")}:
        _, name, at = key.split(" ", 2)
        again = whole and name == "all_reduce"
        text = f"{name} in each step"
        text += f": {moved:,.0f} bytes after DDP has averaged its gradients" if again else ""
        cost = run.least(lambda s, key=key: s.phases[key])
        if run.wrap or cost > 0.2 * run.step:  # averaging by hand is no mistake
            yield cost, "averaged-twice" if again else "own-collectives-per-step", at, text


def pauses(run):
    """Evaluation, saving, and what the others wait for while rank 0 does it between steps."""
    steps, saving = run.zero.steps, run.zero.total("saving")
    training = sum(step.time for step in steps.values()) - saving
    often = sum(step.phases["saving"] > 0 for step in steps.values()) > 5
    evaluation = min(rank.total("evaluation") for rank in run.ranks)
    spent = [("evaluation-share", "evaluation", evaluation, 0.5)]
    spent += [("saving-share", "saving", often * saving, 0.05)]

    def more(*phases):  # than usual, on rank 0 and not on the others
        counted = [list(rank.steps.values())[3:] for rank in run.ranks]
        rows = [[sum(s.phases[p] for p in phases) for s in own] for own in counted]
        zero, *rest = [sum(row) - len(row) * median(row) for row in rows]
        return zero - median(rest or [zero])

    for phase in ("evaluation", "saving", "own"):
        total = min(more(phase), -more("collective", "exposed"))
        spent.append(("rank-0-works-alone", phase, total, 0.05))
    for key, phase, total, most in spent:
        if total > most * training:
            text = f"{total:.1f} s in all in {phase}, next to {training:.1f} s of training"
            yield total / len(steps), key, run.zero.hot(phase)[0], text


def own_code(run):
    at, share = run.zero.hot("own")
    cost = share * run.least(lambda s: s.phases["own"])
    if cost > 0.1 * run.step and run.zero.total("forward"):  # else it contains the forward pass
        yield cost, "own-code", at, "the script's own code in the loop, on all ranks"


def unused(run):
    passes = sum(step.passes for step in run.zero.steps.values())
    all_used = run.wrap and run.zero.end.get("gradients") == passes * run.wrap["count"]
    if all_used and run.wrap["find_unused"]:
        cost = run.least(lambda s: s.phases["search"])
        text = "find_unused_parameters is on, and every parameter had a gradient in each pass"
        yield cost, "unused-search", run.wrap["at"], text


def threads(run):
    if "threads" in run.kinds:
        fewer, usual = (median(t for t, _ in run.kinds[kind]) for kind in ("threads", "with"))
        text = f"{run.zero.end['threads']} threads per rank, and {run.cores} cores for all ranks"
        yield usual - fewer, "too-many-threads", run.zero.events["init"]["at"], text


JUDGES = [slow_data, straggler, communication, collectives, pauses, own_code, unused, threads]


def findings(run):
    """-> [(seconds per step, key, line, text)], the most expensive first."""
    found = [one for judge in JUDGES for one in judge(run)]
    least = max(LEAST[0], LEAST[1] * run.step)
    return sorted((one for one in found if one[0] >= least), reverse=True)

"""What the judges share: the ranks of a run, the steps that belong together, a finding."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

JUDGES = []


@dataclass
class Finding:
    severity: str  # wrong, check or wasteful
    key: str
    at: str  # file:line
    seen: str
    why: str
    page: str
    exercise: str | None


def finds(key, page, exercise=None):
    """For a function that yields (severity, at, seen); its docstring says why it matters."""

    def register(judge):
        def found(case):
            why = " ".join(judge.__doc__.split())
            return [Finding(one[0], key, *one[1:], why, page, exercise) for one in judge(case)]

        found.key, found.page = key, page
        JUDGES.append(found)
        return judge

    return register


class Rank:
    """The events of one process, and where it was in the end."""

    def __init__(self, events, now):
        self.events, self.now = events, now
        self.init = next((e for e in reversed(events) if e["kind"] == "init"), None)
        self.number = self.init["rank"] if self.init else None
        self.waits = bool(now.get("op"))  # it was stopped in a communication, or that failed

    def all(self, *kinds):
        return [e for e in self.events if e["kind"] in kinds]

    def epochs(self, trained):
        """Whole epochs of loaders, with or without backward passes in them."""
        return [e for e in self.all("epoch") if bool(e["backwards"]) == trained and e["whole"]]


class Case:
    """A run as the judges see it."""

    def __init__(self, run):
        self.run, self.alone, self.found = run, None, []
        processes = [Rank(*process) for process in run.processes]
        ranks = {p.number: p for p in processes if p.init}  # of a restarted rank: the last
        self.ranks = [ranks[number] for number in sorted(ranks)]
        self.others = [p for p in processes if not p.init]
        self.wraps = [e for rank in self.ranks for e in rank.all("wrap")]
        self.optimizers = {e["key"]: e for rank in self.ranks for e in rank.all("optimizer")}
        self.loose = any(rank.all("join", "hook") for rank in self.ranks)  # may differ on purpose

    @cached_property
    def steps(self):
        """{optimizer: [(n, {rank: step})]}: the steps of several ranks that belong together."""
        table, result = defaultdict(dict), defaultdict(list)
        for rank in self.ranks:
            for step in rank.all("step"):
                table[step["optimizer"], step["n"]][rank.number] = step
        for (key, n), ranks in table.items():
            if len(ranks) > 1:
                result[key].append((n, ranks))
        return result

    def joint(self):
        """The optimizers whose gradients DDP or the script averages, with their steps."""
        for key, steps in self.steps.items():
            if any(self.optimizers[key]["ddps"]) or self.averages(key):
                yield key, self.optimizers[key], steps

    def averages(self, key, until=9):
        """Does the script itself exchange gradients or weights of the size of these parameters?"""
        calls = [e for e in self.ranks[0].all("collective") if e["op"] != "broadcast" or e["step"]]
        sizes = Counter(e["numel"] for e in calls if e["step"] < until)
        numels = self.optimizers[key]["numels"]
        return not Counter(numels) - sizes or max(sizes, default=0) >= sum(numels) > 1

    def apart(self, key):
        """Do the ranks train different models, without anything that shows a purpose?"""
        return self.drifts(key) and not self.loose and not self.averages(key, until=1e9)

    def weights(self, key):
        """[(n, numbers)]: at each look, the numbers of the tensors that differ between ranks."""
        looks = [
            (n, ranks)
            for n, ranks in self.steps[key]
            if all("weights" in s for s in ranks.values())
        ]
        ends = [(r.number, e) for r in self.ranks for e in r.all("last") if e["optimizer"] == key]
        looks += [(None, dict(ends))] if len(ends) > 1 else []
        return [(n, differing(ranks, "weights")) for n, ranks in looks]

    def drifts(self, key):
        """The weights of the ranks differ in the end, and were never brought together again."""
        differ = [bool(numbers) for _, numbers in self.weights(key)]
        rejoined = any(a and not b for a, b in zip(differ, differ[1:]))
        return bool(differ) and differ[-1] and not rejoined

    def has(self, *keys):
        return any(finding.key in keys for finding in self.found)

    def per_rank(self, values):
        return ", ".join(f"rank {rank.number} {value}" for rank, value in zip(self.ranks, values))


def differing(ranks, what):
    """{rank: event} -> the numbers of the tensors whose fingerprints differ."""
    rows = [event.get(what, []) for event in ranks.values()]
    return [i for i, column in enumerate(zip(*rows)) if len(set(column)) > 1]


def one_of(ranks):
    return next(iter(ranks.values()))


def short(values, limit=6):
    values = list(values)
    return ", ".join(map(str, values[:limit])) + (", ..." if len(values) > limit else "")


def common(values):
    return Counter(values).most_common(1)[0][0]

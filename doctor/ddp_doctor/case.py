"""What the judges share: the ranks of a run, the steps that belong together, a finding."""

import os
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from .record import HERE, shown

CHECKOUT = Path(HERE).parent.parent  # with pages and exercises, if this package is not installed
JUDGES = []


@dataclass
class Finding:
    severity: str  # wrong or check
    key: str
    at: str  # file:line
    seen: str
    why: str
    page: str
    exercise: str | None  # its number


def address(page):
    """Where to read a page: in this checkout, or at the address of the installed package."""
    if (CHECKOUT / page.partition("#")[0]).exists():
        return os.path.join(shown(str(CHECKOUT)), page).removeprefix("./")
    with suppress(PackageNotFoundError):
        urls = metadata("ddp-doctor").get_all("Project-URL")
        return f"{urls[0].partition(', ')[2]}/{page}"
    return page


def finds(key, page, exercise=None, ranks=2):
    """For a function that yields (at, seen, fine); its docstring says why it matters.

    fine: when it is no mistake, in words. Without them it is certain that it is one.
    """
    page = os.path.normpath(f"docs/{page}")

    def register(judge):
        def found(case):
            why = " ".join(judge.__doc__.split())
            more = (why, address(page), exercise and exercise[:2])
            # The same mistake elsewhere is not repeated.
            for at, seen, fine in sorted(judge(case), key=lambda one: bool(one[2]))[:1]:
                severity, seen = ("check", f"{seen}; fine if {fine}") if fine else ("wrong", seen)
                yield Finding(severity, key, at, seen, *more)

        found.key, found.page, found.exercise, found.ranks = key, page, exercise, ranks
        JUDGES.append(found)
        return judge

    return register


class Rank:
    """The events of one process, and where it was in the end."""

    def __init__(self, events, now):
        self.events, self.now = events, now
        self.init = next(reversed(self.all("init")), None)
        self.number = self.init["rank"] if self.init else None
        self.waits = bool(now.get("op"))  # it was stopped in a communication, or that failed
        self.trains = self.waits and (now["op"] == "backward" or now.get("training", False))

    def all(self, *kinds):
        return [e for e in self.events if e["kind"] in kinds]

    def epochs(self, trained):
        """Whole epochs of loaders, with or without backward passes in them."""
        return [e for e in self.all("epoch") if bool(e["backwards"]) == trained and e["whole"]]


class Case:
    """A run as the judges see it."""

    def __init__(self, run, ignored=()):
        self.run, self.alone, self.found, self.ignored = run, {}, [], ignored
        self.processes = [Rank(*process) for process in run.processes]
        ranks = {p.number: p for p in self.processes if p.init}  # of a restarted rank: the last
        self.ranks = [ranks[number] for number in sorted(ranks)]
        self.wraps = [e for rank in self.ranks for e in rank.all("wrap")]
        self.groups = {e["name"].partition("]")[0] for e in self.wraps}  # in which DDP averages
        self.optimizers = {e["key"]: e for rank in self.ranks for e in rank.all("optimizer")}
        unseen = [e for process in self.processes for e in process.all("unseen")]
        self.failed = sorted({f"{e['watcher']}: {e['error']}" for e in unseen})
        self.loose = any(rank.all("loose") for rank in self.ranks)  # may differ on purpose

    @cached_property
    def steps(self):
        """{optimizer: [(n, {rank: step})]}: the steps that belong together."""
        table, result = defaultdict(dict), defaultdict(list)
        for rank in self.ranks:
            calls = defaultdict(list)  # by the script, since the step before
            for call in [e for e in rank.all("collective") if e["passes"] is not None]:
                calls[call["step"] + 1].append(call)
            for step in rank.all("step"):
                step["comms"] = calls[step["total"]]
                table[step["optimizer"], step["n"]][rank.number] = step
        for (key, n), ranks in table.items():
            if len(ranks) >= min(2, len(self.ranks)):
                result[key].append((n, ranks))
        return dict(result)

    def joint(self):
        """The optimizers whose gradients DDP or the script averages, with their steps."""
        for key, steps in self.steps.items():
            if any(self.optimizers[key]["ddps"]) or self.averages(key):
                yield key, self.optimizers[key], steps

    def averages(self, key, until=9):
        """Does the script itself exchange most of these parameters, or their gradients?"""
        calls = [e for e in self.ranks[0].all("collective") if e["op"] != "broadcast" or e["step"]]
        sizes = Counter(e["numel"] for e in calls if e["step"] < until)
        numels = self.optimizers[key]["numels"]
        met = (Counter(numels) & sizes).total()
        most = met == len(numels) or met >= max(2, len(numels) / 2)
        whole = sum(numels)  # in one tensor, perhaps with the optimizer's state
        return most or any(1 < whole <= size <= 4 * whole for size in sizes)

    def weights(self, key):
        """[(n, numbers)]: at each look, the numbers of the tensors that differ between ranks."""
        looks = [look for look in self.steps[key] if all("weights" in s for s in look[1].values())]
        ends = [(r.number, e) for r in self.ranks for e in r.all("last") if e["optimizer"] == key]
        alike = len({event["n"] for _, event in ends}) == 1  # not if a rank broke off
        looks += [(None, dict(ends))] if len(ends) > 1 and alike else []
        return [(n, differing(ranks, "weights")) for n, ranks in looks]

    def drifts(self, key):
        """The weights of the ranks differ in the end, and were never brought together again."""
        differ = [bool(numbers) for _, numbers in self.weights(key)]
        rejoined = any(a and not b for a, b in zip(differ, differ[1:]))
        return bool(differ) and differ[-1] and not rejoined

    def own_models(self):
        """Does more than one rank save weights, each in files of its own: different models?"""
        saved = [{e["path"] for e in p.all("open") if e["saved"]} for p in self.processes]
        saved = [paths for paths in saved if paths]
        return len(saved) > 1 and not set.intersection(*saved)

    def paired(self, lists):
        """The n-th of each rank, but not if one has more of them in a run that ended well."""
        unlike = len(set(map(len, lists))) > 1
        return zip(*lists) if not unlike or self.run.end or self.run.code else ()

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

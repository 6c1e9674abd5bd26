"""All judges, one after the other."""

from dataclasses import replace

from ..run.events import Failed, Unseen
from . import data, files, printing, repeated, steps, waiting
from .findings import FINDINGS

JUDGES = [
    *waiting.JUDGES,
    *steps.JUDGES,
    *data.JUDGES,
    *repeated.JUDGES,
    *printing.JUDGES,
    *files.JUDGES,
]
NEED_NO_RANKS = [
    waiting.raised_before_joining,
    waiting.never_joined,
    files.fixed_port,
]
SUBJECTS = {
    "waiting": "who waits for whom",
    "steps": "gradients, weights and steps",
    "data": "data, random numbers and evaluation",
    "printing": "what is printed",
    "files": "files and ports",
}
BELONGS_TO = {"repeated": "data"}  # judges in a file of their own that have the same subject
# The judges that use what a watcher says. A watcher that is not here is used by all of them.
USED_BY = {
    "steps": ["steps", "data", "printing"],
    "data": ["steps", "data"],
    "batch": ["steps"],
    "models": ["data"],
    "state": ["steps", "data"],
    "printing": ["data", "printing"],
    "saving": ["data", "files"],
    "ports": ["files"],
}
PARTLY = "a watcher of the doctor failed, and so this was judged from a part of the run"


def diagnose(run):
    """-> the findings, each kind once and the certain ones first; and what the doctor failed at.

    If a watcher has failed, nothing is certain for the judges that use what it says.
    """
    found = {}
    failed = {}  # of each judge's module: what failed
    for process in run.processes:
        for event in process.all(Failed):
            for module in USED_BY.get(event.module, SUBJECTS):
                failed.setdefault(module, set()).add(f"{event.watcher}: {event.error}")
    for judge in JUDGES if len(run.ranks) > 1 else NEED_NO_RANKS:
        module = judge.__module__.rpartition(".")[2]
        module = BELONGS_TO.get(module, module)
        try:
            for one in in_order(judge(run)):
                if module in failed and not one.fine:
                    one = replace(one, fine=PARTLY)
                found.setdefault(one.key, one)  # the same mistake elsewhere is not repeated
        except Exception as error:
            failed.setdefault(module, set()).add(f"{judge.__name__}: {error!r}")
    return in_order(unexplained(found)), texts_of(failed)


def unexplained(found):
    """The findings that no other finding explains, of {key: finding}."""
    left = []
    for one in found.values():
        if not any(key in found for key in one.explained_by):
            left.append(one)
    return left


def texts_of(failed):
    """One line for each subject that could not be judged, or only in part."""
    texts = []
    for module, reasons in sorted(failed.items()):
        texts.append(f"{SUBJECTS[module]} could not be judged: {'; '.join(sorted(reasons))}")
    return texts


def left_out(run):
    return sorted({f"{event.what}: {event.why}" for event in run.all(Unseen)})


def in_order(findings):
    """What is certain comes first, and a cause before its effects, as the table has them."""
    keys = list(FINDINGS)
    return sorted(findings, key=lambda one: (one.severity != "wrong", keys.index(one.key)))

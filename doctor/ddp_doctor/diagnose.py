"""All judges, one after the other."""

from . import judge_data, judge_files, judge_printing, judge_steps, judge_waiting
from .events import Unseen
from .findings import FINDINGS

JUDGES = [
    *judge_waiting.JUDGES,
    *judge_steps.JUDGES,
    *judge_data.JUDGES,
    *judge_printing.JUDGES,
    *judge_files.JUDGES,
]
NEED_NO_RANKS = [
    judge_waiting.raised_before_joining,
    judge_waiting.never_joined,
    judge_files.fixed_port,
]


def diagnose(run):
    """-> the findings, each kind once and the certain ones first; and what failed."""
    found = {}
    failed = [f"{event.watcher}: {event.error}" for event in run.all(Unseen)]
    for judge in JUDGES if len(run.ranks) > 1 else NEED_NO_RANKS:
        try:
            for one in in_order(judge(run)):
                found.setdefault(one.key, one)  # the same mistake elsewhere is not repeated
        except Exception as error:
            failed.append(f"{judge.__name__}: {error!r}")
    return in_order(found.values()), sorted(set(failed))


def in_order(findings):
    """What is certain comes first, and a cause before its effects, as the table has them."""
    keys = list(FINDINGS)
    return sorted(findings, key=lambda one: (one.severity != "wrong", keys.index(one.key)))

"""The report of the verb `check`: findings, how much was looked at, what was not judged."""

import os
import textwrap
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from ..run.events import Collective, Cut, EpochBegan, Printed, Raised, Read, Wrapped, Wrote
from ..run.facts import facts
from ..run.words import about_short, hints, per_rank, print_text, sentence
from .findings import FINDINGS, PLACES, SAME
from .judges import left_out

CHECKOUT = Path(__file__).resolve().parents[3]  # has pages and exercises, unless installed alone


def show(run, found, ignored, failed):
    print_text(sentence(run), before="\n")
    for text in [*hints(run), *about_short(run)]:
        print(text)  # one line, so that a command in it can be copied
    for one in found:
        print(f"\n{one.severity.upper()} [{one.key}] {one.at}")
        if one.comes_from:
            print(f"  Comes from {origin(one)}.")
        print_text(f"{seen(one)}.", "  ")
        print_words(FINDINGS[one.key])
    print_list("Looked at", looked_at(run))
    print_list("Not judged", not_judged(run, ignored, failed))
    if exit_code(run, found, failed) == 0:
        above = f"Above: {len(found)} to check; nothing certain is wrong."
        print("\n" + (above if found else "In what was looked at, nothing is wrong."))
    if failed:
        print("\nA part of the doctor failed: please report the lines above that say so.")


def print_list(title, texts):
    if texts:
        print(f"\n{title}:")
    for text in texts:
        print(textwrap.fill(text, 100, initial_indent="  - ", subsequent_indent="    "))


def seen(finding):
    return f"{finding.seen}; fine if {finding.fine}" if finding.fine else finding.seen


def origin(finding):
    """The line to change, and what it is."""
    if finding.comes_from == finding.at:
        return SAME
    return f"{finding.comes_from}: {PLACES[finding.key].comes_from}"


def show_all_findings():
    for key, words in FINDINGS.items():
        print(f"\n{key}")
        places = PLACES[key]
        print(f"  Shows at: {places.shows_at}")
        print(f"  Comes from: {places.comes_from or 'not known'}")
        print_words(words)


def print_words(words):
    exercise = f", exercise {number(words.exercise)}" if words.exercise else ""
    print_text(f"Why: {words.why}", "  ")
    print(f"  See {address(words.page)}{exercise}")  # One line, so that it can be copied.


def number(exercise):
    """exercises/02_padded_accuracy/task.py -> 02"""
    return Path(exercise).parent.name[:2]


def address(page):
    """Where to read a page: in this checkout, at an address that the package has, or its name."""
    if (CHECKOUT / page.partition("#")[0]).exists():
        path = os.path.relpath(CHECKOUT / page)
        return str(CHECKOUT / page) if path.startswith("../..") else path
    with suppress(PackageNotFoundError):
        urls = metadata("ddp-doctor").get_all("Project-URL")
        if urls:
            return f"{urls[0].partition(', ')[2]}/{page}"
    return f"{page} in the repository that the doctor comes from"


def exit_code(run, found, failed):
    """1: something is wrong. 2: the run was not whole. 3: the doctor itself failed. 0: none."""
    if any(one.severity == "wrong" for one in found):
        return 1
    # The command may hide that a rank has failed.
    raised = any(process.says(Raised) for process in run.processes)
    if not run.ended_well or len(run.ranks) < 2 or raised:
        return 2
    return 3 if failed else 0


# ------------------------------------------------------------------ how much was looked at


def looked_at(run):
    """How much was compared: a finding that is not there is worth no more than this."""
    counts = {
        "steps": [len(rank.steps) for rank in run.ranks],
        "steps whose gradients and weights were compared": list(map(compared, run.ranks)),
        "whole epochs of data": [len(whole(rank, trained=True)) for rank in run.ranks],
        "whole evaluations": [len(whole(rank, trained=False)) for rank in run.ranks],
        "of these, read from the sampler after the first batches": list(map(ended, run.ranks)),
        "collectives": [len(rank.all(Collective)) for rank in run.ranks],
        "lines printed with numbers": [len(rank.all(Printed)) for rank in run.ranks],
        "files": [len(rank.all(Wrote)) + len(rank.all(Read)) for rank in run.ranks],
    }
    return [f"{name}: {per_rank(run.ranks, own)}" for name, own in counts.items() if any(own)]


def compared(rank):
    return sum(bool(work.step.gradients) for work in rank.steps)


def whole(rank, trained):
    """An epoch that was left early is not counted: it says nothing about the samples of others."""
    return [epoch for epoch in rank.epochs if epoch.whole and epoch.trained == trained]


def ended(rank):
    """Passes that --short has ended, and whose other samples are known without loading them."""
    return sum(epoch.whole and epoch.cut is not None for epoch in rank.epochs)


# What could not be looked at. The order is that of the report.
NOT_JUDGED = {
    "no-rank": "anything: no process joined a group (or Python ran with -I, -E or -S)",
    "one-rank": "what needs two ranks: there was one",
    "other-starts": "{others} processes of other starts of ranks in this command",
    "early-end": "what would have come after the end of this run",
    "short": "with --short {short}: how long a schedule is, memory that grows slowly, the last"
    " batches of a pass, and the step that follows them",
    "short-end": "what comes after two passes of training, where --short has ended the run",
    "sharded": "weights and gradients that are sharded (FSDP, tensor parallelism)",
    "iterable": "which samples an IterableDataset gave",
    "compiled": "forward passes of compiled code: they are not watched",
    "loose": "differences that Join or a communication hook makes on purpose",
    "no-common-step": "training steps: no two ranks made the same one",
    "no-ddp": "what DDP does: nothing was wrapped by it",
    "no-loader": "all of the training data: they came from no DataLoader",
    "no-whole-epoch": "whether an epoch gave all samples: no loader was read to its end",
}


def not_judged(run, ignored, failed):
    """What could not be looked at, and why."""
    keys = not_judged_in_ranks(run) | not_judged_in_steps(run)
    numbers = {"others": run.others, "short": run.short}
    texts = [text.format(**numbers) for key, text in NOT_JUDGED.items() if key in keys]
    texts += [f"{key}: left out by --ignore" for key in ignored]
    texts += [f"all of a long run: {text}" for text in left_out(run)]
    return texts + failed


def not_judged_in_ranks(run):
    """Keys of NOT_JUDGED that are about the ranks and how the run ended."""
    keys = set()
    if not run.ranks:
        keys.add("no-rank")
    if len(run.ranks) == 1:
        keys.add("one-rank")
    if run.others > 0:
        keys.add("other-starts")
    if not run.ended_well:
        keys.add("early-end")
    if run.all(Cut):
        keys.add("short")
    if run.end == "enough":
        keys.add("short-end")
    if run.is_loose:
        keys.add("loose")
    if run.ranks and not run.optimizers:
        keys.add("no-common-step")
    return keys


def not_judged_in_steps(run):
    """Keys of NOT_JUDGED that are about the steps and the data of the ranks."""
    keys = set()
    works = [work for rank in run.ranks for work in rank.steps]
    began = run.all(EpochBegan)
    if any(not work.parameters.plain for work in works):
        keys.add("sharded")
    if any(event.sampler == "_InfiniteConstantSampler" for event in began):
        keys.add("iterable")
    if any(is_averaged(work) and not work.forwards for work in works):
        keys.add("compiled")
    if works and not run.all(Wrapped):
        keys.add("no-ddp")
    if works and not began:
        keys.add("no-loader")
    if began and not any(rank.whole_epochs for rank in run.ranks):
        keys.add("no-whole-epoch")
    return keys


def is_averaged(work):
    return any(event.averages for event in work.backwards)


# ------------------------------------------------------------------ for programs


def as_json(run, found, ignored, failed):
    return {
        "exit": exit_code(run, found, failed),
        "command": {"code": run.code, "end": run.end},
        "ranks": len(run.ranks),
        "facts": {"sentence": sentence(run), **facts(run)},
        "hints": hints(run),
        "short": {"batches": run.short, "about": about_short(run)} if run.short else None,
        "findings": list(map(finding_as_json, found)),
        "looked_at": looked_at(run),
        "not_judged": not_judged(run, ignored, failed),
    }


def finding_as_json(finding):
    words = FINDINGS[finding.key]
    return {
        "severity": finding.severity,
        "key": finding.key,
        "at": finding.at,
        "comes_from": finding.comes_from or None,
        "seen": seen(finding),
        "why": words.why,
        "page": address(words.page),
        "exercise": number(words.exercise) if words.exercise else None,
    }

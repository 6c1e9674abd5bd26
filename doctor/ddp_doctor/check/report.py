"""The report of the verb `check`: findings, how much was looked at, what was not judged."""

import json
import os
import re
import textwrap
from contextlib import suppress
from pathlib import Path

from ..run.events import Collective, Cut, EpochBegan, Forward, Raised, Wrapped
from ..run.facts import facts
from ..run.words import about_short, hints, per_rank, print_text, sentence
from .findings import FINDINGS
from .judges import left_out
from .source import code_of

CHECKOUT = Path(__file__).resolve().parents[3]  # has pages and exercises, unless installed alone
WIDTH = 100


def show(run, found, ignored, failed):
    print_text(sentence(run), before="\n")
    for text in [*hints(run), *about_short(run)]:
        print(text)  # one line, so that a command in it can be copied
    if found:
        print("WRONG is certain; CHECK is for you to judge.")
    keys = {one.key for one in found}
    for one in found:
        show_finding(one, keys)
    print_list("Looked at", looked_at(run))
    print_list("Not judged", not_judged(run, ignored, failed))
    if failed:
        print("\nA part of the doctor failed: please report the lines above that say so.")
    wrong = sum(one.severity == "wrong" for one in found)
    whole = exit_code(run, found, failed) == 0 and not found
    about = "In what was looked at, nothing is wrong" if whole else "Findings"
    print(f"\n{about}: {wrong} certain (WRONG), {len(found) - wrong} to judge (CHECK).")


def show_finding(one, keys):
    print(f"\n{one.severity.upper()} [{one.key}] shows at {one.at}")
    change = change_of(one)
    if one.comes_from:
        # One line, whatever the length of a path is, so that it can be copied.
        print(f"  Change {one.comes_from}" + (f": {change.what}" if change else ""))
        code = code_of(one.comes_from).partition("\n")[0]
        if code:
            print(f"      {textwrap.shorten(code, WIDTH - 6, placeholder=' ...')}")
    print_text(f"Seen: {one.seen}.", "  ")
    print_text(f"Do: {do_of(one)}", "  ")
    print_text(f"Why: {FINDINGS[one.key].why}", "  ")
    if one.fine:
        print_text(f"Fine only if: {one.fine}.", "  ")
    for key in causes_of(one, keys):
        print(f"  May follow from [{key}]: fix that first, and run the doctor again.")
    print_see(FINDINGS[one.key])


def change_of(finding):
    """What the line to change is. None: this is not known."""
    if not finding.comes_from:
        return None
    text = f"{finding.role}: {code_of(finding.comes_from)}"
    changes = FINDINGS[finding.key].changes
    return next((change for change in changes if re.search(change.match, text)), None)


def do_of(finding):
    """The cure, for this line if that is known, or else for this role."""
    change = change_of(finding)
    if not finding.comes_from:
        for one in FINDINGS[finding.key].changes:
            if one.match == f"^{finding.role}:":
                change = one
    if change is not None and change.do:
        return change.do
    return FINDINGS[finding.key].do


def causes_of(finding, keys):
    causes = (*FINDINGS[finding.key].may_follow, *finding.may_follow)
    return [key for key in causes if key in keys]


def print_list(title, texts):
    if texts:
        print(f"\n{title}:")
    for text in texts:
        print(textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    "))


def seen(finding):
    return f"{finding.seen}. Fine only if: {finding.fine}" if finding.fine else finding.seen


def show_all_findings():
    for key, kind in FINDINGS.items():
        print(f"\n{key}")
        print(f"  Shows at: {kind.shows_at}")
        for change in kind.changes:
            print_text(f"Change: {change.what} {change.do}".strip(), "  ")
        print_text(f"Do: {kind.do}", "  ")
        print_text(f"Why: {kind.why}", "  ")
        print_see(kind)


def print_see(kind):
    exercise = f", exercise {number(kind.exercise)} in exercises/" if kind.exercise else ""
    print(f"  See: {address(kind.page)}{exercise}")


def number(exercise):
    """exercises/02_padded_accuracy/task.py -> 02"""
    return Path(exercise).parent.name[:2]


def address(page):
    """Where to read a page: in this checkout, or in the repository and its address, if known."""
    if (CHECKOUT / page.partition("#")[0]).exists():
        path = os.path.relpath(CHECKOUT / page)
        return str(CHECKOUT / page) if path.startswith("../..") else path
    # Only an installed doctor comes here, and the import takes 20 ms.
    from importlib.metadata import PackageNotFoundError, distribution

    home = ""
    with suppress(PackageNotFoundError, ValueError):
        package = distribution("ddp-doctor")
        urls = package.metadata.get_all("Project-URL")
        if urls:
            return f"{urls[0].partition(', ')[2]}/{page}"
        origin = json.loads(package.read_text("direct_url.json") or "{}")  # pip writes this file
        home = f" {origin['url']}" if "vcs_info" in origin else ""
    return f"{page} in the repository of ddp-doctor{home}"


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
    steps = [len(rank.steps) for rank in run.ranks]
    sample = list(map(compared, run.ranks))
    note = ", a sample" if sample != steps else ""
    counts = [
        ("steps", steps, ""),
        ("steps whose gradients and weights were compared", sample, note),
        ("passes over the training data", passes(run, True), shortened(run, True)),
        ("evaluations", passes(run, False), shortened(run, False)),
        ("collectives", [len(rank.all(Collective)) for rank in run.ranks], ""),
    ]
    return [f"{name}: {alike(run.ranks, own)}{note}" for name, own, note in counts if any(own)]


def alike(ranks, values):
    """One value if all ranks have it, or that of each rank."""
    same = len(values) > 1 and len(set(values)) == 1
    return f"{values[0]} on each rank" if same else per_rank(ranks, values)


def compared(rank):
    return sum(bool(work.step.gradients) for work in rank.steps)


def passes(run, trained):
    return [len(whole(rank, trained)) for rank in run.ranks]


def shortened(run, trained):
    cut = any(epoch.cut is not None for rank in run.ranks for epoch in whole(rank, trained))
    return f", shortened to {run.short} batches" if cut else ""


def whole(rank, trained):
    """An epoch that was left early is not counted: it says nothing about the samples of others."""
    return [epoch for epoch in rank.epochs if epoch.whole and epoch.trained == trained]


# What could not be looked at. The order is that of the report.
NOT_JUDGED = {
    "no-rank": "anything: no process joined a group (or Python ran with -I, -E or -S)",
    "one-rank": "what needs two ranks: there was one",
    "other-starts": "{others} processes of other starts of ranks in this command",
    "early-end": "what would have come after the end of this run",
    "short": "with --short {short}: how long a schedule is, memory that grows slowly, the last"
    " batches of a pass, and the step that follows them; averages that the script prints are not"
    " valid if it divides by len(loader)",
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
    if any(map(is_averaged, run.optimizers)) and not run.all(Forward):
        keys.add("compiled")
    if works and not run.all(Wrapped):
        keys.add("no-ddp")
    if works and not began:
        keys.add("no-loader")
    if began and not any(rank.whole_epochs for rank in run.ranks):
        keys.add("no-whole-epoch")
    return keys


def is_averaged(optimizer):
    return optimizer.is_in_ddp and optimizer.first_difference is None


# ------------------------------------------------------------------ for programs


def as_json(run, found, ignored, failed):
    keys = {one.key for one in found}
    return {
        "exit": exit_code(run, found, failed),
        "command": {"code": run.code, "end": run.end},
        "ranks": len(run.ranks),
        "facts": {"sentence": sentence(run), **facts(run)},
        "hints": hints(run),
        "short": {"batches": run.short, "about": about_short(run)} if run.short else None,
        "findings": [finding_as_json(one, keys) for one in found],
        "looked_at": looked_at(run),
        "not_judged": not_judged(run, ignored, failed),
    }


def finding_as_json(finding, keys):
    kind = FINDINGS[finding.key]
    change = change_of(finding)
    return {
        "severity": finding.severity,
        "key": finding.key,
        "at": finding.at,
        "comes_from": finding.comes_from or None,
        "seen": seen(finding),
        "change": change.what if change else None,
        "do": do_of(finding),
        "why": kind.why,
        "may_follow": causes_of(finding, keys),
        "page": address(kind.page),
        "exercise": number(kind.exercise) if kind.exercise else None,
    }

"""The words that several verbs share: how the run went, and what findings are made of."""

import os
import shlex
import textwrap
from dataclasses import dataclass

from .events import Ended, LoaderRead, NotEnded, Raised, Refused
from .facts import facts, state

LAUNCHERS = ("python", "torchrun", "accelerate")
MODULES = (["torch.distributed.run"], ["torch.distributed.launch"])
MOST_TEXTS = 8  # lines about --short
ENDS = {
    "enough": "was ended by --short after two passes of training",
    "hang": "was stopped by the doctor, because every rank that was left waited",
    "limit": "was stopped at the limit (--limit)",
    "interrupt": "was interrupted",
}


@dataclass(frozen=True)
class Words:
    """What a cost means. `page` and `exercise` are files of the repository."""

    why: str
    page: str
    exercise: str = ""


def short(values, limit=4):
    words = [str(value) for value in values]
    return ", ".join(words[:limit]) + (", ..." if len(words) > limit else "")


def per_rank(ranks, values):
    return ", ".join(f"rank {rank.number} {value}" for rank, value in zip(ranks, values))


def print_text(text, indent="", before=""):
    words = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent, **words)
    print(before + lines)


# ------------------------------------------------------------------ how the run went


def sentence(run):
    """The facts of the run."""
    parts = [f"The command {ENDS.get(run.end) or f'ended with exit code {run.code}'}"]
    parts += failures(run)
    parts.append(f"{len(run.ranks)} rank(s) seen")
    if run.strangers:
        parts.append(f"{len(run.strangers)} process(es) joined no group")
    if run.end in ("limit", "interrupt") and run.ranks:
        parts.append(per_rank(run.ranks, map(state, run.ranks)))
    known = facts(run)
    if known:
        parts.append(steps_in_words(run))
        if known["samples"]:
            parts.append(f"in one step all ranks together took {known['samples']} samples")
    return "; ".join(parts) + "."


def steps_in_words(run):
    counts = [len(rank.steps) for rank in run.ranks]
    if len(set(counts)) == 1:
        return f"each rank took {counts[0]} steps"
    return per_rank(run.ranks, [f"took {count} steps" for count in counts])


def hints(run):
    """One line that says what to do, if no rank was seen."""
    refused = [event.error for process in run.processes for event in process.all(Refused)]
    if refused:
        return [f"The script did not accept its arguments, which follow its name: {refused[0]}."]
    if run.processes or run.end != "ended":
        return []
    script = script_of(run.command)
    name = os.path.basename(run.command[0]) if run.command else ""
    if run.code == 2 and script:
        return ["The script did not accept its arguments, which follow its name: see above."]
    if name.startswith("python") and script and "-m" not in run.command:
        rest = shlex.join(run.command[list(run.command).index(script) :])
        started = f"torchrun --standalone --nproc-per-node 2 {rest}"
        return [f"No process joined a group. If the script needs torchrun: {started}"]
    return ["No process joined a group. Does the command run without the doctor?"]


def script_of(command):
    """The file that a launcher starts, or None if the command does not say it."""
    name = os.path.basename(command[0]) if command else ""
    if not name.startswith(LAUNCHERS):
        return None
    for place, word in enumerate(command):
        if word == "-c":
            return None
        if word == "-m" and command[place + 1 : place + 2] not in MODULES:
            return None
        if word.endswith(".py"):
            return word
    return None


def about_short(run):
    """One line for each part of the run that --short could not shorten."""
    if not run.short:
        return []
    if not run.all(LoaderRead):
        return [f"--short {run.short} had no effect: the script reads no DataLoader."]
    texts = []
    for line in sorted({event.at for event in run.all(NotEnded)}):
        texts.append(f"--short could not end the passes in {line}, which calls next().")
    for file, new in sorted(run.kept.items()):
        saved = f", and what this run wrote is {os.path.relpath(new)}" if new else ""
        texts.append(f"{os.path.relpath(file)} is as it was before the run{saved}.")
    return texts[:MOST_TEXTS] + ["..."] * (len(texts) > MOST_TEXTS)


def failures(run):
    """How processes failed: the first one first, since others lose the connection by it."""
    texts = []
    for process in run.processes:
        who = f"rank {process.number}" if process in run.ranks else "a process"
        for event in process.all(Raised):
            error = event.error.partition("\n")[0].split(". ")[0]  # gloo adds a page of advice
            texts.append((event.when.time, f"{who} raised {error} ({event.at})"))
        said = process.says(Ended) or process.says(Raised)
        if run.end == "ended" and process in run.ranks and not said:
            texts.append((0, f"{who} ended without a word (killed?)"))
    return [text for _, text in sorted(texts)]

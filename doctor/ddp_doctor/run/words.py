"""The words that several verbs share: how the run went, and what findings are made of."""

import textwrap
from dataclasses import dataclass

from .events import Ended, Raised
from .facts import facts, state

ENDS = {
    "hang": "was stopped: all ranks that were left waited",
    "limit": "was stopped at the limit (--limit)",
    "interrupt": "was interrupted",
}


@dataclass(frozen=True)
class Words:
    """What a finding or a cost means. `page` and `exercise` are files of the repository."""

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
        samples = f" of {known['samples']} samples over all ranks" if known["samples"] else ""
        rates = [f"{rate:.4}" if isinstance(rate, float) else str(rate) for rate in known["rates"]]
        if len(set(rates)) > 1:
            rate = f"learning rates of {len(rates)} optimizers at most {short(rates)}"
        else:
            rate = f"learning rate at most {rates[0]}"
        parts.append(f"{known['steps']} steps{samples}, {rate}")
    return "; ".join(parts) + "."


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

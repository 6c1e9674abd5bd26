"""The words: facts first, then findings, then what was in order, then what could not be judged."""

import dataclasses
import textwrap

from .judge import facts

ENDS = {
    "hang": "was stopped: all ranks that were left waited",
    "silent": "was stopped: no rank had got on for minutes",
    "limit": "was stopped at the limit (--limit)",
    "interrupt": "was interrupted",
}


def show(case, found):
    print("\n" + textwrap.fill(sentence(case), 100))
    for one in found:
        exercise = f", exercise {one.exercise}" if one.exercise else ""
        print(f"\n{one.severity.upper()} [{one.key}] {one.at}")
        for text in (f"{one.seen}.", f"Why: {one.why}", f"See {one.page}{exercise}"):
            print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  "))
    lists = {"Looked at, and in order": in_order(case), "Not judged": not_judged(case)}
    for title, texts in lists.items():
        print(f"\n{title}:" if texts else "")
        for text in texts:
            print(textwrap.fill(text, 100, initial_indent="  - ", subsequent_indent="    "))
    if exit_code(case, found) == 0:
        print("\nIn what was looked at, nothing is wrong.")


def sentence(case):
    """The facts of the run."""
    run, known = case.run, facts(case)
    parts = [f"The command {ENDS.get(run.end) or f'ended with exit code {run.code}'}"]
    parts.append(f"{len(case.ranks)} rank(s) seen")
    if known:
        steps = f"{known['steps']} steps of {known['samples']} samples over all ranks"
        parts.append(f"{steps}, learning rate {known['rate']}")
    if case.wraps:
        parts.append(f"DDP averages {case.wraps[0]['bytes']:,} bytes of gradients")
    for rank in case.ranks[:1]:
        parts += [
            f"rank 0 reads {e['count']} samples without training" for e in rank.epochs(False)[-1:]
        ]
    for rank in case.ranks:
        parts += [f"rank {rank.number} raised {e['error']} ({e['at']})" for e in rank.all("raised")]
        if not run.end and not rank.all("exit", "raised"):
            parts.append(f"rank {rank.number} ended without a word (killed?)")
    return "; ".join(parts) + "."


def in_order(case):
    """What was compared, and nothing was found."""
    if len(case.ranks) < 2:
        return []
    epochs = [e for e in case.ranks[0].all("epoch") if e["indices"]]
    looked = {
        "gradients, learning rates and weights agree between ranks, in the steps looked at": (
            any(case.joint()),
            "gradients-differ not-in-ddp not-through-ddp last-pass-not-synced weights-differ "
            "rates-differ",
        ),
        "the ranks train on samples of their own, in a new order in each epoch": (
            any(e["backwards"] for e in epochs),
            "same-data same-order split-differs samples-missing unequal-epochs",
        ),
        "each sample counts once in evaluation, and results are brought together": (
            any(not e["backwards"] for e in epochs),
            "padded-evaluation part-of-evaluation buffers-differ",
        ),
        "collectives have the same order on all ranks": (
            case.ranks[0].all("collective"),
            "crossed-order one-rank-communicates left-early uneven-steps",
        ),
        "no file is written by two ranks, or read before it is whole": (
            case.ranks[0].all("save", "load", "open"),
            "file-race several-write",
        ),
    }
    return [text for text, (seen, keys) in looked.items() if seen and not case.has(*keys.split())]


def not_judged(case):
    """What could not be looked at, and why."""
    events = [e for rank in case.ranks for e in rank.all("epoch")]
    sharded = any(not o["plain"] for o in case.optimizers.values())
    unseen = {f"{e['watcher']}: {e['error']}" for r in case.ranks for e in r.all("unseen")}
    reasons = {
        "anything: no process joined a group (or Python ran with -I, -E or -S)": not case.ranks,
        "what needs two ranks: there was one": len(case.ranks) == 1,
        "what would have come after the end of this run": case.run.end or case.run.code,
        "weights and gradients that are sharded (FSDP, tensor parallelism)": sharded,
        "which samples an IterableDataset gave": any(e["iterable"] for e in events),
        "differences that Join or a communication hook makes on purpose": case.loose,
        "training steps: no two ranks made the same one": case.ranks and not case.steps,
        "what DDP does: nothing was wrapped by it": case.steps and not case.wraps,
        "the training data: they came from no DataLoader": case.steps and not events,
        **{f"what a watcher would have seen that failed ({text})": True for text in unseen},
    }
    return [text for text, true in reasons.items() if true]


def exit_code(case, found):
    """1: something is wrong. 2: it could not look, or not to the end. 0: neither."""
    if any(one.severity == "wrong" for one in found):
        return 1
    return 2 if case.run.end or case.run.code or len(case.ranks) < 2 else 0


def as_json(case, found):
    return {
        "exit": exit_code(case, found),
        "command": {"code": case.run.code, "end": case.run.end},
        "ranks": len(case.ranks),
        "facts": {"sentence": sentence(case), **facts(case)},
        "findings": [dataclasses.asdict(one) for one in found],
        "in_order": in_order(case),
        "not_judged": not_judged(case),
    }

"""The words: facts first, then findings, then how much was looked at and what was not judged."""

import dataclasses
import textwrap

from .judge_run import facts, states

ENDS = {
    "hang": "was stopped: all ranks that were left waited",
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
    for title, texts in (("Looked at", looked_at(case)), ("Not judged", not_judged(case))):
        if texts:
            print(f"\n{title}:")
        for text in texts:
            print(textwrap.fill(text, 100, initial_indent="  - ", subsequent_indent="    "))
    if exit_code(case, found) == 0:
        above = f"Above: {len(found)} to check; nothing certain is wrong."
        print("\n" + (above if found else "In what was looked at, nothing is wrong."))


def sentence(case):
    """The facts of the run."""
    run, known = case.run, facts(case)
    parts = [f"The command {ENDS.get(run.end) or f'ended with exit code {run.code}'}"]
    parts += [*failures(case), f"{len(case.ranks)} rank(s) seen"]
    parts += [states(case)] if run.end in ("limit", "interrupt") and case.ranks else []
    if known:
        samples = f" of {known['samples']} samples over all ranks" if known["samples"] else ""
        rate = known["rate"] if isinstance(known["rate"], str) else f"at most {known['rate']:.4}"
        parts.append(f"{known['steps']} steps{samples}, learning rate {rate}")
    return "; ".join(parts) + "."


def failures(case):
    """How ranks failed: the first one first, since others lose the connection by it."""
    texts = []
    for rank in case.ranks:
        for event in rank.all("raised"):
            error = event["error"].split(". ")[0]  # gloo adds a page of advice
            text = f"rank {rank.number} raised {error} ({event['at']})"
            texts.append((event["time"], text))
        if not case.run.end and not rank.all("exit", "raised"):
            texts.append((0, f"rank {rank.number} ended without a word (killed?)"))
    return [text for _, text in sorted(texts)]


def looked_at(case):
    """How much was compared: a finding that is not there is worth no more than this."""
    kinds = {"step": "steps", "epoch": "epochs of data", "evaluation": "evaluations"}
    kinds |= {"collective": "collectives", "open": "files"}
    counts = {name: [len(r.all(kind)) for r in case.ranks] for kind, name in kinds.items()}
    return [f"{name}: {case.per_rank(own)}" for name, own in counts.items() if any(own)]


def not_judged(case):
    """What could not be looked at, and why."""
    events = [e for rank in case.ranks for e in rank.all("epoch")]
    sharded = any(not o["plain"] for o in case.optimizers.values())
    compiled = any(rank.all("compiled") for rank in case.ranks)
    reasons = {
        "anything: no process joined a group (or Python ran with -I, -E or -S)": not case.ranks,
        "what needs two ranks: there was one": len(case.ranks) == 1,
        "what would have come after the end of this run": case.run.end or case.run.code,
        "weights and gradients that are sharded (FSDP, tensor parallelism)": sharded,
        "which samples an IterableDataset gave": any(e["iterable"] for e in events),
        "compiled code: forward passes that torch.compile traces are not watched": compiled,
        "differences that Join or a communication hook makes on purpose": case.loose,
        "training steps: no two ranks made the same one": case.ranks and not case.steps,
        "what DDP does: nothing was wrapped by it": case.steps and not case.wraps,
        "all of the training data: they came from no DataLoader": case.steps and not events,
    }
    texts = [text for text, true in reasons.items() if true]
    texts += [f"{one.key}: left out by --ignore" for one in case.found if one.key in case.ignored]
    return texts + [f"what a watcher or judge would have seen: it failed, {t}" for t in case.failed]


def exit_code(case, found):
    """1: something is wrong. 2: it could not look, or not to the end. 0: neither."""
    if any(one.severity == "wrong" for one in found):
        return 1
    raised = any(rank.all("raised") for rank in case.ranks)  # the command may hide it
    return 2 if case.run.end or case.run.code or len(case.ranks) < 2 or raised else 0


def as_json(case, found):
    return {
        "exit": exit_code(case, found),
        "command": {"code": case.run.code, "end": case.run.end},
        "ranks": len(case.ranks),
        "facts": {"sentence": sentence(case), **facts(case)},
        "findings": [dataclasses.asdict(one) for one in found],
        "looked_at": looked_at(case),
        "not_judged": not_judged(case),
    }

"""The run: who waited for whom, who wrote which file, what was printed, how it ended."""

import ast
import os
import re
from collections import defaultdict
from pathlib import Path

from .case import finds, short

LOST = "closed by peer|reset by peer|timed out|timeout|broken pipe|connection"


def waiting(case):
    """The ranks that waited in vain, if that is how the run ended, and nobody crashed."""
    stuck = [r for r in case.ranks if r.waits]
    lost = [r for r in stuck if re.search(LOST, r.now.get("error", ""), re.I)]
    crashed = any(r.now.get("error") and r not in lost for r in stuck)
    for rank in [r for r in case.ranks if not r.waits]:
        left = rank.all("exit" if case.run.end else "destroy")
        crashed |= bool(rank.all("raised")) or not left
    joined = any(r.all("join") for r in case.ranks)
    ended = case.run.end in ("hang", "silent") or lost
    return stuck if ended and not crashed and not joined and len(case.ranks) > 1 else []


def states(case):
    def state(rank):
        what = f"waits in {rank.now['op']} ({rank.now['at']})" if rank.waits else "is not waiting"
        return f"rank {rank.number} {what} after {rank.now.get('steps', 0)} steps"

    return "; ".join(map(state, case.ranks))


def steps_differ(case):
    """Does a rank wait in a step of training, and another not, where no "if rank == 0" led it?"""
    stuck = waiting(case)
    apart = [r for r in stuck if not trains(r)]
    led = same_epochs(case) and any(guard(r.now.get("callers") or []) for r in apart)
    return 0 < len(stuck) - len(apart) < len(case.ranks) and not led


def trains(rank):
    return rank.waits and (rank.now["op"] == "backward" or rank.now.get("training", False))


def same_epochs(case):
    """Have all ranks finished as many epochs, of as many batches? Then no data ran out."""
    epochs = [[e["delivered"] for e in r.epochs(True)] for r in case.ranks]
    return bool(epochs[0]) and all(own == epochs[0] for own in epochs)


def guard(lines):
    """The "if" with the rank in it around one of these lines of the script, or None."""
    for name, _, line in [at.rpartition(":") for at in lines]:
        for node in nodes_of(name):
            inside = isinstance(node, ast.If) and node.lineno < int(line) <= node.end_lineno
            if inside and re.search("rank|master|is_main", ast.unparse(node.test), re.I):
                return f"{name}:{line}"
    return None


def nodes_of(name):
    try:
        return list(ast.walk(ast.parse(Path(name).read_text())))
    except (OSError, SyntaxError, ValueError):
        return []


def leaves_loop(at):
    """The "if" that leaves, or skips, in the loop around this line of the script, or None."""
    name, _, line = at.rpartition(":")
    loops = [n for n in nodes_of(name) if isinstance(n, (ast.For, ast.While))]
    for loop in [n for n in reversed(loops) if n.lineno <= int(line) <= n.end_lineno]:
        for node in ast.walk(loop):
            body = node.body if isinstance(node, ast.If) else []
            if any(isinstance(n, (ast.Break, ast.Return, ast.Continue)) for n in body):
                return f"{name}:{node.lineno}"
    return None


@finds("left-early", "04_ddp_torchrun/README.md", "04")
def judge_left_early(case):
    """A rank that decides by a number of its own leaves the others waiting: reduce it first."""
    if steps_differ(case):
        steps = [e for r in case.ranks for e in r.all("step")]
        line = leaves_loop(max(steps, key=lambda e: e["n"])["at"]) if steps else None
        if line:
            yield "wrong", line, f"{states(case)}; this line lets a rank leave or skip by itself"


@finds("uneven-steps", "docs/uneven_inputs.md", "17")
def judge_uneven(case):
    """The rank with one step more waits in it for the others, which have no more data."""
    if steps_differ(case) and not same_epochs(case) and not case.has("left-early"):
        yield "wrong", next(r for r in case.ranks if trains(r)).now["at"], states(case)


@finds("one-rank-communicates", "docs/corrections.md#testing-and-collectives", "16")
def judge_one_rank(case):
    """A collective waits until all ranks enter it; DDP's forward pass broadcasts buffers."""
    stuck = waiting(case)
    if stuck and not case.has("left-early", "uneven-steps"):
        alike = len({(r.now["op"], r.now["at"]) for r in stuck}) == 1 and len(stuck) == len(
            case.ranks
        )
        text = "; all are in the same call: is the network or a process broken?" if alike else ""
        apart = next((r for r in stuck if not trains(r)), stuck[0])
        lines = apart.now.get("callers") or [apart.now["at"]]
        at = guard(lines) or lines[0]
        text += f"; rank {apart.number} was led there by {at}" if at != lines[0] else ""
        yield "check" if alike else "wrong", at, states(case) + text


@finds("crossed-order", "docs/corrections.md#testing-and-collectives", "15")
def judge_crossed(case):
    """The n-th collective of a rank meets the n-th of the others, whatever it is about."""
    point = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
    calls = [
        [e for e in r.all("collective") if e["group"] is None and e["op"] not in point]
        for r in case.ranks
    ]
    for n, met in enumerate(zip(*calls) if len(calls) > 1 else (), 1):
        sizes = {e["numel"] for e in met} if met[0]["op"] == "all_reduce" else {0}
        if len({e["op"] for e in met}) > 1 or len(sizes) > 1:
            seen = case.per_rank(f"{e['op']} of {e['numel']} numbers ({e['at']})" for e in met)
            yield "wrong", met[0]["at"], f"the ranks' collectives number {n} differ: {seen}"
            return
    words = defaultdict(lambda: [[] for _ in calls])
    for rank, event in [(i, e) for i, own in enumerate(calls) for e in own]:
        lines = {"line": event["at"]} if event["op"] == "all_reduce" else {}
        for name, value in {**event["words"], **lines}.items():
            place = None if name == "line" else event["at"]
            words[place, event["op"], name][rank].append(value)
    for (at, op, name), lists in words.items():
        if len({str(v) for v in lists}) > 1 and len({str(sorted(v)) for v in lists}) == 1:
            seen = case.per_rank(f"({short(v, 3)})" for v in lists)
            text = f"the ranks call {op} in different orders, by their {name}: {seen}"
            yield "wrong", at or next(a for a, b in zip(*lists[:2]) if a != b), text
            return


def by_file(case):
    """{path: [(rank, event), ...]} in the order of time; each host has its own files."""
    files = defaultdict(list)
    for rank in case.ranks:
        for event in [e for e in rank.all("open", "save", "load") if e["path"]]:
            files[rank.init["host"], event["path"]].append((rank.number, event))
    return {Path(key[1]).name: sorted(v, key=lambda e: e[1]["time"]) for key, v in files.items()}


def writes(event):
    return event["kind"] == "save" or event.get("writes", False)


@finds("file-race", "docs/adapt.md#step-by-step", "21")
def judge_race(case):
    """Nothing makes the reader wait until the file is whole: a barrier would."""
    for name, events in by_file(case).items():
        for rank, read in [one for one in events if not writes(one[1])]:
            times = [(e["time"], n, e) for n, e in events if writes(e) and not e.get("appends")]
            before = [one for one in times if one[0] < read["time"] and one[1] != rank]
            if before and read["passed"] <= before[-1][2]["passed"]:
                began, number, written = before[-1]
                until = min([one[0] for one in times if one[0] > began], default=read["time"] + 1e9)
                sizes = [e.get("size") or 0 for _, e in events if began < e["time"] < until]
                torn = read.get("size") is not None and read["size"] < max(sizes)
                late = f"{read['time'] - began:.2f} s after rank {number} began to write it"
                fine = "with no collective in between; fine if a lock or a store makes it wait"
                size = f"when it had {read['size']} of {max(sizes)} bytes" if torn else fine
                text = f"rank {rank} read {name} {late} ({written['at']}), {size}"
                yield "wrong" if torn else "check", read["at"], text
                return


@finds("several-write", "docs/checkpoints.md#who-writes-rank-0-then-a-barrier")
def judge_writers(case):
    """One rank should write: several at the same time can damage the file."""
    for name, events in by_file(case).items():
        written = [(n, e) for n, e in events if writes(e)]
        ranks = sorted({n for n, _ in written})
        if len(ranks) > 1:
            text = f"ranks {short(ranks)} wrote the same file, {name}"
            yield "check", written[0][1]["at"], f"{text}; fine if they take turns"
            return


@finds("optimizer-not-restored", "docs/checkpoints.md#what-goes-into-a-checkpoint")
def judge_restart(case):
    """Without its state (momentum) a resumed run differs from one without a stop."""
    for rank in [r for r in case.ranks[:1] if any(s["momentum"] for s in r.all("step"))]:
        for event in rank.all("save", "load"):
            later = [e["kind"] for e in rank.events[rank.events.index(event) :]]
            unused = event["kind"] == "load" and "restore" not in later and "step" in later
            what = None
            if event["weights"] and event["optimizer"] and unused:
                what = "weights and an optimizer's state, which no optimizer loads"
            elif event["weights"] and event["counters"] and not event["optimizer"]:
                what = f"weights and {short(event['counters'])}, but no optimizer's state"
            if what:
                fine = "fine if no run is continued with it"
                yield "check", event["at"], f"the checkpoint has {what}; {fine}"
                return


@finds(
    "restored-on-one-rank", "docs/checkpoints.md#who-reads-every-rank-before-the-model-is-wrapped"
)
def judge_restored(case):
    """DDP broadcasts the weights when it wraps the model, never the optimizer's state."""
    restores = [len(r.all("restore")) for r in case.ranks]
    fresh = [
        {s["fresh"] for s in ranks.values()} for own in case.steps.values() for _, ranks in own
    ]
    if len(set(restores)) > 1 and any(len(one) > 1 for one in fresh):
        at = next(e["at"] for r in case.ranks for e in r.all("restore"))
        text = f"calls of the optimizer's load_state_dict: {case.per_rank(restores)}"
        yield "wrong", at, f"{text}; the other ranks trained on with an empty state"


@finds("fixed-port", "03_ddp_spawn/README.md", "19")
def judge_port(case):
    """A second job on the machine finds the port taken: torchrun --standalone finds a free one."""
    for event in [e for process in case.ranks + case.others for e in process.all("port", "init")]:
        port = event.get("port") or re.sub(r"^tcp://.*:|.*", "", str(event["url"]), count=1)
        port = port.partition("?")[0] or "0"
        source = Path(event["at"].rpartition(":")[0])
        if port != "0" and source.is_file() and port in source.read_text(errors="replace"):
            yield (
                "check",
                event["at"],
                f"the script itself chooses port {port}, which is written in it",
            )
            return


@finds("device-by-global-rank", "docs/cheatsheet.md", "20")
def judge_devices(case):
    """Each node numbers its GPUs from 0, as LOCAL_RANK does; RANK counts over all nodes."""
    for rank in case.ranks:
        for event in rank.all("device"):
            if event["index"] == rank.number != int(rank.init["local"] or rank.number):
                text = (
                    f"rank {rank.number} (local rank {rank.init['local']}) takes cuda:{rank.number}"
                )
                yield "wrong", event["at"], text
                return


@finds("too-many-threads", "docs/corrections.md#launching-and-timing", "22")
def judge_threads(case):
    """Threads that share a core wait for each other: OMP_NUM_THREADS should be cores / ranks."""
    events = [p.all("threads") for p in case.ranks or case.others]
    threads = [own[-1]["threads"] for own in events if own]
    at = next((e["at"] for own in events for e in own if e["at"] != "?"), None)
    if len(threads) > 1 and max(threads) > 1 and sum(threads) > os.cpu_count():
        place = at or (case.ranks + case.others)[0].events[0].get("at", "?")
        text = f"{len(threads)} processes compute with {threads[0]} threads each"
        yield "wasteful", place, f"{text}, on {os.cpu_count()} cores"


@finds("printed-by-all", "docs/checklist.md")
def judge_prints(case):
    """One rank should print: guard it with "if rank == 0"."""
    lines = [[(e["at"], e["text"]) for e in r.all("print")] for r in case.ranks]
    if len(lines) > 1 and all(own == lines[0] for own in lines) and lines[0]:
        text = f"all {len(lines)} ranks print the same {len(lines[0])} line(s)"
        yield "wasteful", lines[0][0][0], f"{text}: {lines[0][0][1][:50]!r}"


@finds("loss-of-one-rank", "docs/messages.md#the-printed-loss-or-accuracy-differs-from-one-gpu")
def judge_own_loss(case):
    """The loss of one rank is that of its part of the data: reduce it before it is printed."""
    own = [
        [e for e in r.all("print") if re.search(r"loss.*\d", e["text"], re.I)] for r in case.ranks
    ]
    others = {e["at"] for prints in own[1:] for e in prints}
    for at in dict.fromkeys(
        e["at"] for e in (own[0] if len(own) > 1 else ()) if e["at"] not in others
    ):
        prints = [e for e in own[0] if e["at"] == at and e["steps"]]
        reduced = [0, *(e["added"] for e in prints)]
        if prints and case.steps and all(a == b for a, b in zip(reduced, reduced[1:])):
            text = f"rank 0 prints {prints[0]['text'][:40]!r}; no collective added losses before"
            yield "check", at, f"{text}; fine if it is read as the loss of rank 0"
            return


@finds("no-destroy", "docs/messages.md#destroy_process_group-was-not-called-before-program-exit")
def judge_end(case):
    """NCCL warns, and a rank that others still need may be gone."""
    left = [r for r in case.ranks if r.all("exit") and not r.all("destroy", "raised")]
    left = [r for r in left if r.init["own"]]  # a library that joins the group shall leave it
    if left and case.run.code == 0:
        text = f"{len(left)} of {len(case.ranks)} ranks ended without destroy_process_group()"
        yield "check", left[0].init["at"], f"{text}; fine if a library does so"

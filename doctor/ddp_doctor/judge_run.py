"""The run: who waited for whom, who wrote which file, what was printed, how it ended."""

import re
from collections import defaultdict
from pathlib import Path
from statistics import mode

from .case import finds, short
from .watch_data import SETTINGS

LOST = "closed by peer|reset by peer|timed out|timeout|broken pipe|connection|preamble"
PARTS = "rank|shard|part|local|own|process|worker|node|fold|gpu|device|cuda"
OWN = re.compile(rf"\b({PARTS})(\b|\d|_)", re.I).search  # the line says whose figure it is
NUMBER, EXACT = r"\d+\.\d{2,}", r"\d+\.\d{4,}"  # in a line that is printed


def waiting(case):
    """The ranks that waited in vain, if that is how the run ended, and nobody crashed."""
    stuck = [r for r in case.ranks if r.waits]
    errors = [r.now["error"] for r in stuck if r.now.get("error")]
    lost = [e for e in errors if re.search(LOST, e, re.I)]
    left, ends = [r for r in case.ranks if not r.waits], "exit" if case.run.end else "destroy"
    crashed = len(lost) < len(errors) or any(r.all("raised") or not r.all(ends) for r in left)
    places = {(r.now["op"], r.now["at"]) for r in stuck}
    apart = len(stuck) < len(case.ranks) or len(places) > 1 or one_way(stuck)
    # What ends by itself: gloo's connections break, or it aborts ranks in calls of unlike sizes.
    ended = case.run.end == "hang" or (apart and (lost or case.run.code))
    return stuck if ended and not crashed and not case.loose else []


def one_way(stuck):
    """ "send" if several ranks wait in that and none receives, "recv" the other way round."""
    ways = [way for r in stuck for way in ("send", "recv") if way in r.now["op"]]
    return ways[0] if len(ways) > 1 and len(set(ways)) == 1 else None


def states(case):
    """Where each rank was in the end, in words."""

    def state(rank):
        since = rank.now.get("since", "its start")
        if rank.waits:
            return f"waits in {rank.now['op']} ({rank.now['at']})"
        if rank.all("raised"):
            return "raised an error"
        if rank.all("exit", "destroy"):
            return f"has left its loop and ended ({since} was its last step)"
        return f"{'computes' if case.run.end else 'died'} since {since}"

    words = [f"rank {r.number} {state(r)} after {r.now.get('steps', 0)} steps" for r in case.ranks]
    return "; ".join(words)


@finds("uneven-steps", "uneven_inputs.md", "13_uneven_batches")
def judge_uneven(case):
    """A rank without more data, or that leaves the loop, lets the others wait in a step."""
    training = [r for r in waiting(case) if r.trains]
    epochs = {str([e["delivered"] for e in r.epochs(True)]) for r in case.ranks}
    others = [r for r in case.ranks if r not in training]
    # Its data ran out, it has ended, or it waits where ranks do that have done the rest.
    left = len(epochs) > 1 or all(r.now.get("op") in (None, "barrier") for r in others)
    if training and others and left:
        text = "no more data, or an if by a number of its own? Let all ranks decide together"
        yield training[0].now["at"], f"{states(case)}; {text}", ""


@finds("all-send-first", "glossary.md#point-to-point")
def judge_one_way(case):
    """send() waits until the other rank receives: of two ranks one has to receive first."""
    stuck = waiting(case)
    if way := one_way(stuck):
        at = next(r.now["at"] for r in stuck if way in r.now["op"])
        yield at, f"{states(case)}; none {'sends' if way == 'recv' else 'receives'}", ""


@finds("one-rank-communicates", "corrections.md#testing-and-collectives", "03_rank_0_evaluates")
def judge_one_rank(case):
    """A collective waits until all ranks enter it; DDP's forward pass broadcasts buffers."""
    stuck = waiting(case)
    if stuck and not case.has("uneven-steps", "all-send-first"):
        places = {(r.now["op"], r.now["at"]) for r in stuck}
        alike = len(places) == 1 and len(stuck) == len(case.ranks)
        first = min(stuck, key=lambda r: (r.trains, r.now["op"] == "barrier"))
        led = short(first.now.get("lines", [])[1:])
        text = states(case) + (f"; called in {led}" if led else "")
        yield first.now["at"], text, "the network or a process is broken" if alike else ""


@finds("crossed-order", "corrections.md#testing-and-collectives", "11_crossed_collectives")
def judge_crossed(case):
    """The n-th collective of a rank meets the n-th of the others, whatever it is about."""
    point = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
    calls = [[e for e in r.all("collective") if e["group"] is None] for r in case.ranks]
    calls = [[e for e in own if e["op"] not in point] for own in calls]
    words = defaultdict(lambda: [[] for _ in calls])
    for n, met in enumerate(zip(*calls), 1):
        sizes = {e["numel"] for e in met} if met[0]["op"] == "all_reduce" else {0}
        if len({e["op"] for e in met}) > 1 or len(sizes) > 1:
            seen = case.per_rank(f"{e['op']} of {e['numel']} numbers ({e['at']})" for e in met)
            yield met[0]["at"], f"the ranks' collectives number {n} differ: {seen}", ""
        for rank, event in enumerate(met):
            about = "reduce" in event["op"] or "broadcast" in event["op"]
            for name, value in event["words"].items() if about else ():
                words[event["op"], name][rank].append(value)
    for (op, name), lists in words.items():
        if len({str(v) for v in lists}) > 1 and len({str(sorted(v)) for v in lists}) == 1:
            seen = case.per_rank(f"({short(v, 3)})" for v in lists)
            text = f"the ranks call {op} in different orders, by their {name}: {seen}"
            at = next(m[0]["at"] for m in zip(*calls) if len({str(e["words"]) for e in m}) > 1)
            yield at, text, "these are to be added to each other" if name == "tensors" else ""


@finds("file-race", "adapt.md#step-by-step", "09_all_ranks_download")
def judge_race(case):
    """Nothing makes the reader wait until the file is whole: a barrier would."""
    opened = [{**e, "rank": r.number} for r in case.ranks for e in r.all("open")]
    opened.sort(key=lambda e: e["time"])
    for read in [e for e in opened if not e["writes"]]:
        same = [e for e in opened if e["path"] == read["path"] and e["rank"] != read["rank"]]
        same = [e for e in same if e["writes"] and not e["appends"] and e["time"] < read["time"]]
        if same and read["passed"] <= same[-1]["passed"]:
            late = f"{read['time'] - same[-1]['time']:.2f} s after rank {same[-1]['rank']}"
            text = f"rank {read['rank']} read {Path(read['path']).name} {late} began to write it"
            yield read["at"], f"{text}, with no collective in between", "it waits in another way"


@finds("fixed-port", "../03_ddp_spawn/README.md", ranks=0)
def judge_port(case):
    """A second job on the machine finds the port taken: torchrun --standalone finds a free one."""
    read = {Path(e["path"]) for p in case.processes for e in p.all("open") if not e["writes"]}
    for event in [e for process in case.processes for e in process.all("port", "init")]:
        port = re.match(r"tcp://.*:([1-9]\d*)", str(event["url"]))
        source = Path(event["at"].rpartition(":")[0])
        files = [source, *sorted(path for path in read if path.suffix in SETTINGS)] if port else []
        having = [f for f in files if f.is_file() and port[1] in f.read_text(errors="replace")]
        if having:
            text = f"the script itself chooses port {port[1]}, written in {having[0].name}"
            yield event["at"], text, "no other job ever runs there"


@finds("loss-of-one-rank", "messages.md#the-printed-loss-or-accuracy-differs-from-one-gpu")
def judge_own_loss(case):
    """The loss of one rank is that of its part of the data: reduce it before it is printed."""
    others = {e["at"] for rank in case.ranks[1:] for e in rank.all("print")}
    own = [e for e in case.ranks[0].all("print") if e["at"] not in others and e["steps"]]
    own = [e for e in own if re.search(NUMBER, e["text"]) and not OWN(e["text"])]
    for at in dict.fromkeys(e["at"] for e in own):
        prints = [e for e in own if e["at"] == at]
        since = [0, *(e["steps"] for e in prints)]
        hits = [e for n, e in zip(since, prints) if is_own_loss(case, n, e)]
        if len(hits) > len(prints) / 2:
            text = f"rank 0 prints {prints[0]['text'][:40]!r}, the loss of rank 0, not that of all"
            yield at, text, "it is read as that"


def losses(step):
    return [p["loss"] and p["loss"] / (p["factor"] or 1) for p in step["passes"]]


def is_own_loss(case, since, event):
    """Is it rank 0's last loss, or a mean of its losses since the last such line, only its own?"""
    exact = NUMBER if "loss" in event["text"].lower() else EXACT
    numbers, near = re.findall(exact, event["text"]), []
    for rank in case.ranks:
        steps = rank.all("step")[since : event["steps"]]
        steps = [s for s in steps if s["passes"] and all(losses(s))]
        values = [sum(losses(s)) / len(s["passes"]) for s in steps]
        counts = [s["samples"] or 1 for s in steps]
        weighed = sum(v * n for v, n in zip(values, counts)) / max(sum(counts), 1)
        known = [*values[-1:], sum(values) / max(len(values), 1), weighed]
        pairs = [(n, 0.51 / 10 ** len(n.partition(".")[2]), v) for n in numbers for v in known]
        near.append(any(abs(float(n) - v) < max(least, 1e-5 * abs(v)) for n, least, v in pairs))
    return near[0] and not all(near)


@finds("schedule-length", "batch_size_and_learning_rate.md")
def judge_schedule(case):
    """With more ranks an epoch has fewer steps: len(loader) counts those of a rank."""
    for event in case.ranks[0].all("schedule") if not (case.run.end or case.run.code) else ():
        length, gone, ranks = event["length"] or 0, event["gone"], len(case.ranks)
        if gone > 9 and abs(length - gone * ranks) < 0.08 * length:
            text = f"{event['name']} is made for {length} steps and went {gone}, one in {ranks}"
            yield event["at"], f"{text}: the number of ranks", "the run goes on"


@finds("batch-grows", "batch_size_and_learning_rate.md", "05_batch_and_rate")
def judge_batch(case):
    """More ranks then mean fewer, larger steps: divide the batch, or adapt the rate."""
    many, one = facts(case), case.alone
    same = many and many["rate"] == one.get("rate")
    if same and many["samples"] > one["samples"]:
        text = f"a step takes {many['samples']} samples, on one rank {one['samples']}"
        yield many["at"], f"{text}, and the rate is {many['rate']} in both", "that is meant"


def facts(case):
    """Of the first optimizer whose gradients are averaged, or else the first: its steps."""
    keys = [*(key for key, _, _ in case.joint()), *case.steps]
    steps = [list(ranks.values()) for _, ranks in case.steps[keys[0]]] if keys else []
    if not steps:
        return {}
    rates = [rate for step in steps for rate in step[0]["rates"]]
    return {
        "steps": len(steps),
        "samples": mode(sum(s["samples"] for s in step) for step in steps),
        "rate": max(rates) if all(type(rate) is float for rate in rates) else rates[0],
        "at": steps[0][0]["at"],
    }

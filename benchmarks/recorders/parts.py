"""What the recorders share: the clock, spans, and the frame of a recording."""

import re
import time
from datetime import date

import torch

from benchmarks import common

TIMES = ("at", "from", "to", "left", "joined", "arrived")  # of a rank


def assemble(kind: str, title: str, choices: dict, note: str, ranks: list) -> dict:
    """-> a recording, whose times count from its first event.

    ranks: of each rank the spans, the marks and the like.
    """
    values = [kind, *(str(v) if isinstance(v, str) else f"{k} {v}" for k, v in choices.items())]
    about = {
        "torch": torch.__version__.partition("+")[0],
        "backend": "gloo",
        "machine": f"{common.cores()} cores, {common.device_name()}",
        "date": date.today().isoformat(),
        "command": f"python -m benchmarks.record {kind}",
        "note": note,
    }
    shared = f"{len(ranks)} ranks share {common.cores()} CPU cores: what waits for what is as on"
    about["note"] += f" {shared} {len(ranks)} devices, the times are not."
    first = min(own["spans"][0]["from"] for own in ranks)
    last = max(own["spans"][-1]["to"] for own in ranks)
    return {
        "format": 1,
        "name": re.sub(r"[ _]", "-", "-".join(values)),
        "kind": kind,
        "title": title,
        "choices": choices,
        "about": about,
        "unit": "microseconds",
        "end": last - first,
        "ranks": [{"rank": rank} | since(first, own, TIMES) for rank, own in enumerate(ranks)],
        "messages": [],
    }


def since(first: int, value: object, keys: tuple[str, ...]) -> object:
    """Subtract the first moment from the values of these keys, wherever they are."""
    if isinstance(value, list | tuple):
        return [since(first, item, keys) for item in value]
    if isinstance(value, dict):
        return {k: v - first if k in keys else since(first, v, keys) for k, v in value.items()}
    return value


def now() -> int:
    """Microseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


def spans(turns: list[tuple]) -> list[dict]:
    """[(moment, what the rank does from then on, a sentence or ""), ..., (end, ...)] -> its spans.

    Turns to the same are one span, and spans that last less than a microsecond are left out.
    """
    found = []
    for (start, what, text), (stop, *_) in zip(turns, turns[1:]):
        if stop > start:
            if found and (found[-1]["what"], found[-1].get("text", "")) == (what, text):
                found[-1]["to"] = stop
            else:
                span = {"what": what, "from": start, "to": stop}
                found.append(span | {"text": text} if text else span)
    return found

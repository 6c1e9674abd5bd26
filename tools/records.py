"""Records of stages: what they must have, the figures and the tables that are made of them."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean, median
from typing import NoReturn

from tabulate import tabulate

STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
SETTINGS = ("batch_size", "epochs", "lr", "threads", "workers", "seed")
WAYS = ("amp", "sync_batchnorm")  # settings that some stages have
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("images", *SETTINGS, *WAYS, "device", "dataset", "torch", "host", "device_name")
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = ("#999999", "#56B4E9", "#0072B2", "#D55E00", "#E69F00")
PHASES = dict(zip(("data", "forward", "backward", "exposed", "optimizer"), COLORS))

# What the tables are made of, beside the history.
KEYS = ("stage", "name", "host", "images", "world_size", "hosts", "torch", "device")
KEYS += (*SETTINGS, *WAYS)
DEFAULTS = {"amp": "off", "sync_batchnorm": False, "hosts": 1}  # of stages without these flags
Record, Rows = dict, dict[str, list[dict]]


def fail(message: object) -> NoReturn:
    print("compare.py:", str(message).replace("\n", " "), file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------- reading


def read_folder(folder: Path) -> Rows:
    """The rows of a folder: where there are repeats of a record in it, those."""
    repeats = sorted(folder.glob("repeat-*/*.json"))
    names = {path.name for path in repeats}
    paths = [path for path in folder.glob("*.json") if path.name not in names] + repeats
    return group((path, read_record(path)) for path in paths)


def read_rows(path: Path) -> Rows:
    """The rows of a folder, or of one record."""
    return read_folder(path) if os.path.isdir(path) else group([(path, read_record(path))])


def group(found: Iterable[tuple[Path, Record]]) -> Rows:
    """-> {file name without .json: its records, one for each repeat}, sorted by stage"""
    rows: Rows = {}
    for path, record in found:
        row = rows.setdefault(path.stem, [])
        row.append(record)
        differ = differences(record, row[0], ("stage", "name", "world_size", "hosts", *ALIKE))
        if differ:
            fail(f"{path} is not a repeat of the first {path.name}: {', '.join(differ)}")
    return dict(sorted(rows.items(), key=lambda row: (row[1][0]["name"], row[0])))


def read_record(path: Path) -> Record:
    """Read a record, and try what is made of it. Exits with 2 and the file's name if that fails."""
    try:
        record = {**DEFAULTS, **json.loads(path.read_text(encoding="utf-8"))}
        missing = [key for key in KEYS if key not in record]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        for figure in (speed, accuracy, lambda record: phases_of([record])):
            figure(record)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        fail(f"{path} is not a record of a stage: {type(error).__name__}: {error}")
    return record


# ---------------------------------------------------------------- figures


def counted(record: Record) -> list[dict]:
    """The epochs that count: the first one of a run warms up, unless it is the only one."""
    return record["history"][1:] or record["history"]


def speed(record: Record) -> float:
    """Images per second over all ranks: the median of the epochs, by their slowest rank."""
    epochs = [max(sum(rank.values()) for rank in epoch["phases"]) for epoch in counted(record)]
    return record["images"] / median(epochs)


def accuracy(record: Record) -> float:
    """The part of the test images that the model got right after the last epoch."""
    correct, total = record["history"][-1]["test"]
    return correct / total


def phases_of(records: list[Record]) -> dict[str, list[float]]:
    """-> {phase: milliseconds of a step, mean over the ranks, in each epoch of each repeat}

    The last phase, "step", is the sum of the others.
    """
    found = {phase: [] for phase in (*PHASES, "step")}
    for record in records:
        scale = 1000 * record["batch_size"] / record["images"]
        for epoch in counted(record):
            for phase in PHASES:
                found[phase].append(scale * mean(rank.get(phase, 0.0) for rank in epoch["phases"]))
            found["step"].append(sum(found[phase][-1] for phase in PHASES))
    return found


def together(rows: Rows) -> Rows:
    """The rows as they are, but one for those of stages 3 to 5 that differ in the launcher only."""
    found: Rows = {}
    for name, records in rows.items():
        for other in found.values():
            ddp = {records[0]["stage"], other[0]["stage"]} <= set(STAGES[2:])
            if ddp and not differences(records[0], other[0], ("world_size", *ALIKE)):
                other += records
                break
        else:
            found[name] = list(records)
    for row in found.values():
        if stages := ", ".join(sorted({record["stage"][1] for record in row})[1:]):
            text = f"DDP: stages {row[0]['stage'][1]}, {stages}"
            row[:] = [{**record, "name": text, "hosts": 1} for record in row]
    return found


def differences(record: Record, base: Record, keys: Sequence[str] = ALIKE) -> list[str]:
    """In what two records differ that have to be alike for a ratio, as text."""
    keys = [key for key in keys if key in record and key in base]  # some are not in every record
    return [f"{key} {record[key]}, not {base[key]}" for key in keys if record[key] != base[key]]


def base_of(rows: Rows, records: list[Record]) -> list[Record]:
    """What a row is compared with: the first row's stage, with the settings most like its own."""
    first = next(iter(rows.values()))[0]
    bases = [row for row in rows.values() if not differences(row[0], first, ("name", "amp"))]
    return min(bases, key=lambda base: len(differences(records[0], base[0])))


def ratios(records: list[Record], base: list[Record]) -> list[float]:
    """Speed against the base, for each repeat; empty if the rows may not be compared."""
    if differences(records[0], base[0]):
        return []
    return [speed(record) / speed(other) for record, other in zip(records, cycle(base))]


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """The median as text; if the values differ also the smallest and the largest; "-" for none."""
    if not values:
        return "-"
    middle, low, high = map(form.format, (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


# ---------------------------------------------------------------- tables


def about(rows: Rows) -> str:
    """What the rows have in common, and what has to be known before their figures are read."""
    first = next(iter(rows.values()))[0]
    text = (
        f"{first.get('dataset', 'data')}, {first['batch_size']} images per step, "
        f"{first['epochs']} epoch(s), {first['threads']} thread(s) per rank, "
        f"torch {first['torch']}, {first.get('device_name', first['host'])}"
    )
    if first["device"] == "cpu":
        text += (
            "\nA CPU core stands in for a device: ranks share memory and caches, no bus or network"
        )
        text += "\nis between them, and communication takes time from computing. GPUs differ."
    if len({record["stage"] for row in rows.values() for record in row} & set(STAGES[2:])) > 1:
        text += "\nStages 3, 4 and 5 run the same training step: what they differ by is noise."
    if any(len(row) > 1 for row in rows.values()):
        text += "\nMedians (smallest-largest); a ratio is formed in each repeat, before the median."
    return text


def label(rows: Rows, record: Record) -> str:
    """The row's name, and the settings in which it differs from the first row."""
    first = next(iter(rows.values()))[0]
    keys = [key for key in (*SETTINGS, *WAYS) if record[key] != first[key]]
    return ", ".join([record["name"], *(f"{key} {record[key]}" for key in keys)])


def speed_table(rows: Rows) -> str:
    """A line per row: images per second, against the base and per device, accuracy, seconds."""
    lines, notes = [], []
    for records in rows.values():
        first, base = records[0], base_of(rows, records)
        found, differ = ratios(records, base), differences(first, base[0])
        devices = first["world_size"] / base[0]["world_size"]
        each = [median(found) / devices] if found else []
        note = f"{', '.join(differ)}: no ratio to {base[0]['name']}" if differ else ""
        if each and each[0] > 1.005:
            note = "above 100 %: noise (see --repeat), or the smaller shards fit into a cache"
        elif min(found, default=2) < 1 < max(found, default=0):
            note = "no difference seen: some repeats were quicker, some slower"
        if note and note not in notes:
            notes.append(note)
        nodes = f" on {first['hosts']} nodes" if first["hosts"] > 1 else ""
        line = [label(rows, first), f"{first['world_size']}{nodes}"]
        line += [
            spread(list(map(speed, records)), "{:,.0f}"),
            spread(found),
            spread(each, "{:.0%}"),
        ]
        line.append(spread(list(map(accuracy, records)), "{:.2%}"))
        for key in ("startup_seconds", "command_seconds"):  # known if compare.py has run the stage
            line.append(spread([record[key] for record in records if key in record], "{:.1f}"))
        lines.append([*line, f"({notes.index(note) + 1})" if note else ""])
    base = next(iter(rows.values()))[0]["stage"]
    titles = ["", "devices", "images/s", f"x {base}", "per device", "accuracy"]
    titles += ["start-up (s)", "command (s)", ""]
    align = ("left", *["right"] * 7, "left")
    table = tabulate(lines, titles, colalign=align, disable_numparse=True)
    return "\n".join([table, *(f"({n}) {note}" for n, note in enumerate(notes, start=1))])


def phase_table(rows: Rows) -> str:
    """Where a step's time goes, in milliseconds: medians over epochs and repeats."""
    lines = []
    for records in rows.values():
        cells = {name: f"{median(found):.2f}" for name, found in phases_of(records).items()}
        if "exposed" not in records[0]["history"][0]["phases"][0]:  # no other ranks to wait for
            cells["exposed"] = "-"
        lines.append([label(rows, records[0]), *cells.values()])
    titles = ["milliseconds per step", *PHASES, "step"]
    return tabulate(lines, titles, colalign=("left", *["right"] * 6), disable_numparse=True)


def pair_table(a: list[Record], b: list[Record]) -> str:
    """Two rows phase by phase: medians, with minimum and maximum over epochs and repeats."""
    found = [phases_of(row) for row in (a, b)]
    for figures, row in zip(found, (a, b)):
        figures |= {"images/s": [*map(speed, row)], "accuracy": [*map(accuracy, row)]}
    lines = []
    for name in found[0]:
        form = {"images/s": "{:,.0f}", "accuracy": "{:.2%}"}.get(name, "{:.2f}")
        left, right = (figures[name] for figures in found)
        ratio = f"{median(right) / median(left):.2f}" if median(left) >= 0.005 else "-"
        lines.append([name, spread(left, form), spread(right, form), ratio])
    table = tabulate(lines, ["milliseconds per step", "A", "B", "B / A"], disable_numparse=True)
    differ = differences(b[0], a[0], ("world_size", *ALIKE))
    return f"B differs in {', '.join(differ) or 'nothing that would matter to a ratio'}\n\n{table}"

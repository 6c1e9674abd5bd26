"""Records of runs: reading a file of them, and the figures and tables that are made of them.

A stage appends one line of JSON per run to a file, and compare.py adds what it measures from
outside. A record is such a line. A row is a list of records with equal settings: the repeats of a
run, in the order of the file.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean, median, quantiles

from tabulate import tabulate

STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
SETTINGS = ("batch_size", "epochs", "lr", "threads", "workers", "seed")
WAYS = ("amp", "sync_batchnorm")  # settings that only some stages have
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("images", *SETTINGS, *WAYS, "device", "dataset", "torch", "host", "device_name")
RUN = ("name", "world_size", "hosts")
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = ("#999999", "#56B4E9", "#0072B2", "#D55E00", "#E69F00")
PHASES = dict(zip(("data", "forward", "backward", "exposed", "optimizer"), COLORS))

DEFAULTS = {"amp": "off", "sync_batchnorm": False, "hosts": 1}  # of stages without these flags
# What compare.py adds; unknown if a stage was run without it.
DEFAULTS |= {"dataset": "unknown data", "device_name": "unknown device", "command_seconds": None}
Record, Row = dict, list[dict]


class RecordError(ValueError):
    """A file, or a line of it, is not a record of a stage. The message says which and why."""


# ---------------------------------------------------------------- reading


def read(path: Path) -> list[Record]:
    """Read the records in a file. Raises RecordError, or OSError if the file cannot be read."""
    if not path.is_file():  # opening a FIFO would wait for a writer
        raise RecordError(f"{path} is not a file of records")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(checked(json.loads(line)))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"[:100]
            text = f"{path}, line {number} is not a record of a stage ({reason})"
            raise RecordError(text) from None
    return found


def checked(record: Record) -> Record:
    """The record, with DEFAULTS for what it lacks. Raises an exception if it is not a record."""
    record = {**DEFAULTS, **record}
    for key, fits in FORM.items():
        if not fits(record[key]):
            raise ValueError(f"{key} has a wrong value")
    for epoch in record["history"]:
        correct, total = epoch["test"]
        seconds = [rank.values() for rank in epoch["phases"]]
        numbers = [correct, total, *(value for rank in seconds for value in rank)]
        if not all(map(is_number, numbers)) or correct > total or min(map(sum, seconds)) < 1e-6:
            raise ValueError("history has a wrong value")
    return record


def is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def is_number(value: object) -> bool:
    """Is it a number that can be measured or set here? nan and inf are none."""
    return type(value) in (int, float) and 0 <= value < 1e12


def is_count(value: object) -> bool:
    return is_number(value) and value >= 1


FORM: dict[str, Callable] = {"stage": STAGES.__contains__, "history": bool}
FORM |= dict.fromkeys(("name", "amp", "device", "dataset", "torch", "host", "device_name"), is_text)
FORM |= dict.fromkeys(("images", "world_size", "hosts", "batch_size", "epochs"), is_count)
FORM |= dict.fromkeys(("lr", "threads", "workers", "seed"), is_number)
FORM["sync_batchnorm"] = lambda value: isinstance(value, bool)
FORM["command_seconds"] = lambda value: value is None or is_number(value)


def values(record: Record, keys: Iterable[str]) -> tuple:
    return tuple(record[key] for key in keys)


def rows_of(records: Iterable[Record], last: int | None = None) -> list[Row]:
    """Records with equal settings form a row, by stage. Only the `last` records of each count."""
    rows: dict[tuple, Row] = {}
    for record in records:
        rows.setdefault(values(record, ("stage", *RUN, *ALIKE)), []).append(record)
    ordered = sorted(rows.values(), key=lambda row: row[0]["name"])
    return [row[-last:] if last else row for row in ordered]


def find(rows: list[Row], name: str, **settings) -> Row:
    """The first row of this name that has these settings, such as batch_size=120."""
    wanted = {"name": name, **settings}
    return next(row for row in rows if values(row[0], wanted) == tuple(wanted.values()))


def together(rows: list[Row]) -> list[Row]:
    """The same rows, but rows of stages 3 to 5 that differ in the launcher only become one."""
    found: dict[tuple, Row] = {}
    for row in rows:
        first = row[0]
        launched = () if first["name"] in STAGES[2:] else values(first, ("name", "hosts"))
        found.setdefault((*launched, *values(first, ("world_size", *ALIKE))), []).extend(row)
    for row in found.values():
        numbers = sorted({record["stage"][1] for record in row})
        if len(numbers) > 1:
            name = f"DDP: stages {', '.join(numbers)}"
            row[:] = [{**record, "name": name, "hosts": 1} for record in row]
    return list(found.values())


# ---------------------------------------------------------------- figures


def counted(record: Record) -> list[dict]:
    """The epochs that count: the first one of a run warms up, unless it is the only one."""
    return record["history"][1:] or record["history"]


def speed(record: Record) -> float:
    """Images per second over all ranks: the median of the epochs, by their slowest rank."""
    epochs = [max(sum(rank.values()) for rank in epoch["phases"]) for epoch in counted(record)]
    return record["images"] / median(epochs)


def accuracy(record: Record) -> float:
    """The fraction of the test images that the model got right after the last epoch."""
    correct, total = record["history"][-1]["test"]
    return correct / max(1, total)


def figures(row: Row) -> dict[str, list[float]]:
    """What was measured -> {figure: its values}

    For each epoch that counts, the milliseconds of a step in each phase (mean over the ranks), and
    their sum as "step". For each record, "images/s" and "accuracy".
    """
    found: dict[str, list[float]] = {phase: [] for phase in (*PHASES, "step")}
    for record in row:
        scale = 1000 * min(record["batch_size"], record["images"]) / record["images"]
        for epoch in counted(record):
            for phase in PHASES:
                found[phase].append(scale * mean(rank.get(phase, 0.0) for rank in epoch["phases"]))
            found["step"].append(sum(found[phase][-1] for phase in PHASES))
    return {**found, "images/s": [*map(speed, row)], "accuracy": [*map(accuracy, row)]}


def medians(row: Row) -> dict[str, float]:
    """The median of each of the figures. Tables, pages and pictures all take it from here."""
    return {figure: median(found) for figure, found in figures(row).items()}


def ratios(row: Row, base: Row) -> list[float]:
    """How many times as fast as the base a row is, for each of its repeats."""
    return [speed(record) / speed(other) for record, other in zip(row, cycle(base))]


def differences(record: Record, base: Record, keys: Sequence[str] = ALIKE) -> list[str]:
    """The settings in which two records differ, as text."""
    return [f"{key} {record[key]}, not {base[key]}" for key in keys if record[key] != base[key]]


def spread(found: list[float], form: str = "{:.2f}") -> str:
    """The median as text, with the quartiles if these differ; "-" if there is no value."""
    if not found:
        return "-"
    low, middle, high = quantiles([*found, *found][: max(2, len(found))], method="inclusive")
    middle, low, high = map(form.format, (middle, low, high))
    return middle if low == high else f"{middle} ({low}-{high})"


# ---------------------------------------------------------------- tables


def about(rows: list[Row]) -> str:
    """What the rows have in common, and what a reader must know before reading their figures."""
    first = rows[0][0]
    text = (
        f"{first['dataset']}, {first['batch_size']} images per step, {first['epochs']} epoch(s), "
        f"{first['threads']} thread(s) per rank, torch {first['torch']}, {first['device_name']}"
    )
    if first["device"] == "cpu":
        text += "\nOne CPU core stands in for one device. The ranks share memory and caches, and"
        text += "\ncommunication takes time from computing. On GPUs the ratios differ."
    if len({record["stage"] for row in rows for record in row} & set(STAGES[2:])) > 1:
        text += "\nStages 3, 4 and 5 run the same training step. Differences between them are noise."
    if any(len(row) > 1 for row in rows):
        text += "\nEach figure is a median, with the quartiles. A ratio is formed in each repeat."
    return text


def label(rows: list[Row], record: Record) -> str:
    """The row's name, and the settings in which it differs from the first row."""
    keys = (*SETTINGS, *WAYS, "dataset", "torch", "device_name", "host")
    changed = [f"{key} {record[key]}" for key in keys if record[key] != rows[0][0][key]]
    return ", ".join([record["name"], *changed])


def speed_table(rows: list[Row]) -> str:
    """A line per row: images per second, ratio to the base, accuracy, seconds of the command.

    The base of a row is the row of the first row's stage with the same settings. Rows without one
    get no ratio, and a note says why.
    """
    top, lines, notes = rows[0][0], [], []
    bases = {values(row[0], ALIKE): row for row in rows if row[0]["name"] == top["name"]}
    for row in rows:
        first = row[0]
        base = bases.get(values(first, ALIKE))
        found = ratios(row, base) if base else []
        each = [median(found) * base[0]["world_size"] / first["world_size"]] if base else []
        note = ""
        if not base:
            note = f"{', '.join(differences(first, top))}: no ratio to {top['name']}"
        elif each[0] > 1.005:
            note = "above 100 %: noise (try --repeat), or the smaller shards fit into a cache"
        elif min(found) < 1 < max(found):
            note = "no difference can be seen: some repeats were faster, some slower"
        if note and note not in notes:
            notes.append(note)
        nodes = f" on {first['hosts']} nodes" if first["hosts"] > 1 else ""
        seconds = [r["command_seconds"] for r in row if r["command_seconds"] is not None]
        lines.append(
            [
                label(rows, first),
                f"{first['world_size']}{nodes}",
                spread([*map(speed, row)], "{:,.0f}"),
                spread(found),
                spread(each, "{:.0%}"),
                spread([*map(accuracy, row)], "{:.2%}"),
                spread(seconds, "{:.1f}"),
                f"({notes.index(note) + 1})" if note else "",
            ]
        )
    titles = ["", "devices", "images/s", f"x {top['name']}", "per device", "accuracy"]
    align = ("left", *["right"] * 6, "left")
    table = tabulate(lines, [*titles, "command (s)", ""], colalign=align, disable_numparse=True)
    return "\n".join([table, *(f"({n}) {note}" for n, note in enumerate(notes, start=1))])


def phase_table(rows: list[Row]) -> str:
    """Where a step's time goes, in milliseconds: medians over epochs and repeats."""
    lines = []
    for row in rows:
        cells = {name: f"{middle:.2f}" for name, middle in medians(row).items()}
        if "exposed" not in row[0]["history"][0]["phases"][0]:  # no other ranks to wait for
            cells["exposed"] = "-"
        lines.append([label(rows, row[0]), *values(cells, (*PHASES, "step"))])
    titles = ["milliseconds per step", *PHASES, "step"]
    return tabulate(lines, titles, colalign=("left", *["right"] * 6), disable_numparse=True)


def pair_table(a: Row, b: Row) -> str:
    """Two rows phase by phase: medians over epochs and repeats, with quartiles."""
    lines, left, right = [], figures(a), figures(b)
    for name in left:
        form = {"images/s": "{:,.0f}", "accuracy": "{:.2%}"}.get(name, "{:.2f}")
        low, high = median(left[name]), median(right[name])
        ratio = f"{high / low:.2f}" if low >= 0.005 else "-"
        lines.append([name, spread(left[name], form), spread(right[name], form), ratio])
    table = tabulate(lines, ["milliseconds per step", "A", "B", "B / A"], disable_numparse=True)
    differ = differences(b[0], a[0], ("world_size", *ALIKE))
    return f"B differs in {', '.join(differ) or 'nothing that matters to a ratio'}\n\n{table}"
